"""open_window.lua: the horizon moves, and what is due up to it is read, in one step."""

from __future__ import annotations

import pytest

from tests.lua.shard import HOUR_MS, LEASE_MS, RECORD, Ear, Shard
from wheelq.protocol.calls import leader
from wheelq.protocol.calls.leader import Opened

WINDOW_MS = 100_000
IDLE_MS = 600_000


def open_window(shard: Shard, token: str, loaded_to: int | None = None, limit: int = 100) -> Opened:
    call = leader.open_window(shard.keys, token, LEASE_MS, loaded_to, WINDOW_MS, limit, IDLE_MS)
    opened = shard.send(call)
    assert shard.snapshot()["horizon"] == opened.horizon_ms, "the answer is what stands in Redis"
    return opened


def now_of(opened: Opened) -> int:
    return opened.server_us // 1000


def test_jobs_due_within_the_window_are_read_in_order(shard: Shard) -> None:
    now = shard.now_ms()
    shard.schedule(("far", now + HOUR_MS), ("second", now + 21_000), ("first", now + 20_000))
    token = shard.lead()
    before = shard.snapshot()
    opened = open_window(shard, token)
    assert opened.jobs == [("first", now + 20_000), ("second", now + 21_000)]
    assert not opened.is_partial
    assert opened.horizon_ms == now_of(opened) + WINDOW_MS
    assert shard.snapshot() == before | {"horizon": opened.horizon_ms}, "reading takes nothing away"


def test_overdue_jobs_are_read_too(shard: Shard) -> None:
    now = shard.now_ms()
    shard.schedule(("a", now + HOUR_MS))
    shard.redis.zadd(shard.keys.delayed, {"a": now - HOUR_MS})
    assert open_window(shard, shard.lead()).jobs == [("a", now - HOUR_MS)]


def test_opening_prolongs_the_lease(shard: Shard) -> None:
    token = shard.lead(lease_ms=20_000)
    open_window(shard, token)
    assert shard.redis.pttl(shard.keys.lease) > 20_000


def test_a_window_that_moves_on_reads_only_what_is_new(shard: Shard) -> None:
    now = shard.now_ms()
    token = shard.lead()
    shard.schedule(("loaded", now + 20_000), ("new", now + WINDOW_MS - 100))
    shard.redis.set(shard.keys.horizon, now + 20_000)
    opened = open_window(shard, token, loaded_to=now + 20_000)
    assert opened.jobs == [("new", now + WINDOW_MS - 100)]


def test_if_another_leader_has_moved_the_horizon_everything_near_is_read_again(shard: Shard) -> None:
    now = shard.now_ms()
    token = shard.lead()
    shard.schedule(("loaded", now + 19_000), ("new", now + WINDOW_MS - 100))
    shard.redis.set(shard.keys.horizon, now + 20_001)
    opened = open_window(shard, token, loaded_to=now + 20_000)
    assert [member for member, _ in opened.jobs] == ["loaded", "new"]


def test_if_the_horizon_was_lost_everything_near_is_read_again(shard: Shard) -> None:
    now = shard.now_ms()
    token = shard.lead()
    shard.schedule(("loaded", now + 19_000))
    opened = open_window(shard, token, loaded_to=now + 20_000)
    assert [member for member, _ in opened.jobs] == ["loaded"]


def test_a_horizon_that_is_brought_back_reads_the_window_again(shard: Shard, token: str) -> None:
    """The horizon of an idle shard is far; a job scheduled before it sends a hint, which may be lost or late."""
    idle = open_window(shard, token)
    assert idle.horizon_ms == now_of(idle) + IDLE_MS
    due = now_of(idle) + WINDOW_MS - 100
    shard.schedule(("a", due))
    opened = open_window(shard, token, loaded_to=idle.horizon_ms)
    assert opened.jobs == [("a", due)]
    assert opened.horizon_ms == now_of(opened) + WINDOW_MS


# With nothing near


def test_with_nothing_waiting_the_horizon_goes_as_far_as_the_longest_sleep(shard: Shard, token: str) -> None:
    opened = open_window(shard, token)
    assert opened.jobs == []
    assert not opened.is_partial
    assert opened.horizon_ms == now_of(opened) + IDLE_MS
    assert shard.snapshot() == {"lease": token, "epoch": shard.snapshot()["epoch"], "horizon": opened.horizon_ms}


def test_with_nothing_near_the_horizon_stands_just_before_the_next_job(shard: Shard) -> None:
    due = shard.now_ms() + IDLE_MS // 2
    shard.schedule(("a", due), ("b", due + 1))
    opened = open_window(shard, shard.lead())
    assert (opened.jobs, opened.horizon_ms) == ([], due - 1)


def test_with_the_next_job_far_away_the_horizon_goes_as_far_as_the_longest_sleep(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    opened = open_window(shard, shard.lead())
    assert opened.horizon_ms == now_of(opened) + IDLE_MS


def test_the_horizon_never_lies_before_the_end_of_the_window(shard: Shard, token: str) -> None:
    """A job right behind the window must not pull the horizon into it."""
    for n in range(20):
        due = shard.now_ms() + WINDOW_MS + 1
        shard.schedule((f"job-{n}", due))
        opened = open_window(shard, token)
        assert opened.horizon_ms >= now_of(opened) + WINDOW_MS


def test_only_a_job_before_the_new_horizon_sends_a_hint(shard: Shard, ear: Ear) -> None:
    """Nothing falls between: read by this opening, or hinted, or read by a later one."""
    opened = open_window(shard, shard.lead())
    shard.schedule(("before", opened.horizon_ms), ("after", opened.horizon_ms + 1))
    assert ear.heard() == [f"{opened.horizon_ms} before".encode()]


# With too many


def test_a_window_with_too_many_is_read_in_parts(shard: Shard) -> None:
    """The horizon stops before the last due time read, for that one may be read in part only."""
    due = shard.now_ms() + 20_000
    shard.schedule(*((f"job-{n}", due + n) for n in range(10)))
    token = shard.lead()
    first = open_window(shard, token, limit=4)
    assert [d - due for _, d in first.jobs] == [0, 1, 2, 3]
    assert (first.is_partial, first.horizon_ms) == (True, due + 2)
    second = open_window(shard, token, loaded_to=first.horizon_ms, limit=4)
    assert [d - due for _, d in second.jobs] == [3, 4, 5, 6]
    assert (second.is_partial, second.horizon_ms) == (True, due + 5)


def test_the_last_part_is_not_partial(shard: Shard) -> None:
    due = shard.now_ms() + 20_000
    shard.schedule(*((f"job-{n}", due + n) for n in range(3)))
    opened = open_window(shard, shard.lead(), limit=4)
    assert len(opened.jobs) == 3
    assert not opened.is_partial
    assert opened.horizon_ms == now_of(opened) + WINDOW_MS


def test_parts_read_to_the_end_miss_nothing(shard: Shard) -> None:
    due = shard.now_ms() + 20_000
    shard.schedule(*((f"job-{n:02}", due + n // 3) for n in range(60)))
    token, found, loaded_to = shard.lead(), set(), None
    for _ in range(100):
        opened = open_window(shard, token, loaded_to, limit=7)
        found |= {member for member, _ in opened.jobs}
        assert loaded_to is None or opened.horizon_ms > loaded_to, "each part gets on"
        loaded_to = opened.horizon_ms
        if not opened.is_partial:
            break
    assert found == {f"job-{n:02}" for n in range(60)}


def test_in_front_of_a_herd_the_horizon_stands_still(shard: Shard) -> None:
    """More jobs at one millisecond than a call reads: the horizon waits before it, and they are swept when due."""
    due = shard.now_ms() + 20_000
    shard.schedule(*((f"job-{n}", due) for n in range(10)))
    token = shard.lead()
    first = open_window(shard, token, limit=4)
    assert (first.is_partial, first.horizon_ms, len(first.jobs)) == (True, due - 1, 4)
    again = open_window(shard, token, loaded_to=first.horizon_ms, limit=4)
    assert (again.is_partial, again.horizon_ms, again.jobs) == (True, due - 1, first.jobs)


# Not the leader


@pytest.mark.parametrize("lease", ["other:5:run:9", None])
def test_nobody_but_the_leader_moves_the_horizon(shard: Shard, lease: str | None, token: str) -> None:
    shard.schedule(("a", "+1000"))
    if lease:
        shard.redis.set(shard.keys.lease, lease)
    else:
        shard.redis.delete(shard.keys.lease)
    before = shard.snapshot()
    assert shard.raw(leader.open_window(shard.keys, token, LEASE_MS, None, WINDOW_MS, 10, IDLE_MS)) == [0]
    assert shard.snapshot() == before
    assert before["jobs"] == {"a": RECORD}


def test_opening_the_window_reports_whether_there_is_something_to_tidy(shard: Shard, token: str) -> None:
    """Entries, or finished jobs that are kept; not a stream that is empty."""
    assert not open_window(shard, token).has_kept
    [entry] = shard.deliver("a")
    assert open_window(shard, token).has_kept
    shard.ack([entry])
    assert not open_window(shard, token).has_kept
    shard.redis.zadd(shard.keys.ended, {"a": 1})
    assert open_window(shard, token).has_kept
