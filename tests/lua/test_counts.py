"""counts.lua: a job counts once, in the state of the group that is least far, and the count of retries mends itself."""

from __future__ import annotations

import pytest

from tests.lua.shard import HOUR_MS, KEEPS_NOTHING, Shard
from tests.records import RECORD
from wheelq.model.dead import DeadFilter
from wheelq.protocol.calls import dead, leader, shard_counts
from wheelq.protocol.calls.shard_counts import GroupCounts, ShardCounts

SPAN_MS = 1 << 20


def count(shard: Shard) -> ShardCounts:
    """What the script says; it changes nothing."""
    before = shard.snapshot()
    found = shard.send(shard_counts.counts(shard.keys))
    assert shard.snapshot() == before
    return found


def states(shard: Shard) -> tuple[int, int, int, int, int]:
    """Waiting, ready, running, retrying, dead."""
    found = count(shard)
    return found[:5]


def test_an_empty_shard(shard: Shard) -> None:
    assert count(shard)[:6] == (0, 0, 0, 0, 0, None)
    assert count(shard).groups == ()


def test_one_job_in_each_state(shard: Shard) -> None:
    [failed, dead, _] = shard.deliver("failed", "dead", "running")
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("waits", due), ("ready", "+0"))
    shard.retry(failed, 2 * HOUR_MS)
    shard.bury(dead)
    found = count(shard)
    assert found[:6] == (1, 1, 1, 1, 1, due)
    assert abs(found.server_us // 1000 - shard.now_ms()) < 60_000


def test_a_job_counts_once_after_any_number_of_attempts(shard: Shard) -> None:
    """The entries of former attempts stay in the stream behind a pending one, and count for nothing."""
    [_, failing] = shard.deliver("slow", "failing")
    for _ in range(3):
        shard.retry(failing)
        assert states(shard) == (0, 0, 1, 1, 0)
        shard.wait_until(shard.now_ms() + 1)
        shard.sweep()
        assert states(shard) == (0, 1, 1, 0, 0)
        [failing] = shard.read("g", "w1")
        assert states(shard) == (0, 0, 2, 0, 0)
    shard.ack([failing])
    assert states(shard) == (0, 0, 1, 0, 0)


def test_entries_kept_by_retention_do_not_count(shard: Shard) -> None:
    entries = shard.deliver("a", "b")
    shard.ack(entries, retention_ms=HOUR_MS)
    assert len(shard.snapshot()["ready"]) == 2
    assert states(shard) == (0, 0, 0, 0, 0)


def test_what_was_added_while_the_clock_was_ahead_is_trimmed_all_the_same(shard: Shard) -> None:
    """Otherwise nothing would be, until the clock gets there again: ids go on from the last."""
    shard.make_group("g")
    shard.redis.xadd(shard.keys.ready, {"id": "x"}, id=f"{shard.now_ms() + 100 * HOUR_MS}-1")
    shard.redis.xreadgroup("g", "w1", {shard.keys.ready: ">"})
    [(first, _)] = shard.redis.xrange(shard.keys.ready)
    shard.redis.xack(shard.keys.ready, "g", first)
    a, b = shard.deliver("a", "b")
    shard.redis.hset(shard.keys.counts, "born", 1)
    shard.ack([a], retention_ms=200 * HOUR_MS)
    assert shard.redis.xlen(shard.keys.ready) == 3
    shard.ack([b], retention_ms=HOUR_MS)
    assert shard.redis.xlen(shard.keys.ready) == 0


def test_without_a_group_all_that_was_promoted_is_ready(shard: Shard) -> None:
    shard.schedule(("a", "+0"), ("b", "+0"))
    assert states(shard) == (0, 2, 0, 0, 0)


@pytest.mark.parametrize("slow_reads", [False, True], ids=["unread", "read"])
def test_with_several_groups_a_job_still_counts_once(shard: Shard, slow_reads: bool) -> None:
    """One group fails again and again while another has the job unread, or runs it."""
    shard.make_group("slow")
    [failing, other] = shard.deliver("a", "b", group="quick")
    if slow_reads:
        [a, _] = shard.read("slow", "s1")
        shard.ack([a], group="slow", consumer="s1")
    for _ in range(3):
        shard.retry(failing, group="quick")
        assert states(shard) == (0, 0, 1, 1, 0), "a waits for its retry; b runs"
        shard.wait_until(shard.now_ms() + 1)
        shard.sweep()
        assert states(shard) == (0, 1, 1, 0, 0), "a is ready again"
        [failing] = shard.read("quick", "w1")
        assert states(shard) == (0, 0, 2, 0, 0)
    shard.ack([failing, other], group="quick")
    assert states(shard) == ((0, 0, 1, 0, 0) if slow_reads else (0, 2, 0, 0, 0))


def test_a_job_that_waits_for_a_retry_in_two_groups_counts_once(shard: Shard) -> None:
    shard.make_group("g1")
    shard.make_group("g2")
    [one] = shard.deliver("a", group="g1")
    [other] = shard.read("g2", "w2")
    shard.retry(one, HOUR_MS, group="g1")
    assert states(shard) == (0, 0, 0, 1, 0)
    shard.retry(other, HOUR_MS, group="g2", consumer="w2")
    assert states(shard) == (0, 0, 0, 1, 0)


def test_beyond_what_is_looked_at_the_number_of_jobs_is_right(shard: Shard) -> None:
    shard.make_group("slow")
    for first in range(0, 1_500, 500):
        shard.schedule(*((f"job-{n}", "+0") for n in range(first, first + 500)))
    shard.make_group("quick")
    [failing, *_] = shard.read("quick", "w1", 700)
    shard.retry(failing, HOUR_MS, group="quick")
    waiting, ready, running, retrying, dead = states(shard)
    assert (waiting, retrying, dead) == (0, 1, 0)
    assert ready + running == 1_499
    assert running == 699


def test_replayed_jobs_wait_for_a_retry(shard: Shard) -> None:
    [entry] = shard.deliver("a")
    shard.bury(entry)
    [found] = shard.send(dead.find(shard.keys, DeadFilter(), dead.DeadRange("-", "+"), 10, newest_first=False)).jobs
    shard.send(dead.replay(shard.keys, [found], shard.now_ms() + HOUR_MS, 0))
    assert states(shard) == (0, 0, 0, 1, 0)


# how far each group is


def test_each_group_tells_what_it_has_yet_to_do(shard: Shard) -> None:
    shard.make_group("idle")
    first, *_ = shard.deliver("a", "b", "c", group="busy")
    [idle, busy] = sorted(count(shard).groups, reverse=True)
    oldest_ms = int(first.entry_id.partition("-")[0])
    assert idle == GroupCounts("idle", 3, False, 0, oldest_ms)
    assert busy == GroupCounts("busy", 0, False, 3, oldest_ms)


def test_the_lag_is_counted_up_to_a_bound_when_the_server_does_not_know_it(shard: Shard) -> None:
    """Old servers never tell it, and none does while a deleted entry lies ahead of the group."""
    shard.make_group("g")
    ids = []
    with shard.redis.pipeline(transaction=False) as pipe:
        for n in range(10_050):
            pipe.xadd(shard.keys.ready, {"id": f"{n}", "due": 1, "attempt": 1, "record": RECORD})
        ids = pipe.execute()
    shard.redis.xdel(shard.keys.ready, ids[-2])
    [found] = count(shard).groups
    assert (found.lag, found.is_more) == (10_000, True)
    shard.read("g", "w1", 9_000)
    [found] = count(shard).groups
    assert (found.lag, found.is_more) == (1_049, False)


# the count of retries


def uncounted(shard: Shard) -> None:
    """As if a program that counts no retries had written them."""
    shard.redis.delete(shard.keys.retries)


def test_retries_that_were_not_counted_are_counted_right_after_their_promotion(shard: Shard) -> None:
    entries = shard.deliver("a", "b")
    for entry in entries:
        shard.retry(entry)
    uncounted(shard)
    assert states(shard) == (2, 0, 0, 0, 0), "they look as if they had never been promoted"
    shard.wait_until(shard.now_ms() + 1)
    shard.sweep()
    assert states(shard) == (0, 2, 0, 0, 0)
    again = shard.read("g", "w1")
    shard.retry(again[0], HOUR_MS)
    assert states(shard) == (0, 0, 1, 1, 0)


def test_a_count_that_is_too_high_ends_with_its_span(shard: Shard) -> None:
    [entry] = shard.deliver("a")
    shard.retry(entry, HOUR_MS)
    due = shard.now_ms()
    shard.redis.hset(shard.keys.retries, str(due // SPAN_MS - 1), 7)  # promoted by a program that does not count
    assert states(shard) == (0, 0, 0, 1, 0)


def test_no_job_waits_no_retry_does(shard: Shard) -> None:
    shard.redis.hset(shard.keys.retries, str(shard.now_ms() // SPAN_MS + 5), 7)
    assert states(shard) == (0, 0, 0, 0, 0)


def test_the_count_is_never_above_what_waits(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    shard.redis.hset(shard.keys.retries, str((shard.now_ms() + 2 * HOUR_MS) // SPAN_MS), 7)
    assert sum(states(shard)) == 1


def test_all_ways_of_promotion_count_retries_out(shard: Shard) -> None:
    entries = shard.deliver("a", "b", "c")
    for entry in entries:
        shard.retry(entry)
    assert shard.snapshot()["retries"] == 3
    shard.wait_until(shard.now_ms() + 1)
    token = shard.lead()
    shard.send(leader.promote(shard.keys, token, 30_000, ["a\x1fg"]))
    assert shard.snapshot()["retries"] == 2
    shard.send(leader.hedge(shard.keys, 0, 1, "1"))
    assert shard.snapshot()["retries"] == 1
    shard.send(leader.sweep(shard.keys, token, 30_000, 500))
    assert "retries" not in shard.snapshot()
    assert KEEPS_NOTHING.retention_ms == 0
