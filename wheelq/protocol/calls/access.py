"""The stored API keys of the HTTP server: a hash, key id → record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from wheelq.protocol import registry_codec
from wheelq.protocol.call import Call, command, nothing
from wheelq.protocol.keys import Keys


class ApiKeys(NamedTuple):
    """All keys; one that cannot be read does not affect the others."""

    stored: dict[str, dict[str, Any]]
    unreadable: dict[str, str]
    """Unreadable keys, written by another program or a newer release, and what is wrong with each."""


def api_keys(keys: Keys) -> Call[ApiKeys]:
    """Read all keys. There are few, because people make them by hand."""
    return command("HGETALL", keys.access, read=lambda reply: _read(reply[::2], reply[1::2]), key=keys.access)


def api_key(keys: Keys, id: str) -> Call[ApiKeys]:
    """Read the key with this id, if there is one."""
    return command("HMGET", keys.access, id, read=lambda reply: _read([id.encode()], reply), key=keys.access)


def put_api_key(keys: Keys, id: str, what: dict[str, Any]) -> Call[None]:
    """Create or replace a key."""
    return command("HSET", keys.access, id, msgpack.packb(what), read=nothing, key=keys.access)


def drop_api_key(keys: Keys, id: str) -> Call[bool]:
    """Remove a key; False if it did not exist."""
    return command("HDEL", keys.access, id, read=bool, key=keys.access)


def _read(ids: Sequence[bytes], stored: Sequence[bytes | None]) -> ApiKeys:
    found = ApiKeys({}, {})
    for field, packed in zip(ids, stored, strict=True):
        id = field.decode(errors="backslashreplace")
        try:
            if packed is not None:
                found.stored[id] = _checked(registry_codec.decode_map(packed))
        except ValueError as error:
            found.unreadable[id] = str(error)
    return found


def _checked(stored: dict[str, Any]) -> dict[str, Any]:
    """Raises: ValueError."""
    scopes, digests = stored.get("scopes"), stored.get("digests")
    if not isinstance(stored.get("name"), str):
        raise ValueError("its name is not text")
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise ValueError("its scopes are not a list of texts")
    if not isinstance(digests, list) or not all(_is_digest(item) for item in digests):
        raise ValueError("its digests are not a list of pairs")
    if not all(type(stored.get(name, 0)) is int for name in ("created_ms", "expires_ms")):
        raise ValueError("its times are not whole numbers")
    return stored


def _is_digest(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], bytes) and type(item[1]) is int
