"""What the servers hold at the end of a run: the promotions, and data that should have been removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadtest.judge import Promotion
from loadtest.torture.arena import Arena
from loadtest.torture.chains import CHAINED, TOLD, notices
from loadtest.torture.fleet import read_promotions
from wheelq.errors import Refused
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls import shard_counts
from wheelq.protocol.keys import ShardKeys

PAGE = 5_000
"""Entries of a stream that are read at once."""


class Remains:
    """The contents of some shards, read without the proxies."""

    def __init__(self, arena: Arena, shards: Sequence[ShardKeys], group: str) -> None:
        self._arena = arena
        self._shards = shards
        self._group = group

    def promotions(self) -> Iterator[Promotion]:
        """Yields every promotion in the ready streams."""
        for shard in self._shards:
            if shard.topic == TOLD:
                yield from notices(self.entries(shard))
                continue
            for page in self._pages(shard):
                yield from read_promotions(page)

    def entries(self, shard: ShardKeys) -> Iterator[tuple[bytes, Mapping[bytes, bytes]]]:
        """Yields the entries of a ready stream, each with its fields."""
        for page in self._pages(shard):
            for entry, fields in page:
                yield entry, dict(zip(fields[::2], fields[1::2], strict=True))

    def dead(self) -> Iterator[str]:
        """Yields the ids of the dead jobs of the topic of followers, half of which must die."""
        for shard in self._shards:
            asked = command("XRANGE", shard.dead, "-", "+", read=list, key=shard.dead)
            for _, fields in self._arena.control.send(asked) if shard.topic == CHAINED else ():
                yield fields[fields.index(b"id") + 1].decode()

    def _pages(self, shard: ShardKeys) -> Iterator[list[tuple[bytes, list[bytes]]]]:
        start, entries = "-", [(b"", [b""])]
        while entries:
            reading = command("XRANGE", shard.ready, start, "+", "COUNT", PAGE, read=list, key=shard.ready)
            entries = self._arena.control.send(reading)
            yield entries
            start = f"({entries[-1][0].decode()}" if entries else ""

    def waiting(self) -> int:
        """Jobs that wait."""
        return sum(self._arena.control.send(shard_counts.counts(shard)).waiting for shard in self._shards)

    def left(self) -> dict[str, int]:
        """Returns how many jobs are remembered, deliveries unacknowledged, jobs dead, permits out, and groups without
        workers there.

        Not counted are the dead jobs of `dead`.
        """
        return {
            "records": sum(self._count("HLEN", shard.jobs) for shard in self._shards),
            "deliveries": sum(self._pending(shard) for shard in self._shards),
            "dead": sum(self._count("XLEN", shard.dead) for shard in self._shards if shard.topic != CHAINED),
            "permits": sum(self._count("ZCARD", shard.permits) for shard in self._shards),
            "groups": sum(map(self._others, self._shards)),
        }

    def _count(self, what: str, key: str) -> int:
        return self._arena.control.send(command(what, key, read=int, key=key))

    def _others(self, shard: ShardKeys) -> int:
        return sum(group != self._group for group in self._arena.control.send(shard_counts.groups(shard)))

    def _pending(self, shard: ShardKeys) -> int:
        try:
            return self._arena.control.send(_pending(shard.ready, self._group))
        except Refused:  # the shard was never used
            return 0


def _pending(ready: str, group: str) -> Call[int]:
    def read(reply: list[int]) -> int:
        return reply[0]

    return command("XPENDING", ready, group, read=read, key=ready)
