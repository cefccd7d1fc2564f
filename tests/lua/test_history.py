"""rerun.lua, tidy.lua, and where make_group.lua lets a group start: what was fired before."""

from __future__ import annotations

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Shard, entry
from tests.records import OTHER, unstamped
from wheelq.errors import NotLeader
from wheelq.protocol import codec
from wheelq.protocol.calls import bulk, leader, state, worker
from wheelq.protocol.calls.bulk import RerunPart
from wheelq.protocol.calls.worker import Entry


def rerun(shard: Shard, group: str = "g", name: str = "r", since_ms: int = 0, most: int = 100) -> RerunPart | None:
    return shard.send(bulk.rerun(shard.keys, name, group, since_ms, None, most))


def finish(shard: Shard, *ids: str, group: str = "g") -> None:
    """Jobs that the group has finished, and the stream keeps."""
    shard.ack(shard.deliver(*ids, group=group), group=group, retention_ms=HOUR_MS)


# rerun


def test_a_fired_job_is_fired_again_for_one_group(shard: Shard) -> None:
    """As an entry of its own, due now, that concerns this group only; the stream keeps the first one."""
    finish(shard, "a")
    before = shard.now_ms()
    assert rerun(shard) == (True, 1, 0)
    first, second = shard.snapshot()["ready"].values()
    assert first == entry("a", first["due"])
    assert second == entry("a", second["due"], group="g")
    assert before <= second["due"] <= shard.now_ms()
    assert "jobs" not in shard.snapshot()
    [again] = shard.read("g", "w1")
    assert (again.id, again.attempt, unstamped(again.record), again.group) == ("a", 1, RECORD, "g")
    assert shard.ack([again], retention_ms=HOUR_MS) == 1
    assert "jobs" not in shard.snapshot()


def test_a_repeated_call_goes_on_behind_what_was_done(shard: Shard) -> None:
    finish(shard, "a", "b", "c")
    assert rerun(shard, most=2) == (False, 2, 0)
    assert rerun(shard, most=2) == (True, 3, 0)
    assert rerun(shard, most=2) == (True, 3, 0)
    assert [e["id"] for e in shard.snapshot()["ready"].values()] == ["a", "b", "c", "a", "b", "c"]
    assert shard.snapshot()["replays"] == ["r"]
    assert 0 < shard.redis.pttl(shard.keys.replays) <= bulk.REMEMBERED_MS


def test_jobs_fired_after_the_first_call_are_not_part_of_the_rerun(shard: Shard) -> None:
    finish(shard, "a", "b")
    assert rerun(shard, most=1) == (False, 1, 0)
    shard.wait_until(shard.now_ms() + 2)
    assert shard.ack(shard.read("g", "w1"), retention_ms=HOUR_MS) == 1
    finish(shard, "c")
    assert rerun(shard) == (True, 2, 0)


def test_another_rerun_leaves_out_what_a_rerun_added(shard: Shard) -> None:
    finish(shard, "a")
    rerun(shard)
    shard.ack(shard.read("g", "w1"), retention_ms=HOUR_MS)
    assert rerun(shard, name="another") == (True, 1, 0)


def test_a_rerun_leaves_out_unfinished_jobs(shard: Shard) -> None:
    """Unread, running, or waiting for a retry: it runs anyway."""
    finish(shard, "done")
    [retried] = shard.deliver("retried")
    shard.retry(retried, HOUR_MS)
    shard.deliver("running")
    shard.schedule(("unread", "+0"))
    assert rerun(shard) == (True, 1, 3)
    assert [e["id"] for e in shard.snapshot()["ready"].values() if "group" in e] == ["done"]


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_finished_job_runs_again_also_while_another_with_its_id_waits_for_a_retry(
    shard: Shard, is_promoted: bool
) -> None:
    finish(shard, "a")
    shard.schedule(("a", "+0"), record=codec.with_life(RECORD, b"new life"))
    [other] = shard.read("g", "w1")
    due_ms = shard.retry(other, 0 if is_promoted else HOUR_MS)
    if is_promoted:
        shard.wait_until(due_ms)
        shard.sweep()
    assert rerun(shard) == (True, 1, 1)


def test_only_what_was_fired_in_time_runs_again(shard: Shard) -> None:
    finish(shard, "early")
    since_ms = shard.now_ms() + 2
    shard.wait_until(since_ms)
    finish(shard, "late")
    assert rerun(shard, since_ms=since_ms) == (True, 1, 0)
    assert [e["id"] for e in shard.snapshot()["ready"].values() if "group" in e] == ["late"]


def test_a_group_that_is_not_here_reruns_nothing(shard: Shard) -> None:
    assert rerun(shard) is None
    finish(shard, "a")
    before = shard.snapshot()
    assert rerun(shard, group="nobody") is None
    assert shard.snapshot() == before


def test_a_rerun_job_that_fails_is_retried_in_its_group(shard: Shard) -> None:
    finish(shard, "a")
    rerun(shard)
    [again] = shard.read("g", "w1")
    shard.retry(again)
    shard.send(leader.sweep(shard.keys, shard.lead(), 30_000, 500))
    [third] = shard.read("g", "w1")
    assert (third.attempt, third.group) == (2, "g")
    shard.ack([third], retention_ms=HOUR_MS)
    assert "jobs" not in shard.snapshot()


def fail_again(shard: Shard) -> Entry:
    """The rerun of `a` fails once; the delivery of its retry."""
    assert rerun(shard) == (True, 1, 0)
    [again] = shard.read("g", "w1")
    shard.wait_until(shard.retry(again))
    shard.sweep()
    [retried] = shard.read("g", "w1")
    return retried


def test_a_retried_rerun_leaves_a_waiting_new_job_alone(shard: Shard) -> None:
    finish(shard, "a")
    new = OTHER
    shard.schedule(("a", f"+{HOUR_MS}"), record=new)
    assert shard.ack([fail_again(shard)], retention_ms=HOUR_MS) == 1
    assert shard.snapshot()["jobs"] == {"a": new}
    assert list(shard.snapshot()["delayed"]) == ["a"]


@pytest.mark.parametrize("is_read", [False, True])
def test_a_retried_rerun_leaves_an_unfinished_new_job_alone(shard: Shard, is_read: bool) -> None:
    finish(shard, "a")
    retried = fail_again(shard)
    shard.schedule(("a", "+0"))
    news = shard.read("g", "w1") if is_read else []
    assert shard.ack([retried], retention_ms=HOUR_MS) == 1
    assert list(shard.snapshot()["jobs"]) == ["a"]
    assert shard.ack(news or shard.read("g", "w1"), retention_ms=HOUR_MS) == 1
    assert "jobs" not in shard.snapshot()


# tidy


def tidy(shard: Shard, retention_ms: int, keep_done_ms: int = 0) -> leader.Tidied:
    answer = shard.send(leader.tidy(shard.keys, shard.lead(), 30_000, retention_ms, keep_done_ms))
    shard.redis.delete(shard.keys.lease, shard.keys.epoch)
    return answer


def test_a_stream_on_which_nothing_is_acked_any_more_is_trimmed_in_time(shard: Shard) -> None:
    finish(shard, "a", "b")
    assert not tidy(shard, HOUR_MS).is_partial
    assert len(shard.snapshot()["ready"]) == 2
    shard.wait_until(shard.now_ms() + 3)
    assert not tidy(shard, 1).is_partial
    assert shard.snapshot()["ready"] == {}


def test_tidying_leaves_the_entries_of_a_new_shard(shard: Shard) -> None:
    shard.ack(shard.deliver("a"), retention_ms=HOUR_MS)
    shard.redis.hset(shard.keys.counts, "born", f"{shard.now_ms()} ms")
    tidy(shard, 0)
    assert shard.redis.xlen(shard.keys.ready) == 1
    shard.redis.hset(shard.keys.counts, "born", f"{shard.now_ms() - 60_000} ms")
    tidy(shard, 0)
    assert shard.redis.xlen(shard.keys.ready) == 0


def test_tidying_leaves_what_some_group_has_not_acked(shard: Shard) -> None:
    shard.make_group("h")
    finish(shard, "a")
    shard.wait_until(shard.now_ms() + 3)
    tidy(shard, 1)
    assert [e["id"] for e in shard.snapshot()["ready"].values()] == ["a"]


def test_tidying_takes_whole_nodes_of_a_long_stream_too(shard: Shard) -> None:
    for start in range(0, 1_050, 100):
        finish(shard, *(f"job-{start + n}" for n in range(100)))
    shard.wait_until(shard.now_ms() + 3)
    tidy(shard, 1)
    assert shard.snapshot()["ready"] == {}


def test_finished_jobs_are_forgotten_in_time_also_when_none_follow(shard: Shard, a: Entry) -> None:
    shard.send(state.conclude(shard.keys, "g", "w1", 0, HOUR_MS, [state.Concluded(a.entry_id, "a", 1, b"")]))
    tidy(shard, 0, HOUR_MS)
    assert shard.snapshot()["done"] == ["a"]
    shard.wait_until(shard.now_ms() + 3)
    tidy(shard, 0, 1)
    assert "done" not in shard.snapshot()
    assert "ended" not in shard.snapshot()


def test_only_the_leader_tidies(shard: Shard) -> None:
    with pytest.raises(NotLeader):
        shard.send(leader.tidy(shard.keys, "nobody", 30_000, 1, 1))


def test_an_empty_shard_is_tidy(shard: Shard) -> None:
    assert not tidy(shard, 1, 1).is_partial


# make_group


def test_a_later_group_starts_with_what_the_stream_keeps_or_behind_it(shard: Shard) -> None:
    finish(shard, "a")
    assert shard.send(worker.make_group(shard.keys, "all", "beginning"))
    assert shard.send(worker.make_group(shard.keys, "new", "now"))
    shard.schedule(("b", "+0"))
    assert [e.id for e in shard.read("all", "w")] == ["a", "b"]
    assert [e.id for e in shard.read("new", "w")] == ["b"]


def test_the_first_group_of_all_gets_what_was_waiting_for_one(shard: Shard) -> None:
    shard.schedule(("a", "+0"))
    assert shard.send(worker.make_group(shard.keys, "new", "now"))
    assert [e.id for e in shard.read("new", "w")] == ["a"]
