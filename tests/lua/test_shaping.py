"""sweep and hedge of a topic that holds promotion back; priorities; shards that take no more."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from tests.lua.shard import HOUR_MS, LEASE_MS, RECORD, Shard
from wheelq.model.topic import Shaping, Topic
from wheelq.protocol.calls import leader, producer, registry, shard_counts

FULL = 5


def sweep(shard: Shard, token: str, shaping: Shaping | None, limit: int = 500) -> leader.Swept:
    return shard.send(leader.sweep(shard.keys, token, LEASE_MS, limit, shaping))


def make_due(shard: Shard, *ids: str) -> int:
    """Jobs that wait and are due, without a leader's doing."""
    due = shard.now_ms() - 1
    shard.schedule(*((id, due + HOUR_MS) for id in ids))
    shard.redis.zadd(shard.keys.delayed, dict.fromkeys(ids, due))
    return due


# Rate


def test_no_more_are_promoted_than_a_rate_and_its_burst_allow(shard: Shard) -> None:
    """Whoever sweeps, whenever: leaders in turn, standbys, and sweeps that find nothing to do."""
    shaping = Shaping(interval_us=5_000, burst=10, most_ready=0)
    terms = replace(Topic(), max_rate=200.0).terms
    ids = [f"job-{n:03}" for n in range(300)]
    make_due(shard, *ids)
    shard.send(registry.fence(shard.keys, terms, 1))
    turned_ms, steps = list[int](), list[tuple[int, int, int]]()

    def step(promote: Callable[[], object]) -> None:
        began_ms, before = shard.now_ms(), shard.redis.xlen(shard.keys.ready)
        promote()
        steps.append((began_ms, shard.now_ms(), shard.redis.xlen(shard.keys.ready) - before))

    for turn in range(60):
        turned_ms.append(shard.now_ms())
        token = shard.send(leader.acquire(shard.keys, f"node-{turn % 3}", "r:1", LEASE_MS, terms)).token
        step(partial(sweep, shard, token, shaping, random.choice((1, 3, 500))))
        step(partial(shard.send, leader.hedge(shard.keys, 0, 500, terms, shaping)))
        shard.wait_until(shard.now_ms() + random.choice((1, 5, 20)))
        shard.redis.delete(shard.keys.lease)
    allowed = sum(min(10, (after - before) // 5) for before, after in pairwise(turned_ms))
    assert sum(promoted for _, _, promoted in steps) >= min(300, allowed * 0.5), "and no fewer than half of that"
    for n, (began_ms, _, _) in enumerate(steps):
        together = 0
        for _, ended_ms, promoted in steps[n:]:
            together += promoted
            assert together <= (ended_ms - began_ms + 1) / 5 + 10


def test_a_clock_that_was_set_back_does_not_stop_a_rate(shard: Shard) -> None:
    token, shaping = shard.lead(), Shaping(interval_us=60_000_000, burst=2, most_ready=0)
    make_due(shard, "a", "b", "c")
    shard.redis.set(shard.keys.rate, (shard.now_ms() + HOUR_MS) * 1_000)
    assert sweep(shard, token, shaping).promoted == 2
    assert sweep(shard, token, shaping).promoted == 0


def test_a_rate_that_was_not_used_for_long_allows_one_burst(shard: Shard, token: str) -> None:
    """And not all the jobs that it could have promoted in the meantime."""
    make_due(shard, "a", "b", "c", "d")
    shard.redis.set(shard.keys.rate, (shard.now_ms() - HOUR_MS) * 1_000)
    shaping = Shaping(interval_us=60_000_000, burst=2, most_ready=0)
    assert sweep(shard, token, shaping).promoted == 2
    assert sweep(shard, token, shaping).promoted == 0


def test_a_rate_says_when_to_come_again(shard: Shard, token: str) -> None:
    make_due(shard, "a", "b", "c")
    swept = sweep(shard, token, Shaping(60_000_000, 2, 0))
    assert (swept.promoted, swept.is_partial) == (2, True)
    assert 59_000 < swept.wait_ms <= 60_000
    swept = sweep(shard, token, Shaping(60_000_000, 2, 0))
    assert (swept.promoted, swept.is_partial) == (0, True)
    assert sorted(shard.snapshot()["delayed"]) == ["c"]


# Unread


def test_no_more_are_promoted_than_may_be_unread(shard: Shard) -> None:
    """By the group that is furthest behind; with no group yet, all that are there."""
    token, shaping = shard.lead(), Shaping(0, 0, 4)
    make_due(shard, *(f"job-{n}" for n in range(20)))
    swept = sweep(shard, token, shaping)
    assert (swept.promoted, swept.is_partial) == (4, True)
    swept = sweep(shard, token, shaping)
    assert (swept.promoted, swept.is_partial, swept.wait_ms) == (0, True, 20)
    shard.make_group("g")
    shard.make_group("h")
    entries = shard.read("g", "w", 3)
    assert sweep(shard, token, shaping).promoted == 0, "h has read nothing"
    shard.read("h", "w", 2)
    assert sweep(shard, token, shaping).promoted == 2
    shard.read("h", "w", 100)
    assert sweep(shard, token, shaping).promoted == 1, "g has 3 unread"
    shard.ack(entries, "g", "w")
    assert sweep(shard, token, shaping).promoted == 0, "acks make no room: what is read counts no more"


# Priority


@pytest.mark.parametrize("how", ["sweep", "promote", "hedge"])
def test_high_priority_goes_first_among_jobs_due_together_and_none_is_early(shard: Shard, how: str, token: str) -> None:
    due = shard.now_ms() + HOUR_MS
    suffixes = {"n1": "", "l1": "l", "h1": "h", "n2": "", "h2": "h", "l2": "l"}
    new = [(id, f"{due}{suffix}", RECORD) for id, suffix in suffixes.items()]
    new += [("later", f"{due + 1}h", RECORD), ("sooner", f"{due - 1}l", RECORD)]
    *flat, _ = shard.raw(producer.schedule(shard.keys, new, "keep", "1"))
    assert flat[1::2] == [due] * 6 + [due + 1, due - 1]
    sooner_ms = due - shard.now_ms() - 40
    for id, _, _ in new:
        shard.redis.zincrby(shard.keys.delayed, -sooner_ms, id)
    due -= sooner_ms
    opened = shard.send(leader.open_window(shard.keys, token, LEASE_MS, None, 2_000, 100, 60_000))
    assert opened.jobs == [
        ("sooner", due - 1),
        ("h1", due),
        ("h2", due),
        ("n1", due),
        ("n2", due),
        ("l1", due),
        ("l2", due),
        ("later", due + 1),
    ]
    assert shard.send(shard_counts.counts(shard.keys)).first_due_ms == due - 1
    while shard.now_ms() <= due:
        pass
    if how == "promote":
        shard.send(leader.promote(shard.keys, token, LEASE_MS, [*suffixes, "later", "sooner"]))
    elif how == "sweep":
        sweep(shard, token, None)
    else:
        shard.send(leader.hedge(shard.keys, 0, 500, "1"))
    ready = shard.snapshot()["ready"].values()
    assert [entry["id"] for entry in ready][:7] == ["sooner", "h1", "h2", "n1", "n2", "l1", "l2"]
    assert [entry["due"] for entry in ready][:7] == [due - 1] + [due] * 6
    promoted = [int(id.split(b"-")[0]) for id, _ in shard.redis.xrange(shard.keys.ready)]
    assert all(moment >= entry["due"] for moment, entry in zip(promoted, ready, strict=True))


def test_a_low_priority_job_is_due_no_later_and_a_high_one_no_earlier_than_its_due_time(
    shard: Shard, token: str
) -> None:
    due = shard.now_ms() + 30
    shard.raw(producer.schedule(shard.keys, [("h", f"{due}h", RECORD), ("l", f"{due}l", RECORD)], "keep", "1"))
    while True:
        sweep(shard, token, None)
        if "ready" in shard.snapshot():
            break
    moments = [int(id.split(b"-")[0]) for id, _ in shard.redis.xrange(shard.keys.ready)]
    assert len(moments) == 2, "both in the very same call"
    assert min(moments) >= due


def test_a_rescheduled_job_keeps_its_priority(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.raw(producer.schedule(shard.keys, [("h", f"{due}h", RECORD), ("n", f"{due}", RECORD)], "keep", "1"))
    assert shard.raw(producer.reschedule(shard.keys, "h", str(due + 9))) == [1, due + 9]
    assert shard.raw(producer.reschedule(shard.keys, "n", str(due + 9))) == [1, due + 9]
    assert shard.redis.zrange(shard.keys.delayed, 0, -1, withscores=True) == [(b"h", due + 8.75), (b"n", due + 9)]


# Room


def test_a_shard_refuses_new_jobs_when_as_many_wait_as_may(shard: Shard) -> None:
    """Whole jobs, in order; what is there already is answered as ever, and what is due at once needs no room."""
    terms = Topic(max_pending=3).terms
    due, now = str(shard.now_ms() + HOUR_MS), str(shard.now_ms())

    def schedule(*jobs: tuple[str, str], on_duplicate: str = "keep") -> list[int]:
        new = [(id, when, RECORD + id.encode()) for id, when in jobs]
        return shard.raw(producer.schedule(shard.keys, new, on_duplicate, terms))[: 2 * len(new) : 2]  # type: ignore[arg-type]

    assert schedule(("a", due), ("b", due)) == [1, 1]
    assert schedule(("c", due), ("d", due), ("now", now), ("e", due)) == [1, FULL, 1, FULL]
    before = shard.snapshot()
    assert schedule(("a", due), ("d", due)) == [1, FULL], "a repeated call"
    assert shard.snapshot() == before
    assert schedule(("a", str(int(due) + 5)), on_duplicate="replace") == [1]
    shard.send(producer.cancel(shard.keys, "a"))
    assert schedule(("d", due), ("e", due)) == [1, FULL]
    assert sorted(shard.snapshot()["delayed"]) == ["b", "c", "d"]
