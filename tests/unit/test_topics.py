"""A topic's settings and terms."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import fields, replace

import pytest

from wheelq.model.topic import Topic, TopicChanges, TopicMinute, shaping_of
from wheelq.protocol.calls import counts
from wheelq.settings import TopicSettings


def test_every_topic_setting_except_shards_can_be_changed() -> None:
    """They have an operation of their own."""
    assert TopicChanges.__annotations__.keys() == {item.name for item in fields(TopicSettings)} - {"shards"}


def test_the_terms_of_a_topic_without_limits_are_its_number_of_shards() -> None:
    """So a topic that uses none of this is written to as ever."""
    assert Topic(shards=3).terms == "3"
    assert Topic(shards=3, retention_ms=9, misfire="skip", grace_ms=5).terms == "3"


@pytest.mark.parametrize(
    "changes",
    [{"paused": True}, {"max_rate": 5.0}, {"max_rate": 7}, {"max_pending": 9}, {"max_ready": 9}, {"shards": 4}],
)
def test_every_setting_that_producers_or_leaders_must_know_changes_the_terms(changes: dict[str, object]) -> None:
    topics = [Topic(shards=3), Topic(shards=3, max_rate=1.0, max_pending=12, max_ready=6)]
    for topic in topics:
        assert replace(topic, **changes).terms != topic.terms  # type: ignore[arg-type]


def test_limits_are_shared_out_evenly_and_never_exceeded_together() -> None:
    topic = Topic(shards=3, max_rate=100, max_pending=10, max_ready=10)
    shaping = shaping_of(topic, 2)
    assert shaping is not None
    assert topic.terms.split()[1] == "3"
    assert 3 * shaping.most_ready <= 10
    assert 3 * 1_000_000 / shaping.interval_us <= 100
    assert 3 * shaping.burst <= 10


@pytest.mark.parametrize(("shards", "draining"), [(8, (1,)), (1, (8,)), (4, (8, 1))])
def test_each_number_of_shards_has_the_same_part_of_a_limit_while_some_are_former(
    shards: int, draining: tuple[int, ...]
) -> None:
    """A backlog in the only shard that a topic had, or one dead job that a former shard keeps, does not slow it down to
    an eighth for as long as that takes."""
    topic = Topic(shards=shards, draining=draining, max_rate=80, max_ready=80)
    limits = [limit for shard in range(topic.all_shards) if (limit := shaping_of(topic, shard))]
    assert len(limits) == 8
    rates = [1_000_000 / limit.interval_us for limit in limits]
    for number in (shards, *draining):
        assert sum(rates[:number]) >= 0.99 * 80 / (1 + len(draining))
    assert sum(rates) <= 80
    assert sum(limit.most_ready for limit in limits) <= 80


def test_with_more_shards_than_a_limit_allows_each_may_have_one() -> None:
    shaping = shaping_of(Topic(shards=8, max_rate=2, max_ready=3), 7)
    assert shaping is not None
    assert (shaping.burst, shaping.most_ready) == (1, 1)


def test_minutes_are_added_up_without_a_copy_of_those_before() -> None:
    """A topic with many shards has thousands of hours of minutes: copies would hold up an event loop for seconds."""
    found: dict[int, TopicMinute] = {}
    counts.add_to(found, [TopicMinute(n * counts.MINUTE_MS, scheduled=1) for n in range(4_320)])
    tracemalloc.start()
    counts.add_to(found, [TopicMinute(0, scheduled=0)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < sys.getsizeof(found) / 10
    counts.add_to(found, [TopicMinute(0, scheduled=2, done=1)])
    assert (len(found), found[0]) == (4_320, TopicMinute(0, scheduled=3, done=1))
