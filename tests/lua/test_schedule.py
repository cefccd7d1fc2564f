"""schedule.lua: up to 500 jobs of one shard, each created, replaced or kept, and nothing in between."""

from __future__ import annotations

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Ear, Shard, entry
from tests.records import LIFE, OTHER
from wheelq.model.job import OnDuplicate
from wheelq.protocol.calls import leader, producer, registry
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.codec import LAST_MS

CREATED, REPLACED, KEPT, KEPT_PROMOTED, NOT_HERE = 1, 2, 0, 3, 4


def look_ahead(shard: Shard, ahead_ms: int) -> int:
    """Let a leader set the horizon; where it is now."""
    opened = shard.send(leader.open_window(shard.keys, shard.lead(), 30_000, None, ahead_ms, 100, ahead_ms))
    return opened.horizon_ms


# A new job


def test_a_new_job_waits_for_its_due_time(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    assert shard.snapshot() == {}
    assert shard.schedule(("a", due)) == [(CREATED, due)]
    assert shard.snapshot() == {"delayed": {"a": due}, "jobs": {"a": RECORD}}


def test_a_delay_counts_from_the_servers_clock(shard: Shard) -> None:
    before = shard.now_ms()
    [(status, due)] = shard.schedule(("a", f"+{HOUR_MS}"))
    assert status == CREATED
    assert before + HOUR_MS <= due <= shard.now_ms() + HOUR_MS + 1
    assert shard.snapshot() == {"delayed": {"a": due}, "jobs": {"a": RECORD}}


@pytest.mark.parametrize("due", [f"+{HOUR_MS}", "+0", "5000"])
def test_the_answer_says_what_time_it_is_on_the_server(shard: Shard, due: str) -> None:
    """Also for a job that is kept as it was, whose due time says nothing about now."""
    shard.schedule(("a", "+5"))
    before = shard.now_ms()
    placed = shard.send(producer.schedule(shard.keys, [("a", due, OTHER), ("b", due, OTHER)], "keep", "1"))
    assert before <= placed.server_ms <= shard.now_ms()


def test_a_delay_is_never_cut_short_by_rounding(shard: Shard) -> None:
    """A job delayed by 5 ms is due no less than 5,000 µs after the call was sent."""
    for n in range(200):
        sent_us = shard.send(server_time_us())
        [(_, due)] = shard.schedule((f"job-{n}", "+5"))
        assert due * 1000 >= sent_us + 5000


@pytest.mark.parametrize("delay", ["a moment ago", "+0"])
def test_a_job_that_is_due_goes_straight_to_the_stream(shard: Shard, delay: str) -> None:
    asked = delay if delay == "+0" else shard.now_ms() - 1
    [(status, due)] = shard.schedule(("a", asked))
    assert status == CREATED
    assert asked in ("+0", due)
    assert shard.snapshot() == {"jobs": {"a": "e1"}, "ready": {"e1": entry("a", due)}}


def test_a_job_that_the_stream_refuses_waits(shard: Shard) -> None:
    """A ready key of a wrong type makes XADD fail: the job is kept where the leader finds it."""
    shard.redis.set(shard.keys.ready, "not a stream")
    due = shard.now_ms()
    assert shard.schedule(("a", due)) == [(CREATED, due)]
    shard.redis.delete(shard.keys.ready)
    assert shard.snapshot() == {"delayed": {"a": due}, "jobs": {"a": RECORD}}


def test_five_hundred_jobs_go_in_one_call(shard: Shard) -> None:
    now = shard.now_ms()
    jobs = [(f"job-{n}", now + (HOUR_MS if n % 2 else 0) + n % 2 * n) for n in range(500)]
    assert shard.schedule(*jobs) == [(CREATED, due) for _, due in jobs]
    after = shard.snapshot()
    assert after["delayed"] == {id: due for id, due in jobs if due > now}
    assert [e["id"] for e in after["ready"].values()] == [id for id, due in jobs if due == now]
    assert set(after["jobs"]) == {id for id, _ in jobs}
    assert set(after) == {"delayed", "jobs", "ready"}


# An id that is taken


def test_a_waiting_job_is_kept(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("a", due))
    before = shard.snapshot()
    assert shard.schedule(("a", due + 5), record=OTHER) == [(KEPT, [due, LIFE])]
    assert shard.snapshot() == before


def test_a_waiting_job_is_replaced_if_that_was_asked_for(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("a", due))
    assert shard.schedule(("a", due - 5), record=OTHER, on_duplicate="replace") == [(REPLACED, due - 5)]
    assert shard.snapshot() == {"delayed": {"a": due - 5}, "jobs": {"a": OTHER}}


def test_a_due_replacement_is_left_to_the_leader(shard: Shard) -> None:
    """Only a new job may go to the stream without its leader: this one could be on its way there."""
    now = shard.now_ms()
    shard.schedule(("a", now + HOUR_MS))
    assert shard.schedule(("a", now), record=OTHER, on_duplicate="replace") == [(REPLACED, now)]
    assert shard.snapshot() == {"delayed": {"a": now}, "jobs": {"a": OTHER}}


@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
def test_a_promoted_job_is_kept_with_every_on_duplicate(shard: Shard, on_duplicate: OnDuplicate) -> None:
    due = shard.now_ms()
    shard.schedule(("a", due))
    before = shard.snapshot()
    answer = shard.schedule(("a", due + HOUR_MS), record=OTHER, on_duplicate=on_duplicate)
    assert answer == [(KEPT_PROMOTED, [due, LIFE])]
    assert shard.snapshot() == before


def test_a_job_that_waits_for_a_retry_is_kept(shard: Shard) -> None:
    """Its entry is trimmed away, its id is still taken."""
    [a] = shard.deliver("a")
    shard.retry(a, HOUR_MS)
    shard.ack(shard.deliver("b"))
    before = shard.snapshot()
    assert "e1" not in before["ready"]
    [(status, _)] = shard.schedule(("a", shard.now_ms()), record=RECORD.replace(LIFE, b"another "))
    assert status == KEPT_PROMOTED
    assert shard.snapshot() == before


def test_the_same_call_finds_its_job_that_waits_for_a_retry(shard: Shard) -> None:
    """As long as its first entry is there, it does anyway."""
    [a] = shard.deliver("a")
    due = shard.retry(a, HOUR_MS)
    shard.ack(shard.deliver("b"))
    assert "e1" not in shard.snapshot()["ready"]
    assert shard.schedule(("a", shard.now_ms())) == [(CREATED, due)]


# The same call again


@pytest.mark.parametrize(("delay_ms", "later_ms"), [(HOUR_MS, 500), (0, 0)], ids=["waiting", "promoted"])
def test_a_repeated_call_finds_its_job_and_says_created_again(shard: Shard, delay_ms: int, later_ms: int) -> None:
    [first] = shard.schedule(("a", f"+{delay_ms}"))
    before = shard.snapshot()
    assert shard.schedule(("a", f"+{delay_ms + later_ms}")) == [first]
    assert shard.snapshot() == before


def test_a_repeated_call_to_replace_keeps_the_due_time_of_the_first(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    [(status, due)] = shard.schedule(("a", f"+{2 * HOUR_MS}"), record=OTHER, on_duplicate="replace")
    assert status == REPLACED
    before = shard.snapshot()
    answer = shard.schedule(("a", f"+{2 * HOUR_MS + 500}"), record=OTHER, on_duplicate="replace")
    assert answer == [(CREATED, due)]
    assert shard.snapshot() == before


def test_a_repeated_call_mends_a_job_without_a_record(shard: Shard) -> None:
    """Half a job can stem from a script that was refused half-way: the sorted set is written first."""
    due = shard.now_ms() + HOUR_MS
    shard.redis.zadd(shard.keys.delayed, {"a": due})
    assert shard.schedule(("a", due + 5)) == [(CREATED, due + 5)]
    assert shard.snapshot() == {"delayed": {"a": due + 5}, "jobs": {"a": RECORD}}


def test_a_repeated_call_mends_a_job_without_a_record_that_is_due(shard: Shard) -> None:
    """It must not go to the stream and stay in the sorted set: that would promote it twice."""
    due = shard.now_ms()
    shard.redis.zadd(shard.keys.delayed, {"a": due})
    shard.schedule(("a", due))
    shard.send(leader.sweep(shard.keys, shard.lead(), 30_000, 100))
    assert [e["record"] for e in shard.snapshot()["ready"].values()] == [RECORD]


def test_a_record_without_a_due_time_is_written_over(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.redis.hset(shard.keys.jobs, "a", OTHER)
    assert shard.schedule(("a", due)) == [(CREATED, due)]
    assert shard.snapshot() == {"delayed": {"a": due}, "jobs": {"a": RECORD}}


# An id twice in one call


def test_the_first_of_two_equal_jobs_in_a_call_is_kept(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("b", due), record=OTHER)
    answer = shard.schedule(("a", due), ("b", due + 1), ("a", due + 2))
    # Both have the same record, as those of one call can have; so the second finds "its own" job.
    assert answer == [(CREATED, due), (KEPT, [due, LIFE]), (CREATED, due)]
    assert shard.snapshot() == {"delayed": {"a": due, "b": due}, "jobs": {"a": RECORD, "b": OTHER}}


def test_the_first_of_two_different_jobs_with_one_id_is_kept(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    assert _two(shard, due, due + 1, "keep") == [CREATED, due, KEPT, [due, LIFE]]
    assert shard.snapshot() == {"delayed": {"a": due}, "jobs": {"a": RECORD}}


def test_the_second_of_two_different_jobs_with_one_id_replaces_the_first_on_request(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    assert _two(shard, due, due + 1, "replace") == [CREATED, due, REPLACED, due + 1]
    assert shard.snapshot() == {"delayed": {"a": due + 1}, "jobs": {"a": OTHER}}


@pytest.mark.parametrize("on_duplicate", ["keep", "replace"])
def test_only_one_of_two_due_jobs_with_one_id_runs(shard: Shard, on_duplicate: OnDuplicate) -> None:
    due = shard.now_ms()
    assert _two(shard, due, due, on_duplicate) == [CREATED, due, KEPT_PROMOTED, [due, LIFE]]
    assert shard.snapshot() == {"jobs": {"a": "e1"}, "ready": {"e1": entry("a", due)}}


def _two(shard: Shard, first_due: int, second_due: int, on_duplicate: OnDuplicate) -> list[int]:
    jobs = [("a", str(first_due), RECORD), ("a", str(second_due), OTHER)]
    return shard.raw(producer.schedule(shard.keys, jobs, on_duplicate, 1))[:4]


# The near channel


@pytest.mark.parametrize("horizon", [None, 1, "soon"])
def test_without_a_horizon_that_lies_ahead_the_leader_is_asked_to_look_again(
    shard: Shard, ear: Ear, horizon: int | str | None
) -> None:
    """A fail-over may have lost the last one while it rests. Which jobs there are need not be told."""
    if horizon is not None:
        shard.redis.set(shard.keys.horizon, horizon)
    shard.schedule(("a", f"+{HOUR_MS}"), ("b", "+5000"))
    [message] = ear.heard()
    [(_, due_ms)] = leader.read_near(message)
    assert due_ms == LAST_MS, "that is in nobody's window"
    shard.schedule(("c", "+0"))
    assert ear.heard() == []


def test_a_job_due_up_to_the_horizon_rings_the_leader(shard: Shard, ear: Ear) -> None:
    horizon = look_ahead(shard, HOUR_MS)
    shard.schedule(("at", horizon), ("after", horizon + 1), ("before", horizon - 1))
    [message] = ear.heard()
    assert message == f"{horizon} at\n{horizon - 1} before".encode()
    assert leader.read_near(message) == [("at", horizon), ("before", horizon - 1)]


def test_a_hint_holds_an_id_with_spaces_whole(shard: Shard, ear: Ear) -> None:
    horizon = look_ahead(shard, HOUR_MS)
    shard.schedule(("order 42 für Jörg", horizon))
    [message] = ear.heard()
    assert leader.read_near(message) == [("order 42 für Jörg", horizon)]


def test_a_job_that_went_to_the_stream_rings_nobody(shard: Shard, ear: Ear) -> None:
    look_ahead(shard, HOUR_MS)
    shard.schedule(("a", "+0"))
    assert ear.heard() == []


def test_a_kept_job_rings_nobody_and_a_replaced_one_does(shard: Shard, ear: Ear) -> None:
    horizon = look_ahead(shard, HOUR_MS)
    shard.schedule(("a", horizon + 5))
    shard.schedule(("a", horizon - 5), record=OTHER)
    assert ear.heard() == []
    shard.schedule(("a", horizon - 5), record=OTHER, on_duplicate="replace")
    assert ear.heard() == [f"{horizon - 5} a".encode()]


def test_a_job_that_replaces_another_and_is_due_rings_the_leader(shard: Shard, ear: Ear) -> None:
    horizon = look_ahead(shard, HOUR_MS)
    now = shard.now_ms()
    shard.schedule(("a", horizon + 5))
    shard.schedule(("a", now), record=OTHER, on_duplicate="replace")
    assert ear.heard() == [f"{now} a".encode()]


# While a topic changes its number of shards


def place(shard: Shard, placed_by: str | None, *ids: str, on_duplicate: OnDuplicate = "keep") -> list[int]:
    due = str(shard.now_ms() + 2 * HOUR_MS)
    return shard.raw(producer.schedule(shard.keys, [(id, due, OTHER) for id in ids], on_duplicate, placed_by))


def test_jobs_placed_by_another_number_than_the_one_in_force_are_refused_whole(shard: Shard) -> None:
    shard.send(registry.fence(shard.keys, "5", 1))
    before = shard.snapshot()
    assert place(shard, "4", "a", "b") == [b"5"], "nothing else is said"
    assert shard.snapshot() == before == {"shards": 5}
    assert place(shard, "5", "a")[0] == CREATED


def test_a_shard_that_was_never_fenced_takes_jobs_placed_by_any_number(shard: Shard) -> None:
    assert place(shard, "7", "a")[0] == CREATED


def test_a_live_job_at_its_former_place_is_kept_or_replaced_and_no_new_one_is_made(shard: Shard) -> None:
    """Whatever number is in force: this is how a job is looked for at its old place."""
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("a", due))
    shard.send(registry.fence(shard.keys, "5", 1))
    before = shard.snapshot()
    assert place(shard, None, "a", "none")[:-1] == [KEPT, [due, LIFE], NOT_HERE, 0]
    assert shard.snapshot() == before
    status, new_due, *rest = place(shard, None, "a", "none", on_duplicate="replace")
    assert (status, rest[:-1]) == (REPLACED, [NOT_HERE, 0])
    assert shard.snapshot() == before | {"delayed": {"a": new_due}, "jobs": {"a": OTHER}}


def test_a_shard_is_fenced_and_tells_when_its_last_job_is_due(shard: Shard) -> None:
    assert shard.send(registry.fence(shard.keys, "3", 1)).last_due_ms == 0
    assert shard.snapshot() == {"shards": 3}
    due = shard.now_ms() + HOUR_MS
    shard.raw(producer.schedule(shard.keys, [("a", str(due), RECORD), ("b", str(due - 1), RECORD)], "keep", "3"))
    before = shard.snapshot()
    assert shard.send(registry.fence(shard.keys, "4", 2)).last_due_ms == due
    assert shard.snapshot() == before | {"shards": 4}
