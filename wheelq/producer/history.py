"""A rerun: the jobs that a topic promoted between two times run again, in one group.

The entries that `retention_ms` keeps in the ready streams are added again for this group alone, a part at a time. Each
shard stores the progress of a rerun under its name. So each entry runs again only once, even if a reply is lost or an
interrupted rerun is repeated with its name within a day.

`history` reads the counts of each recent minute, which leaders record in Redis.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import NamedTuple

from wheelq.base.ids import make_id
from wheelq.errors import InvalidInput, OutcomeUnknown
from wheelq.model.checks import check_id, to_ms
from wheelq.model.dead import check_rate
from wheelq.model.topic import TopicMinute, check_hours
from wheelq.producer.operation import Operation, Stream, ask, wait
from wheelq.producer.topics import Topics
from wheelq.protocol.call import Call
from wheelq.protocol.calls import bulk as calls
from wheelq.protocol.calls import counts
from wheelq.protocol.calls.bulk import RerunPart
from wheelq.protocol.calls.server import server_time_us


class Rerun(NamedTuple):
    """The result of `rerun`."""

    jobs: int
    """Jobs that run again."""
    left_out: int
    """Jobs that the group has not finished yet: they run anyway."""
    name: str
    """Repeat the call with this name to continue it."""


def rerun(
    topics: Topics,
    topic: str,
    group: str,
    since: datetime,
    until: datetime | None,
    rate: float | None,
    name: str | None,
) -> Operation[Rerun]:
    """Run again everything in the span, shard by shard. Raises: InvalidInput, TopicNotFound, OutcomeUnknown."""
    check_id(group, "group")
    check_rate(rate)
    since_ms, until_ms = max(0, to_ms(since, "since")), None if until is None else max(0, to_ms(until, "until"))
    found = yield from topics.read_existing(topic)
    if not found.retention_ms:
        raise InvalidInput("topic", f"{topic!r} keeps no entries to run again: set its retention_ms")
    name = make_id() if name is None else check_id(name, "name")
    most = calls.RERUN_BATCH if rate is None else max(1, min(calls.RERUN_BATCH, int(rate)))
    parts = []
    for keys in (yield from topics.shards(topic)):
        call = calls.rerun(keys, name, group, since_ms, until_ms, most, found.terms)
        part = yield from _shard(call, name, rate)
        if part is not None:
            parts.append(part)
    if not parts:
        raise InvalidInput("group", f"{topic!r} has no group {group!r}: the first worker of a group creates it")
    return Rerun(sum(part.jobs for part in parts), sum(part.left_out for part in parts), name)


def _shard(call: Call[RerunPart | None], name: str, rate: float | None) -> Operation[RerunPart | None]:
    before = 0
    while True:
        try:
            part = yield from ask(call)
        except OutcomeUnknown:
            try:
                part = yield from ask(call)
            except OutcomeUnknown as error:
                raise OutcomeUnknown(f"the rerun was interrupted; continue it with name={name!r}: {error}") from error
        if part is not None and rate is not None:
            yield from wait((part.jobs - before) / rate)
        if part is None or part.is_all:
            return part
        before = part.jobs


def history(topics: Topics, topic: str, hours: int) -> Operation[list[TopicMinute]]:
    """Returns the minutes in which something happened, in order. Raises: InvalidInput, TopicNotFound."""
    check_hours(hours)
    shards = yield from topics.shards(topic)
    now_ms = (yield from ask(server_time_us(shards[0].counts))) // 1000
    since_ms = now_ms - hours * counts.HOUR_MS
    span = range(since_ms // counts.HOUR_MS, now_ms // counts.HOUR_MS + 1)
    found: dict[int, TopicMinute] = {}
    # Added up as they arrive: a topic with many shards has thousands, which would hold up an event loop together.
    yield Stream((counts.minutes(shard, hour) for shard in shards for hour in span), partial(counts.add_to, found))
    return [found[at_ms] for at_ms in sorted(found) if at_ms >= since_ms]
