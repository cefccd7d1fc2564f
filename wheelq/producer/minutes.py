"""The history of a topic: the counts of each recent minute, which leaders record in Redis."""

from __future__ import annotations

from wheelq.model.topic import TopicMinute, check_hours
from wheelq.producer.operation import Operation, ask, ask_all
from wheelq.producer.topics import Topics
from wheelq.protocol.calls import counts, registry


def history(topics: Topics, topic: str, hours: int) -> Operation[list[TopicMinute]]:
    """Returns the minutes in which something happened, in order. Raises: InvalidInput, TopicNotFound."""
    check_hours(hours)
    shards = yield from topics.shards(topic)
    now_ms = (yield from ask(registry.server_time_us(shards[0].counts))) // 1000
    since_ms = now_ms - hours * counts.HOUR_MS
    span = range(since_ms // counts.HOUR_MS, now_ms // counts.HOUR_MS + 1)
    parts = yield from ask_all(counts.minutes(shard, hour) for shard in shards for hour in span)
    found: dict[int, TopicMinute] = {}
    for part in parts:
        found = counts.add_up(found, part)
    return [found[at_ms] for at_ms in sorted(found) if at_ms >= since_ms]
