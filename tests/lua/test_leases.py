"""The leases: lease_time.lua, lease.lua, ack_leased.lua, extend_leased.lua, release_leased.lua and take_ready.lua; and
waiting.lua, remember.lua and take_ids.lua."""

from __future__ import annotations

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Shard, entry
from tests.records import unstamped
from wheelq.model.state import JobState
from wheelq.protocol import scripts
from wheelq.protocol.calls import leases, notes, producer, state, worker
from wheelq.protocol.calls.leases import CONSUMER, LONGEST_MS, UNLEASED, LeaseId, LeaseTime
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings

GROUP = "http.g"
STALL = """
local function clock_ms() local now = redis.call('TIME') return now[1] * 1000 + now[2] / 1000 end
local begun_at = clock_ms()
for _ = 1, 200000 do if clock_ms() - begun_at > 20 then break end end
"""
"""Takes 20 ms by a clock that goes on while a script runs."""


def lease(shard: Shard, count: int = 10, lease_ms: int = HOUR_MS, *, looks: bool = False) -> list[Entry]:
    now_ms = shard.now_ms()
    return shard.send(leases.lease(shard.keys, GROUP, now_ms, now_ms + lease_ms, count, looks=looks)).entries


def named(found: Entry) -> LeaseId:
    return LeaseId(found.entry_id, found.member.encode(), found.deliveries)


@pytest.fixture
def ready(shard: Shard) -> Shard:
    """A shard with two promoted jobs and the group."""
    shard.make_group(GROUP)
    shard.schedule(("a", "+0"), ("b", "+0"))
    shard.snapshot()  # names their entries e1 and e2
    return shard


# lease


def test_a_lease_is_a_delivery_that_ends_when_it_has_been_idle_for_the_longest_time(ready: Shard) -> None:
    a, b = lease(ready)
    found = [(leased.id, leased.deliveries, unstamped(leased.record)) for leased in (a, b)]
    assert found == [("a", 1, RECORD), ("b", 1, RECORD)]
    group = ready.snapshot()["groups"][GROUP]
    assert group["pending"] == {"e1": (CONSUMER, 1), "e2": (CONSUMER, 1)}
    (pending, _) = ready.redis.xpending_range(ready.keys.ready, GROUP, "-", "+", 10)
    assert LONGEST_MS - HOUR_MS <= pending["time_since_delivered"] < LONGEST_MS - HOUR_MS + 60_000
    assert lease(ready) == []


def test_a_lease_tells_the_servers_time(ready: Shard) -> None:
    """The caller judges by it whether a job is too late."""
    before = ready.now_ms()
    leased = ready.send(leases.lease(ready.keys, GROUP, before, before + HOUR_MS, 10, looks=True))
    assert before <= leased.now_ms <= ready.now_ms()


def test_no_more_are_leased_than_asked_for(ready: Shard) -> None:
    assert [found.id for found in lease(ready, count=1)] == ["a"]
    assert [found.id for found in lease(ready, count=1)] == ["b"]


def test_a_lease_that_has_ended_is_given_again_before_new_ones_with_the_next_number(ready: Shard) -> None:
    lease(ready, count=1, lease_ms=-1_000)
    (again,) = lease(ready, count=1)
    assert (again.id, again.deliveries) == ("a", 2)


@pytest.mark.parametrize("under_way", [5_000, 10_001])
def test_a_lease_that_has_ended_does_not_hide_behind_those_under_way(ready: Shard, under_way: int) -> None:
    """If very many leases are open, only a call that looks finds the ended one; any call finds returned deliveries."""
    for first in range(0, under_way, 500):
        ready.schedule(*((f"job-{n}", "+0") for n in range(first, min(first + 500, under_way))))
    while lease(ready, count=1_000):
        pass
    assert lease(ready, looks=True) == []
    *_, given_back, ended = ready.redis.xpending_range(ready.keys.ready, GROUP, "-", "+", under_way + 2)
    ready.redis.xclaim(ready.keys.ready, GROUP, CONSUMER, 0, [ended["message_id"]], idle=LONGEST_MS + 10, justid=True)
    name = LeaseId(given_back["message_id"].decode(), b"", 1)
    assert ready.send(leases.release(ready.keys, GROUP, ready.now_ms() - 10, [name])) == [True]
    assert [found.entry_id for found in lease(ready, count=1)] == [name.entry_id]
    if under_way > 10_000:
        assert lease(ready) == []
    assert [found.entry_id for found in lease(ready, looks=True)] == [ended["message_id"].decode()]


def test_an_entry_that_somebody_deleted_is_acknowledged_away(ready: Shard) -> None:
    (a,) = lease(ready, count=1, lease_ms=-1_000)
    ready.redis.xdel(ready.keys.ready, a.entry_id)
    assert [found.id for found in lease(ready)] == ["b"]
    assert list(ready.snapshot()["groups"][GROUP]["pending"].values()) == [(CONSUMER, 1)]


@pytest.mark.parametrize("step_ms", [-30 * HOUR_MS, 30 * HOUR_MS])
def test_leases_end_by_their_own_clock_and_not_by_the_servers(ready: Shard, step_ms: int) -> None:
    """Here the clock of leases is behind the server's, or ahead of it as far as the server allows."""
    now_ms = ready.now_ms() + min(step_ms, 6 * HOUR_MS)

    def leased(at_ms: int) -> list[str]:
        call = leases.lease(ready.keys, GROUP, at_ms, at_ms + HOUR_MS, 10, looks=True)
        return [found.id for found in ready.send(call).entries]

    assert leased(now_ms) == ["a", "b"]
    assert leased(now_ms + HOUR_MS - 60_000) == []  # while the script runs, some servers' clocks go on
    assert leased(now_ms + HOUR_MS + 60_000) == ["a", "b"]


def test_a_lease_does_not_end_early_where_the_server_stalls_in_the_middle_of_the_script(ready: Shard) -> None:
    """Before Redis 7.2 its clock goes on meanwhile, and all deliveries look as if they had waited for longer."""
    (a,) = lease(ready, count=1)
    ends_ms = ready.now_ms() + HOUR_MS
    assert ready.send(leases.extend(ready.keys, GROUP, ends_ms, [named(a)])) == [True]
    begin, rest = scripts.script("lease").text.split("local ended\n")
    stalled = f"{begin}{STALL}local ended\n{rest}"

    def leased(at_ms: int) -> list[bytes]:
        call = leases.lease(ready.keys, GROUP, at_ms, at_ms + HOUR_MS, 1, looks=True)
        return ready.redis.eval(stalled, len(call.keys), *call.keys, *call.args)[1::3]  # type: ignore[union-attr,index]

    assert leased(ends_ms - 10)[0].decode() != a.entry_id
    assert leased(ends_ms + 10)[0].decode() == a.entry_id


# lease_time


def test_the_clock_of_leases_begins_with_the_servers_time_and_takes_the_furthest_reckoning(
    shard: Shard, topic: str
) -> None:
    def told(reckoned_ms: int | None, era: str = "") -> LeaseTime:
        return shard.send(leases.time(Keys(topic), reckoned_ms, era))

    before_ms = shard.now_ms()
    first = told(None)
    assert before_ms <= first.ms == first.server_ms <= shard.now_ms()
    assert told(None).ms == first.ms  # it does not follow the server's
    assert told(first.ms + 500, first.era).ms == first.ms + 500
    assert told(first.ms + 100, first.era).ms == first.ms + 500
    assert told(first.ms + 900, "another era").ms == first.ms + 500


def test_the_clock_of_leases_starts_over_where_that_of_the_server_is_too_far_behind(shard: Shard, topic: str) -> None:
    """At once if there would be no room for leases, otherwise when every earlier lease must have ended."""
    keys = Keys(topic)
    first = shard.send(leases.time(keys, None, ""))
    ahead = shard.send(leases.time(keys, first.ms + HOUR_MS, first.era))
    assert (ahead.ms, ahead.era) == (first.ms + HOUR_MS, first.era)
    far = shard.send(leases.time(keys, first.ms + 7 * HOUR_MS, first.era))
    assert far.ms == far.server_ms
    assert far.era != first.era
    ahead = shard.send(leases.time(keys, far.ms + HOUR_MS, far.era))
    shard.redis.hset(keys.lease_clock, "ahead_since", ahead.ms - LONGEST_MS - 1)
    late = shard.send(leases.time(keys, ahead.ms, far.era))
    assert late.ms == late.server_ms
    assert late.era not in (first.era, far.era)


def test_a_clock_of_leases_that_was_lost_goes_on_where_the_servers_had_it(shard: Shard, topic: str) -> None:
    reckoned = shard.now_ms() + HOUR_MS
    assert shard.send(leases.time(Keys(topic), reckoned, "7"))[:2] == (reckoned, "7")


# ack_leased


def test_an_acknowledged_lease_is_done_and_forgotten(ready: Shard) -> None:
    a, b = lease(ready)
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(a)])).done == [True]
    after = ready.snapshot()
    assert after["jobs"] == {"b": "e2"}
    assert list(after["ready"]) == ["e2"]
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(a), named(b)])).done == [False, True]


def test_a_kept_job_that_was_leased_has_a_single_record(ready: Shard) -> None:
    a, _ = lease(ready)
    ready.send(leases.ack(ready.keys, GROUP, TopicSettings(keep_done_ms=HOUR_MS), [named(a)]))
    assert (ready.redis.hkeys(ready.keys.done), ready.redis.zrange(ready.keys.ended, 0, -1)) == ([b"a"], [b"a"])


def test_a_former_lessee_cannot_settle_the_present_lease(ready: Shard) -> None:
    (before,) = lease(ready, count=1, lease_ms=-1_000)
    (now,) = lease(ready, count=1)
    state = ready.snapshot()
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(before)])).done == [False]
    assert ready.send(leases.extend(ready.keys, GROUP, ready.now_ms(), [named(before)])) == [False]
    assert ready.snapshot() == state
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(now)])).done == [True]


# extend_leased


def test_an_extended_lease_keeps_its_number(ready: Shard) -> None:
    (a,) = lease(ready, count=1, lease_ms=-1_000)
    assert ready.send(leases.extend(ready.keys, GROUP, ready.now_ms() + HOUR_MS, [named(a)])) == [True]
    assert [found.id for found in lease(ready)] == ["b"]
    assert ready.snapshot()["groups"][GROUP]["pending"]["e1"] == (CONSUMER, 1)


# release_leased


def test_a_released_lease_is_over_at_once(ready: Shard) -> None:
    """Its handle is invalid from then on, even before another consumer leases the job."""
    (a,) = lease(ready, count=1)
    assert ready.send(leases.release(ready.keys, GROUP, ready.now_ms() - 10, [named(a)])) == [True]
    assert ready.snapshot()["groups"][GROUP]["pending"]["e1"] == (UNLEASED, 1)
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(a)])).done == [False]
    assert ready.send(leases.extend(ready.keys, GROUP, ready.now_ms() + HOUR_MS, [named(a)])) == [False]
    assert ready.send(leases.release(ready.keys, GROUP, ready.now_ms(), [named(a)])) == [False]
    assert [(found.id, found.deliveries) for found in lease(ready, count=1)] == [("a", 2)]


def test_a_lease_released_with_a_pause_is_nobodys_until_it_is_over(ready: Shard) -> None:
    (a,) = lease(ready, count=1)
    assert ready.send(leases.release(ready.keys, GROUP, ready.now_ms() + HOUR_MS, [named(a)])) == [True]
    assert [found.id for found in lease(ready)] == ["b"]


def test_a_lease_that_nobody_got_does_not_count(ready: Shard) -> None:
    (a,) = lease(ready, count=1)
    assert ready.send(leases.release(ready.keys, GROUP, ready.now_ms() - 10, [named(a)], counts=False)) == [True]
    (again,) = lease(ready, count=1)
    assert (again.id, again.deliveries) == ("a", 1)
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(again)])).done == [True]


def test_progress_ends_with_the_acknowledgement(ready: Shard) -> None:
    a, _ = lease(ready)
    assert ready.send(leases.note(ready.keys, GROUP, [named(a), named(a)._replace(number=9)], b"half")) == [True, False]
    assert ready.redis.hgetall(ready.keys.progress) == {b"a\x1f" + GROUP.encode(): b"half"}
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(a)])).done == [True]
    assert ready.redis.hgetall(ready.keys.progress) == {}


def test_a_job_acknowledged_over_http_is_kept_like_a_workers(ready: Shard) -> None:
    """Its record and the time of its end are kept; the time when work began is unknown."""
    a, _ = lease(ready)
    before_ms = ready.now_ms()
    keeping = TopicSettings(keep_done_ms=HOUR_MS)
    assert ready.send(leases.ack(ready.keys, GROUP, keeping, [named(a)])).done == [True]
    assert ready.send(leases.ack(ready.keys, GROUP, keeping, [named(a)])).done == [False]
    found = ready.send(state.get(ready.keys, "a"))
    assert found is not None
    ended = found.groups[GROUP]
    assert (ended.state, ended.worker, ended.attempt, ended.started_ms) == (JobState.DONE, CONSUMER, 1, None)
    assert ended.finished_ms is not None
    assert before_ms <= ended.finished_ms <= ready.now_ms()
    assert list(ready.snapshot()["jobs"]) == ["b"]


# take_ready


@pytest.mark.parametrize("is_leased", [False, True])
def test_a_job_is_taken_off_the_line_by_its_id(ready: Shard, is_leased: bool) -> None:
    if is_leased:
        lease(ready)
    assert ready.send(leases.take(ready.keys, GROUP, "a"))
    after = ready.snapshot()
    assert after["jobs"] == {"b": "e2"}
    assert list(after["ready"]) == ["e2"]
    assert not ready.send(leases.take(ready.keys, GROUP, "a"))


@pytest.mark.parametrize("is_leased", [False, True])
def test_a_job_that_waits_or_that_others_need_is_not_taken(ready: Shard, is_leased: bool) -> None:
    if is_leased:
        lease(ready)
    ready.schedule(("later", f"+{HOUR_MS}"))
    ready.send(worker.make_group(ready.keys, "other"))
    before = ready.snapshot()
    assert not ready.send(leases.take(ready.keys, GROUP, "later"))
    assert not ready.send(leases.take(ready.keys, GROUP, "a"))
    assert ready.snapshot() == before
    assert before["ready"]["e1"] == entry("a", before["ready"]["e1"]["due"])


# waiting


def test_waiting_jobs_are_told_in_order_and_from_behind_a_member(shard: Shard) -> None:
    """Members with the same score are in the order of their bytes, whatever the language of their names."""
    due = shard.now_ms() + HOUR_MS
    ids = ["a", "b", "z", "ß", "\u4e00", "\U0001f600"]
    shard.schedule(*((id, due) for id in reversed(ids)), ("later", due + 1))
    before = shard.snapshot()
    for n, id in enumerate(ids):
        found = shard.send(producer.waiting(shard.keys, due, due, id.encode(), 10))
        assert [job.id for job in found] == ids[n + 1 :]
    gone = shard.send(producer.waiting(shard.keys, due, 1e15, b"aa", 2))
    assert [(job.id, job.due_ms) for job in gone] == [("b", due), ("z", due)]
    assert [job.id for job in shard.send(producer.waiting(shard.keys, due + 1, 1e15, b"", 10))] == ["later"]
    assert shard.snapshot() == before


def test_nothing_is_told_of_an_empty_shard(shard: Shard) -> None:
    assert shard.send(producer.waiting(shard.keys, -0.5, 1e15, b"", 10)) == []
    assert shard.snapshot() == {}


# remember, take_ids


def test_a_note_is_written_once_and_told_to_all_others(shard: Shard, topic: str) -> None:
    key = Keys(topic).note("test", "a")
    assert shard.send(notes.remember(key, b"first", 60_000)) is None
    assert shard.send(notes.remember(key, b"second", 60_000)) == b"first"
    assert shard.send(notes.recall(key)) == b"first"
    assert 0 < shard.redis.pttl(key) <= 60_000


def test_task_ids_are_seconds_and_a_counter_and_never_the_same_twice(shard: Shard, topic: str) -> None:
    """A second with more than ten thousand goes on in the numbers of the next."""
    keys = Keys(topic)
    first = shard.send(notes.take_ids(keys, 25_000))
    assert abs(first // 10_000 - shard.now_ms() // 1000) <= 1
    assert shard.send(notes.take_ids(keys, 1)) == first + 25_000
    assert shard.send(notes.take_ids(keys, 1)) == first + 25_001
