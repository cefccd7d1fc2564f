"""What torture judges of limits per key."""

from __future__ import annotations

import pytest

from loadtest.torture.shares import KEYS, LIMITS, SHARED, InForce, Limits, of_a_key, too_fast, too_many
from tests.waiting import eventually
from wheelq import Client, JobSpec
from wheelq.protocol import codec
from wheelq.protocol.keys import Keys

SHARD = Keys().shard(SHARED, 0)
RECORD = codec.encode(None, None, 1_000, codec.Parts(partition_key="k1"))
BEGUN_MS = 1_000_000
OTHER = codec.encode(None, None, 1_000)


def test_jobs_of_its_topic_have_one_of_few_keys_and_the_same_when_they_are_asked_for_again() -> None:
    specs = [JobSpec({"n": n}, 0, key=f"key-{n}") for n in range(100)]
    keys = [of_a_key(SHARED, spec).partition_key for spec in specs]
    assert len(set(keys)) == KEYS
    assert [of_a_key(SHARED, spec).partition_key for spec in specs] == keys
    assert of_a_key("another", specs[0]) == specs[0]


@pytest.fixture
def limits(url: str) -> Limits:
    """Limits of two jobs, 40 a second, that change a minute after `BEGUN_MS` to none, 20 a second."""
    limits = Limits(Client.connect(url))
    limits.history = [
        InForce(2, 40.0, 0.0, BEGUN_MS + 60_000),
        InForce(0, 20.0, BEGUN_MS + 60_000),
    ]
    return limits


@pytest.mark.parametrize(
    ("after_ms", "apart_ms", "is_wrong"),
    [(0, 25, False), (0, 24, True), (58_500, 25, False), (70_000, 48, False), (70_000, 47, True)],
)
def test_more_entries_of_a_key_in_a_second_than_its_rate_are_found(
    limits: Limits, after_ms: int, apart_ms: int, is_wrong: bool
) -> None:
    first_ms = BEGUN_MS + after_ms
    entries = [(b"%d-0" % (first_ms + apart_ms * n), {b"record": RECORD}) for n in range(80)]
    others = [(b"%d-1" % (first_ms + n), {b"record": OTHER}) for n in range(500)]
    assert bool(list(too_fast(SHARD, [*entries, *others], limits))) == is_wrong


@pytest.mark.parametrize(("after_ms", "most"), [(0, 2), (59_000, float("inf")), (61_000, float("inf"))])
def test_while_limits_change_the_higher_one_counts(limits: Limits, after_ms: int, most: float) -> None:
    assert limits.most(BEGUN_MS + after_ms, BEGUN_MS + after_ms) == most


def test_a_permit_is_one_too_many_if_older_ones_of_its_key_fill_the_limit() -> None:
    members = [b"k1\x1f1000-0", b"k1\x1f1000-1", b"k1\x1f999-5", b"k2\x1f1001-0", b"k2\x1f1002-0"]
    assert not list(too_many(SHARD, members, (), 3))
    assert [line.split()[0] for line in too_many(SHARD, members, (), 2)] == ["1000-1"]
    assert not list(too_many(SHARD, members, {b"k1\x1f1000-1"}, 2))
    assert len(list(too_many(SHARD, members, (), 1))) == 3


def test_limits_change_until_they_are_told_to_stop(url: str) -> None:
    client = Client.connect(url)
    client.configure(SHARED, key_concurrency=LIMITS[0][0])
    limits = Limits(client)
    limits.start()
    assert eventually(lambda: len(limits.history) == 2 and limits.history[0].until_ms < float("inf"))
    limits.finish()
    assert client.topic(SHARED).settings.key_concurrency == LIMITS[1][0]
