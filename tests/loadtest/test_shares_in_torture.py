"""What torture judges of limits per key."""

from __future__ import annotations

import pytest

from loadtest.torture.shares import KEYS, RATE, SHARED, of_a_key, too_fast
from wheelq import JobSpec
from wheelq.protocol import codec
from wheelq.protocol.keys import Keys

SHARD = Keys().shard(SHARED, 0)
RECORD = codec.encode(None, None, 1_000, codec.Parts(partition_key="k1"))
OTHER = codec.encode(None, None, 1_000)


def test_jobs_of_its_topic_have_one_of_few_keys_and_the_same_when_they_are_asked_for_again() -> None:
    specs = [JobSpec({"n": n}, 0, key=f"key-{n}") for n in range(100)]
    keys = [of_a_key(SHARED, spec).partition_key for spec in specs]
    assert len(set(keys)) == KEYS
    assert [of_a_key(SHARED, spec).partition_key for spec in specs] == keys
    assert of_a_key("another", specs[0]) == specs[0]


@pytest.mark.parametrize(("apart_ms", "is_wrong"), [(25, False), (24, True)])
def test_more_entries_of_a_key_in_a_second_than_its_rate_are_found(apart_ms: int, is_wrong: bool) -> None:
    entries = [(b"%d-0" % (1_000_000 + apart_ms * n), {b"record": RECORD}) for n in range(2 * int(RATE))]
    others = [(b"%d-1" % (1_000_000 + n), {b"record": OTHER}) for n in range(500)]
    assert bool(list(too_fast(SHARD, [*entries, *others]))) == is_wrong
