"""lease.lua, ack_leased.lua, extend_leased.lua, take_ready.lua, waiting.lua, remember.lua and take_ids.lua."""

from __future__ import annotations

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Shard, entry
from wheelq.protocol.calls import leases, notes, producer, state, worker
from wheelq.protocol.calls.leases import CONSUMER, LONGEST_MS, START, Lease
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.state import JobState

GROUP = "http.g"


def lease(shard: Shard, count: int = 10, lease_ms: int = HOUR_MS) -> list[Entry]:
    return shard.send(leases.lease(shard.keys, GROUP, lease_ms, count, START)).entries


def named(found: Entry) -> Lease:
    return Lease(found.entry_id, found.member.encode(), found.deliveries)


@pytest.fixture
def ready(shard: Shard) -> Shard:
    """A shard with two promoted jobs and the group."""
    shard.send(worker.make_group(shard.keys, GROUP))
    shard.schedule(("a", "+0"), ("b", "+0"))
    shard.snapshot()  # names their entries e1 and e2
    return shard


# lease


def test_a_lease_is_a_delivery_that_ends_when_it_has_been_idle_for_the_longest_time(ready: Shard) -> None:
    a, b = lease(ready)
    assert [(found.id, found.deliveries, found.record) for found in (a, b)] == [("a", 1, RECORD), ("b", 1, RECORD)]
    group = ready.snapshot()["groups"][GROUP]
    assert group["pending"] == {"e1": (CONSUMER, 1), "e2": (CONSUMER, 1)}
    (pending, _) = ready.redis.xpending_range(ready.keys.ready, GROUP, "-", "+", 10)
    assert LONGEST_MS - HOUR_MS <= pending["time_since_delivered"] < LONGEST_MS - HOUR_MS + 60_000
    assert lease(ready) == []


def test_a_lease_tells_the_servers_time(ready: Shard) -> None:
    """By which it is judged whether a job is too late."""
    before = ready.now_ms()
    leased = ready.send(leases.lease(ready.keys, GROUP, HOUR_MS, 10, START))
    assert before <= leased.now_ms <= ready.now_ms()


def test_no_more_are_leased_than_asked_for(ready: Shard) -> None:
    assert [found.id for found in lease(ready, count=1)] == ["a"]
    assert [found.id for found in lease(ready, count=1)] == ["b"]


def test_a_lease_that_has_ended_is_given_again_before_new_ones_with_the_next_number(ready: Shard) -> None:
    lease(ready, count=1, lease_ms=0)
    (again,) = lease(ready, count=1)
    assert (again.id, again.deliveries) == ("a", 2)


def test_an_entry_that_somebody_deleted_is_acknowledged_away(ready: Shard) -> None:
    (a,) = lease(ready, count=1, lease_ms=0)
    ready.redis.xdel(ready.keys.ready, a.entry_id)
    assert [found.id for found in lease(ready)] == ["b"]
    assert list(ready.snapshot()["groups"][GROUP]["pending"].values()) == [(CONSUMER, 1)]


# ack_leased


def test_an_acknowledged_lease_is_done_and_forgotten(ready: Shard) -> None:
    a, b = lease(ready)
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(a)])) == [True]
    after = ready.snapshot()
    assert after["jobs"] == {"b": "e2"}
    assert list(after["ready"]) == ["e2"]
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(a), named(b)])) == [False, True]


def test_who_leased_before_cannot_answer_for_who_has_it_now(ready: Shard) -> None:
    (before,) = lease(ready, count=1, lease_ms=0)
    (now,) = lease(ready, count=1)
    state = ready.snapshot()
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(before)])) == [False]
    assert ready.send(leases.extend(ready.keys, GROUP, 0, [named(before)])) == [False]
    assert ready.snapshot() == state
    assert ready.send(leases.ack(ready.keys, GROUP, TopicSettings(), [named(now)])) == [True]


# extend_leased


def test_an_extended_lease_keeps_its_number(ready: Shard) -> None:
    (a,) = lease(ready, count=1, lease_ms=0)
    assert ready.send(leases.extend(ready.keys, GROUP, HOUR_MS, [named(a)])) == [True]
    assert [found.id for found in lease(ready)] == ["b"]
    assert ready.snapshot()["groups"][GROUP]["pending"]["e1"] == (CONSUMER, 1)


def test_a_released_lease_is_over_at_once(ready: Shard) -> None:
    (a,) = lease(ready, count=1)
    ready.send(leases.extend(ready.keys, GROUP, 0, [named(a)]))
    assert [(found.id, found.deliveries) for found in lease(ready, count=1)] == [("a", 2)]


def test_what_is_acknowledged_is_kept_as_a_workers_is(ready: Shard) -> None:
    """Its record and when it ended; when work began nobody knows."""
    a, _ = lease(ready)
    before_ms = ready.now_ms()
    keeping = TopicSettings(keep_done_ms=HOUR_MS)
    assert ready.send(leases.ack(ready.keys, GROUP, keeping, [named(a)])) == [True]
    assert ready.send(leases.ack(ready.keys, GROUP, keeping, [named(a)])) == [False]
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
    """Members of one score are in the order of their bytes, of whatever language."""
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
