"""promote.lua and sweep.lua: from waiting to ready, exactly once, never early, by the leader only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.lua.shard import HOUR_MS, LEASE_MS, RECORD, TERMS, Shard, entry
from tests.records import SECOND_ATTEMPT
from wheelq.base.metrics import Lateness
from wheelq.model.topic import Topic
from wheelq.protocol.calls import leader, registry
from wheelq.protocol.keys import MEMBER_SEPARATOR


def wait(shard: Shard, *ids: str, since_ms: int = 5) -> int:
    """Let jobs wait that are due since a moment, as if no leader had been there; their due time."""
    due = shard.now_ms() - since_ms
    for id in ids:
        shard.schedule((id, due + HOUR_MS))
    shard.redis.zadd(shard.keys.delayed, dict.fromkeys(ids, due))
    return due


def promote(shard: Shard, token: str, *members: str) -> list[Any]:
    reply = shard.raw(leader.promote(shard.keys, token, LEASE_MS, members))
    return without_times(reply[:1], [*reply[2:3], *reply[4:]]) if reply[0] else reply


def sweep(shard: Shard, token: str, limit: int = 100) -> list[Any]:
    reply = shard.raw(leader.sweep(shard.keys, token, LEASE_MS, limit))
    return without_times(reply[:1], reply[2:]) if reply[0] else reply


def without_times(before: list[Any], after: list[Any]) -> list[Any]:
    """A reply but for the server's time, and with how many were promoted in place of how late each was."""
    (_, *counts), *rest = after
    return [*before, sum(counts), *rest]


def promote_all_of_them(shard: Shard, token: str, limit: int = 100) -> int:
    members = [member.decode() for member in shard.redis.zrange(shard.keys.delayed, 0, -1)]
    return promote(shard, token, *members, "of something else")[1]


def sweep_all_of_them(shard: Shard, token: str, limit: int = 100) -> int:
    return sweep(shard, token, limit)[1]


PAUSED = replace(Topic(), paused=True).terms

both = pytest.mark.parametrize("move", [promote_all_of_them, sweep_all_of_them], ids=["promote", "sweep"])
Move = Callable[[Shard, str], int]


# What all do


@pytest.mark.parametrize("how", ["promote", "sweep", "hedge"])
def test_lateness_of_promotions_is_counted_by_powers_of_two(shard: Shard, how: str) -> None:
    """At place n those that were less than 2**n ms late; and the milliseconds of all together."""
    wait(shard, "a", "b", since_ms=40_000)
    wait(shard, "c", since_ms=70_000)
    token = shard.lead()
    call = {
        "promote": leader.promote(shard.keys, token, LEASE_MS, ["a", "b", "c"]),
        "sweep": leader.sweep(shard.keys, token, LEASE_MS, 10),
        "hedge": leader.hedge(shard.keys, 1, 10, TERMS),
    }[how]
    lateness = shard.send(call).lateness
    assert lateness.counts == (*[0] * 16, 2, 1)
    assert 2 * 40_000 + 70_000 <= lateness.total_ms < 240_000
    assert shard.send(leader.sweep(shard.keys, token, LEASE_MS, 10)).lateness == Lateness()


# What both do


@both
def test_a_due_job_goes_to_the_stream_and_points_there(shard: Shard, move: Move) -> None:
    due = wait(shard, "a", "b")
    token = shard.lead()
    before = shard.snapshot()
    assert before == {
        "delayed": {"a": due, "b": due},
        "jobs": {"a": RECORD, "b": RECORD},
        "lease": token,
        "epoch": before["epoch"],
    }
    assert move(shard, token) == 2
    assert shard.snapshot() == {
        "jobs": {"a": "e1", "b": "e2"},
        "ready": {"e1": entry("a", due), "e2": entry("b", due)},
        "lease": token,
        "epoch": before["epoch"],
    }


@both
def test_a_job_that_is_not_due_keeps_waiting(shard: Shard, move: Move) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    token = shard.lead()
    before = shard.snapshot()
    assert move(shard, token) == 0
    assert shard.snapshot() == before


@both
def test_a_job_is_never_promoted_before_the_servers_clock_has_reached_its_time(
    shard: Shard, move: Move, token: str
) -> None:
    """Asked for again and again around the due time, by the millisecond."""
    for n in range(10):
        shard.schedule((f"job-{n}", f"+{HOUR_MS}"))
        shard.redis.zadd(shard.keys.delayed, {f"job-{n}": shard.now_ms() + 3})
        while not move(shard, token):
            pass
    assert shard.redis.xlen(shard.keys.ready) == 10
    for entry_id, fields in shard.redis.xrange(shard.keys.ready):
        assert int(entry_id.partition(b"-")[0]) >= int(fields[b"due"])


@both
def test_promoting_again_promotes_nothing(shard: Shard, move: Move) -> None:
    wait(shard, "a")
    token = shard.lead()
    assert move(shard, token) == 1
    before = shard.snapshot()
    assert move(shard, token) == 0
    assert promote(shard, token, "a") == [1, 0]
    assert shard.snapshot() == before


@both
def test_a_retry_is_promoted_with_its_group_and_attempt(shard: Shard, move: Move) -> None:
    """`jobs` goes on pointing at the first entry, so that the id stays taken; the retry has a pointer of its own."""
    [a] = shard.deliver("a")
    due = shard.retry(a)
    token = shard.lead()
    before = shard.snapshot()
    member = f"a{MEMBER_SEPARATOR}g"
    assert before["delayed"] == {member: due}
    assert before["jobs"] == {"a": "e1", member: SECOND_ATTEMPT}
    assert move(shard, token) == 1
    del before["delayed"], before["retries"]
    again = entry("a", due, attempt=2, record=SECOND_ATTEMPT, group="g")
    assert shard.snapshot() == before | {
        "jobs": {"a": "e1", member: "e2"},
        "ready": {"e1": entry("a", a.due_ms), "e2": again},
    }


@both
def test_a_job_without_a_record_is_buried_and_does_not_block_the_others(shard: Shard, move: Move) -> None:
    due = wait(shard, "a", "b", "c")
    shard.redis.hdel(shard.keys.jobs, "b")
    token = shard.lead()
    assert move(shard, token) == 2
    after = shard.snapshot()
    [dead] = after.pop("dead")
    assert dead.pop("error")
    assert dead == {"id": "b", "due": due, "attempt": 0, "group": "", "reason": "no record", "record": b""}
    assert after == {
        "jobs": {"a": "e1", "c": "e2"},
        "ready": {"e1": entry("a", due), "e2": entry("c", due)},
        "lease": token,
        "epoch": after["epoch"],
    }


@both
def test_a_job_without_a_record_that_cannot_be_buried_keeps_waiting_and_the_others_are_promoted_once(
    shard: Shard, move: Move
) -> None:
    """A dead key of a wrong type: the script ended before it removed from `delayed` what it had promoted."""
    due = wait(shard, "a", "b", "c")
    shard.redis.hdel(shard.keys.jobs, "b")
    shard.redis.set(shard.keys.dead, "not a stream")
    token = shard.lead()
    assert move(shard, token) == 2
    assert move(shard, token) == 0
    assert shard.redis.zrange(shard.keys.delayed, 0, -1) == [b"b"]
    shard.redis.delete(shard.keys.dead)
    assert move(shard, token) == 0
    after = shard.snapshot()
    assert [dead["id"] for dead in after["dead"]] == ["b"]
    assert after["ready"] == {"e1": entry("a", due), "e2": entry("c", due)}


@both
def test_a_job_that_the_stream_refuses_keeps_waiting(shard: Shard, move: Move) -> None:
    """A ready key of a wrong type makes every XADD fail: nothing is lost, and mended it goes on."""
    due = wait(shard, "a", "b")
    token = shard.lead()
    before = shard.snapshot()
    shard.redis.set(shard.keys.ready, "not a stream")
    assert move(shard, token) == 0
    shard.redis.delete(shard.keys.ready)
    assert shard.snapshot() == before
    assert move(shard, token) == 2
    assert shard.snapshot()["ready"] == {"e1": entry("a", due), "e2": entry("b", due)}


@both
def test_jobs_promoted_before_the_stream_refused_are_not_promoted_twice(shard: Shard, move: Move) -> None:
    """The stream's last id is the last there is: one more entry goes in, the next is refused half-way through."""
    wait(shard, "a", "b")
    token = shard.lead()
    shard.redis.xadd(shard.keys.ready, {"id": "z", "due": 0}, id=f"{2**64 - 1}-{2**64 - 2}")
    assert move(shard, token) == 1
    after = shard.snapshot()
    assert list(after["delayed"]) == ["b"]
    assert after["jobs"]["b"] == RECORD
    assert [e["id"] for e in after["ready"].values()] == ["z", "a"]
    assert move(shard, token) == 0
    assert shard.snapshot() == after


@both
@pytest.mark.parametrize("lease", ["other:5:run:9", None])
def test_nobody_but_the_leader_promotes(shard: Shard, move: Move, lease: str | None) -> None:
    wait(shard, "a")
    token = shard.lead()
    if lease:
        shard.redis.set(shard.keys.lease, lease, px=10_000)
    else:
        shard.redis.delete(shard.keys.lease)
    before = shard.snapshot()
    assert promote(shard, token, "a") == [0]
    assert sweep(shard, token) == [0]
    assert shard.snapshot() == before
    assert shard.redis.pttl(shard.keys.lease) <= 10_000


@both
def test_promoting_prolongs_the_lease(shard: Shard, move: Move) -> None:
    token = shard.lead(lease_ms=20_000)
    move(shard, token)
    assert shard.redis.pttl(shard.keys.lease) > 20_000


# promote


def test_promote_passes_over_what_was_cancelled(shard: Shard) -> None:
    due = wait(shard, "a")
    token = shard.lead()
    assert promote(shard, token, "cancelled", "a") == [1, 1]
    after = shard.snapshot()
    assert after == {"jobs": {"a": "e1"}, "ready": {"e1": entry("a", due)}, "lease": token, "epoch": after["epoch"]}


def test_promote_tells_which_members_wait_for_a_later_time(shard: Shard) -> None:
    later = shard.now_ms() + HOUR_MS
    wait(shard, "a")
    shard.schedule(("moved", later))
    assert promote(shard, shard.lead(), "moved", "a") == [1, 1, b"moved", str(later).encode()]
    assert shard.snapshot()["delayed"] == {"moved": later}


def test_promote_touches_only_what_was_named(shard: Shard) -> None:
    due = wait(shard, "a", "b")
    assert promote(shard, shard.lead(), "a") == [1, 1]
    assert shard.snapshot()["delayed"] == {"b": due}


def test_a_member_named_twice_is_promoted_once(shard: Shard) -> None:
    """The wheel is only a hint: a wrong one may cost lateness, never a second promotion."""
    due = wait(shard, "a")
    assert promote(shard, shard.lead(), "a", "a") == [1, 1]
    assert shard.snapshot()["ready"] == {"e1": entry("a", due)}


def test_promote_takes_five_hundred(shard: Shard) -> None:
    ids = [f"job-{n:03}" for n in range(500)]
    wait(shard, *ids)
    assert promote(shard, shard.lead(), *ids) == [1, 500]
    after = shard.snapshot()
    assert [e["id"] for e in after["ready"].values()] == ids
    assert "delayed" not in after


# sweep


def test_sweep_takes_the_earliest_first_and_tells_that_there_are_more(shard: Shard) -> None:
    now = shard.now_ms()
    wait(shard, "a", "b", "c")
    shard.redis.zadd(shard.keys.delayed, {"a": now - 1, "b": now - 3, "c": now - 2})
    token = shard.lead()
    assert sweep(shard, token, limit=2) == [1, 2, 1]
    assert shard.snapshot()["delayed"] == {"a": now - 1}
    assert sweep(shard, token, limit=2) == [1, 1, 0]
    assert [e["id"] for e in shard.snapshot()["ready"].values()] == ["b", "c", "a"]


def test_sweep_of_nothing_changes_nothing(shard: Shard, token: str) -> None:
    before = shard.snapshot()
    assert sweep(shard, token) == [1, 0, 0]
    assert shard.snapshot() == before


def test_sweep_takes_five_hundred(shard: Shard) -> None:
    ids = [f"job-{n:03}" for n in range(501)]
    wait(shard, *ids)
    token = shard.lead()
    assert sweep(shard, token, limit=500) == [1, 500, 1]
    assert len(shard.snapshot()["delayed"]) == 1


def test_sweep_tells_that_something_is_left_when_the_stream_refuses(shard: Shard) -> None:
    """A leader that is told "no more" may sleep for a minute."""
    wait(shard, "a")
    token = shard.lead()
    shard.redis.set(shard.keys.ready, "not a stream")
    assert sweep(shard, token) == [1, 0, 1]


# hedge


def hedge(shard: Shard, hedge_ms: int = 100, limit: int = 100) -> list[Any]:
    return without_times([], shard.raw(leader.hedge(shard.keys, hedge_ms, limit, TERMS))[1:])


def test_a_standby_promotes_what_has_been_overdue_for_a_while_without_a_lease(shard: Shard) -> None:
    due = wait(shard, "a", since_ms=200)
    shard.redis.set(shard.keys.lease, "other:5:run:9")
    assert hedge(shard) == [1, 0]
    assert shard.snapshot() == {"jobs": {"a": "e1"}, "ready": {"e1": entry("a", due)}, "lease": "other:5:run:9"}
    before = shard.snapshot()
    assert hedge(shard) == [0, 0]
    assert shard.snapshot() == before


def test_a_standby_leaves_to_the_leader_what_has_just_fallen_due(shard: Shard) -> None:
    wait(shard, "a", since_ms=5)
    before = shard.snapshot()
    assert hedge(shard, hedge_ms=60_000) == [0, 0]
    assert shard.snapshot() == before


@pytest.mark.parametrize("terms", [TERMS, PAUSED], ids=["has not heard of it", "has heard of it just now"])
def test_a_standby_promotes_nothing_while_the_topic_is_paused(shard: Shard, terms: str) -> None:
    wait(shard, "a", since_ms=500)
    shard.send(registry.fence(shard.keys, PAUSED, 1))
    shard.send(leader.hedge(shard.keys, 100, 100, terms))
    assert (shard.redis.zcard(shard.keys.delayed), shard.redis.xlen(shard.keys.ready)) == (1, 0)


def test_a_standby_that_steps_in_promotes_everything_due_and_nothing_else(shard: Shard) -> None:
    """The first is overdue for long enough: then the others that are due need not wait for it."""
    now = shard.now_ms()
    wait(shard, "late", "due", "later")
    shard.redis.zadd(shard.keys.delayed, {"late": now - 500, "due": now - 1, "later": now + HOUR_MS})
    assert hedge(shard) == [2, 0]
    assert shard.snapshot()["delayed"] == {"later": now + HOUR_MS}


def test_a_standby_that_steps_in_is_told_that_there_are_more(shard: Shard) -> None:
    wait(shard, "a", "b", "c", since_ms=500)
    assert hedge(shard, limit=2) == [2, 1]
    assert hedge(shard, limit=2) == [1, 0]


def test_a_standby_and_a_leader_cannot_both_promote_a_job(shard: Shard) -> None:
    wait(shard, "a", since_ms=500)
    token = shard.lead()
    assert hedge(shard) == [1, 0]
    assert promote(shard, token, "a") == [1, 0]
    assert sweep(shard, token) == [1, 0, 0]
    assert len(shard.snapshot()["ready"]) == 1


def test_a_standby_loses_nothing_that_the_stream_refuses(shard: Shard) -> None:
    due = wait(shard, "a", since_ms=500)
    shard.redis.set(shard.keys.ready, "not a stream")
    assert hedge(shard)[0] == 0
    shard.redis.delete(shard.keys.ready)
    assert shard.snapshot() == {"delayed": {"a": due}, "jobs": {"a": RECORD}}
