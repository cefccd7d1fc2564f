"""Which other prefixes are in use on the server: programs with different prefixes do not see each other."""

from __future__ import annotations

from typing import Any

from wheelq.protocol.call import Call, command
from wheelq.protocol.calls.registry import VERSION_FIELD
from wheelq.protocol.keys import Keys

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
