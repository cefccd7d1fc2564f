"""What is asked of a shard to learn whether jobs are left there that a former number of shards has placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.protocol.call import Call, command
from wheelq.protocol.keys import ShardKeys

PAGE = 500
"""Jobs looked at in one call: about a millisecond."""


class Stored(NamedTuple):
    """A job that is alive or dead, and its record; or the id of its entry, where `jobs` holds that."""

    id: str
    value: bytes

    @property
    def entry_id(self) -> str | None:
        """The entry in which its record stands; None where the value is the record."""
        return self.value.decode() if self.value[:1].isdigit() else None


class Page(NamedTuple):
    """Some of a shard's jobs."""

    jobs: list[Stored]
    after: str
    """Where to go on: "0" at the beginning, "" behind the end."""


def terms_in_force(keys: ShardKeys) -> Call[str | None]:
    """The terms that whoever writes to the shard must name; None when none were ever asked for."""
    return command("GET", keys.shards, read=lambda reply: reply.decode() if reply else None, key=keys.shards)


def holds_jobs(keys: ShardKeys) -> Call[bool]:
    """Whether jobs wait or live in the shard, or are kept there since they finished."""
    return command("EXISTS", keys.delayed, keys.jobs, keys.done, read=bool, key=keys.delayed)


def holds_entries(stream: str) -> Call[bool]:
    """Whether there is anything in one of the shard's streams."""
    return command("XLEN", stream, read=bool, key=stream)


def live(keys: ShardKeys, after: str) -> Call[Page]:
    """A page of those alive. Over all pages each is told that is alive all the time; some twice, or as their retry."""

    def read(reply: Sequence[Any]) -> Page:
        cursor, pairs = reply
        return Page(_stored(pairs[::2], pairs[1::2]), "" if cursor == b"0" else cursor.decode())

    return command("HSCAN", keys.jobs, after, "COUNT", PAGE, read=read, key=keys.jobs)


def is_alive(keys: ShardKeys, member: str) -> Call[bool]:
    """Whether a job is alive in the shard."""
    return command("HEXISTS", keys.jobs, member, read=bool, key=keys.jobs)


def record(keys: ShardKeys, entry_id: str) -> Call[bytes]:
    """The record in an entry; empty when that is gone."""

    def read(reply: Sequence[Any]) -> bytes:
        return _fields(reply[0][1]).get(b"record", b"") if reply else b""

    return command("XRANGE", keys.ready, entry_id, entry_id, read=read, key=keys.ready)


def dead(keys: ShardKeys, after: str) -> Call[Page]:
    """A page of the dead."""

    def read(reply: Sequence[Any]) -> Page:
        found = [_fields(fields) for _, fields in reply]
        jobs = _stored([one.get(b"id", b"") for one in found], [one.get(b"record", b"") for one in found])
        return Page(jobs, reply[-1][0].decode() if len(reply) == PAGE else "")

    return command("XRANGE", keys.dead, f"({after}", "+", "COUNT", PAGE, read=read, key=keys.dead)


def _stored(ids: Sequence[bytes], values: Sequence[bytes]) -> list[Stored]:
    return [Stored(id.decode(errors="replace"), value) for id, value in zip(ids, values, strict=True)]


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
