"""A topic's settings and terms."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from wheelq.model.topic import Topic, TopicChanges
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
    shaping = topic.shaping
    assert shaping is not None
    assert topic.terms.split()[1] == "3"
    assert 3 * shaping.most_ready <= 10
    assert 3 * 1_000_000 / shaping.interval_us <= 100
    assert 3 * shaping.burst <= 10


def test_with_more_shards_than_a_limit_allows_each_may_have_one() -> None:
    shaping = Topic(shards=8, max_rate=2, max_ready=3).shaping
    assert shaping is not None
    assert (shaping.burst, shaping.most_ready) == (1, 1)
