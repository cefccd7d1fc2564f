"""Calls to the server itself: its clock, its connections, its configuration, and the prefixes in use on it.

Programs with different prefixes do not see each other.
"""

from __future__ import annotations

from typing import Any

from wheelq.protocol.call import Call, command, nothing
from wheelq.protocol.calls.registry import VERSION_FIELD
from wheelq.protocol.calls.shard_counts import counts
from wheelq.protocol.keys import Keys


def server_time_us(key: str | None = None) -> Call[int]:
    """The server's clock, in microseconds since the Unix epoch; in a cluster, that of the node that holds `key`."""
    return command("TIME", read=lambda reply: int(reply[0]) * 1_000_000 + int(reply[1]), key=key)


def is_connected(connection_id: int) -> Call[bool]:
    """Whether the connection of this number is open."""
    return command("CLIENT LIST", "ID", connection_id, read=bool)


def unblock(connection_id: int) -> Call[bool]:
    """End the blocking read of a connection at once, as if its time were up."""
    return command("CLIENT UNBLOCK", connection_id, read=bool)


def info(*sections: str) -> Call[dict[str, str]]:
    """The server's `INFO`, as a flat map."""

    def read(reply: bytes) -> dict[str, str]:
        lines = reply.decode(errors="replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    return command("INFO", *sections, read=read)


def config(pattern: str) -> Call[dict[str, str]]:
    """The server's configuration parameters that match a pattern."""

    def read(reply: list[bytes]) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in zip(reply[::2], reply[1::2], strict=True)}

    return command("CONFIG GET", pattern, read=read)


def publish_nothing(keys: Keys) -> Call[None]:
    """Publish to a channel without listeners: its shard belongs to no topic."""
    return command("PUBLISH", keys.shard("none", 0).near, "", read=nothing)


def needed_commands(keys: Keys) -> dict[str, Call[Any]]:
    """Commands that wheelq needs and a server may lack or forbid, each as a call that changes nothing.

    Their shard belongs to no topic. A server that has XAUTOCLAIM answers it with NOGROUP.
    """
    shard = keys.shard("none", 0)
    return {
        "EVALSHA": counts(shard),
        "XAUTOCLAIM": command("XAUTOCLAIM", shard.ready, "none", "none", 0, "0-0", read=nothing, key=shard.ready),
        "ZMSCORE": command("ZMSCORE", shard.delayed, "none", read=nothing, key=shard.delayed),
        "CLIENT LIST ID": is_connected(1),
    }


NOT_IN_PREFIXES = frozenset("{}: \n")
LOOKED_AT = 1000
"""Keys that one call looks at."""


def listening(keys: Keys) -> Call[list[str]]:
    """Returns the other prefixes whose schedulers and workers listen; in a cluster, to the node that is asked."""

    def read(reply: list[bytes]) -> list[str]:
        ending = _ending(keys.changes, keys)
        return sorted(_others(reply, ending, keys))

    return command("PUBSUB CHANNELS", f"*{_ending(keys.changes, keys)}", read=read)


def with_topics(keys: Keys, cursor: int) -> Call[tuple[int, set[str]]]:
    """Looks at some keys of the server; returns the next cursor (0: the end), and other prefixes that have topics."""
    ending = _ending(keys.topics, keys)

    def read(reply: list[Any]) -> tuple[int, set[str]]:
        return int(reply[0]), _others(reply[1], ending, keys)

    return command("SCAN", cursor, "MATCH", f"*{ending}", "COUNT", LOOKED_AT, "TYPE", "hash", read=read)


def is_registry(keys: Keys) -> Call[bool]:
    """Whether the key for the topics of this prefix really holds topics, and is not another program's."""
    return command("HEXISTS", keys.topics, VERSION_FIELD, read=bool, key=keys.topics)


def _others(names: list[bytes], ending: str, keys: Keys) -> set[str]:
    found = {name.decode(errors="replace").removesuffix(ending) for name in names}
    return {prefix for prefix in found if prefix != keys.prefix and not set(prefix) & NOT_IN_PREFIXES}


def _ending(name: str, keys: Keys) -> str:
    return name.removeprefix(keys.prefix)
