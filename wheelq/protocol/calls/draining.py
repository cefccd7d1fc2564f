"""Calls that find out whether a shard still holds jobs placed by a former number of shards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.protocol.call import Call, command
from wheelq.protocol.keys import ShardKeys

PAGE = 500
"""The jobs that one call looks at, which takes about a millisecond."""


_ENTRY_ID = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")


class Stored(NamedTuple):
    """A live or dead job and its record, or the id of its entry if `jobs` holds that instead."""

    id: str
    value: bytes

    @property
    def entry_id(self) -> str | None:
        """The entry that holds its record; None if the value is the record."""
        return self.value.decode() if _ENTRY_ID.fullmatch(self.value) else None


class Page(NamedTuple):
    """Some of a shard's jobs."""

    jobs: list[Stored]
    after: str
    """The cursor of the next page: "0" at the beginning, "" after the end."""


def terms_in_force(keys: ShardKeys) -> Call[str | None]:
    """Read the terms that every write to the shard must name; None if none were ever required."""
    return command(
        "GET", keys.shards, read=lambda reply: reply.decode(errors="replace") if reply else None, key=keys.shards
    )


def holds_bundles(keys: ShardKeys) -> Call[bool]:
    """Whether the shard counts for bundles that have not ended."""
    return command("EXISTS", keys.bundles, read=bool, key=keys.bundles)


def holds_jobs(keys: ShardKeys) -> Call[bool]:
    """Whether the shard holds waiting or live jobs, or keeps finished ones."""
    return command("EXISTS", keys.delayed, keys.jobs, keys.done, read=bool, key=keys.delayed)


def last_replay(keys: ShardKeys) -> Call[bytes | None]:
    """When a dead job was last replayed. A change shows that one was replayed while the shard was examined."""
    return command("HGET", keys.replays, ":dead", read=lambda reply: reply, key=keys.replays)


def holds_entries(stream: str) -> Call[bool]:
    """Whether one of the shard's streams has entries."""
    return command("XLEN", stream, read=bool, key=stream)


def live(keys: ShardKeys, after: str) -> Call[Page]:
    """A page of live jobs. All pages together hold every job that is alive throughout, perhaps twice or as a retry."""

    def read(reply: Sequence[Any]) -> Page:
        cursor, pairs = reply
        return Page(_stored(pairs[::2], pairs[1::2]), "" if cursor == b"0" else cursor.decode())

    return command("HSCAN", keys.jobs, after, "COUNT", PAGE, read=read, key=keys.jobs)


def is_alive(keys: ShardKeys, member: str) -> Call[bool]:
    """Whether a job is alive in the shard."""
    return command("HEXISTS", keys.jobs, member, read=bool, key=keys.jobs)


def recurs(keys: ShardKeys, name: str) -> Call[bool]:
    """Whether the topic of this shard 0 has a recurring job with the name."""
    return command("HEXISTS", keys.recurring, name, read=bool, key=keys.recurring)


def record(keys: ShardKeys, entry_id: str) -> Call[bytes]:
    """The record in an entry; empty if the entry is gone."""

    def read(reply: Sequence[Any]) -> bytes:
        return _fields(reply[0][1]).get(b"record", b"") if reply else b""

    return command("XRANGE", keys.ready, entry_id, entry_id, read=read, key=keys.ready)


def dead(keys: ShardKeys, after: str) -> Call[Page]:
    """A page of the dead jobs."""

    def read(reply: Sequence[Any]) -> Page:
        found = [_fields(fields) for _, fields in reply]
        jobs = _stored([one.get(b"id", b"") for one in found], [one.get(b"record", b"") for one in found])
        return Page(jobs, reply[-1][0].decode() if len(reply) == PAGE else "")

    return command("XRANGE", keys.dead, f"({after}", "+", "COUNT", PAGE, read=read, key=keys.dead)


def _stored(ids: Sequence[bytes], values: Sequence[bytes]) -> list[Stored]:
    return [Stored(id.decode(errors="replace"), value) for id, value in zip(ids, values, strict=True)]


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
