"""Replay: run again, in one group, what a topic fired between two times.

The entries that `retention_ms` keeps in the ready streams are added to them anew, for this group alone, a part at a
time. How far a replay is, each shard knows under the replay's name. So each entry is replayed once, also when a reply
is lost, or when a replay that was broken off is begun again with its name within a day.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from wheelq.errors import InvalidInput, OutcomeUnknown
from wheelq.ids import make_id
from wheelq.operations.operation import Operation, ask, wait
from wheelq.operations.topics import Topics
from wheelq.protocol.calls import history
from wheelq.protocol.calls.history import Part
from wheelq.protocol.keys import ShardKeys


class Replayed(NamedTuple):
    """What came of a replay."""

    replayed: int
    """Jobs that run again."""
    left_out: int
    """Jobs that the group has not finished yet: they run anyway."""
    name: str
    """By which the replay can be gone on with."""


def replay(
    topics: Topics,
    topic: str,
    group: str,
    since: datetime,
    until: datetime | None,
    rate: float | None,
    name: str | None,
) -> Operation[Replayed]:
    """Replay everything in the span, shard by shard. Raises: InvalidInput, TopicNotFound, OutcomeUnknown."""
    if rate is not None and not rate > 0:
        raise InvalidInput("rate", f"must be more than 0 jobs a second, not {rate!r}")
    since_ms, until_ms = _ms("since", since), None if until is None else _ms("until", until)
    if not (yield from topics.read_existing(topic)).retention_ms:
        raise InvalidInput("topic", f"{topic!r} keeps nothing that could be replayed: set its retention_ms")
    name = name or make_id()
    most = history.BATCH if rate is None else max(1, min(history.BATCH, int(rate)))
    parts = []
    for keys in (yield from topics.shards(topic)):
        part = yield from _shard(keys, name, group, since_ms, until_ms, most, rate)
        if part is not None:
            parts.append(part)
    if not parts:
        raise InvalidInput("group", f"{topic!r} has no group {group!r}: a group comes into being with its first worker")
    return Replayed(sum(part.replayed for part in parts), sum(part.left_out for part in parts), name)


def _shard(
    keys: ShardKeys, name: str, group: str, since_ms: int, until_ms: int | None, most: int, rate: float | None
) -> Operation[Part | None]:
    call = history.fire_again(keys, name, group, since_ms, until_ms, most)
    before = 0
    while True:
        try:
            part = yield from ask(call)
        except OutcomeUnknown:
            try:
                part = yield from ask(call)
            except OutcomeUnknown as error:
                raise OutcomeUnknown(f"the replay was broken off; go on with name={name!r}: {error}") from error
        if part is not None and rate is not None:
            yield from wait((part.replayed - before) / rate)
        if part is None or part.is_all:
            return part
        before = part.replayed


def _ms(field: str, at: datetime) -> int:
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise InvalidInput(field, f"must be an aware datetime, not {at!r}")
    return max(0, int(at.timestamp() * 1000))
