"""The API keys of the HTTP server, as they are kept: a hash, key id → record."""

from __future__ import annotations

from typing import Any

import msgpack

from wheelq.protocol import registry_codec
from wheelq.protocol.call import Call, command, nothing
from wheelq.protocol.keys import Keys


def api_keys(keys: Keys) -> Call[dict[str, dict[str, Any]]]:
    """All of them; they are few, made by hand."""
    return command("HGETALL", keys.access, read=registry_codec.decode_maps, key=keys.access)


def put_api_key(keys: Keys, id: str, what: dict[str, Any]) -> Call[None]:
    """Make or replace one."""
    return command("HSET", keys.access, id, msgpack.packb(what), read=nothing, key=keys.access)


def drop_api_key(keys: Keys, id: str) -> Call[bool]:
    """Take one away; False when there was none."""
    return command("HDEL", keys.access, id, read=bool, key=keys.access)
