"""cancel.lua, reschedule.lua, run_now.lua and get.lua: what can be done with a job that waits, and be said of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Ear, Shard, entry
from tests.records import SECOND_ATTEMPT
from wheelq.protocol.calls import leader, producer, state
from wheelq.protocol.calls.worker import Entry

DONE, TOO_LATE, CHANGED, NOT_FOUND, REFUSED = 1, 2, 3, 0, -1


# cancel


def cancel(shard: Shard, id: str) -> int:
    return shard.raw(producer.cancel(shard.keys, id))


def test_cancel_takes_a_waiting_job_away(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("a", due), ("b", due))
    assert cancel(shard, "a") == DONE
    assert shard.snapshot() == {"delayed": {"b": due}, "jobs": {"b": RECORD}}


def test_cancel_leaves_nothing_of_the_last_job(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    assert cancel(shard, "a") == DONE
    assert shard.snapshot() == {}
    assert cancel(shard, "a") == NOT_FOUND


# reschedule


def reschedule(shard: Shard, id: str, due: int | str) -> list[int]:
    return shard.raw(producer.reschedule(shard.keys, id, str(due)))


def test_reschedule_gives_a_waiting_job_a_new_time(shard: Shard) -> None:
    now = shard.now_ms()
    shard.schedule(("a", now + HOUR_MS))
    assert reschedule(shard, "a", now + 2 * HOUR_MS) == [DONE, now + 2 * HOUR_MS]
    assert shard.snapshot() == {"delayed": {"a": now + 2 * HOUR_MS}, "jobs": {"a": RECORD}}


def test_reschedule_counts_a_delay_from_the_servers_clock(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    before = shard.now_ms()
    status, due = reschedule(shard, "a", "+5000")
    assert status == DONE
    assert before + 5000 <= due <= shard.now_ms() + 5001
    assert shard.snapshot()["delayed"] == {"a": due}


def test_reschedule_to_a_time_that_has_passed_leaves_the_job_to_the_leader(shard: Shard) -> None:
    now = shard.now_ms()
    shard.schedule(("a", now + HOUR_MS))
    assert reschedule(shard, "a", now - 5) == [DONE, now - 5]
    assert shard.snapshot() == {"delayed": {"a": now - 5}, "jobs": {"a": RECORD}}


def test_reschedule_rings_the_leader_if_the_new_time_lies_before_the_horizon(shard: Shard, ear: Ear) -> None:
    opened = shard.send(leader.open_window(shard.keys, shard.lead(), 30_000, None, 2_000, 100, HOUR_MS))
    shard.schedule(("a", opened.horizon_ms + 1))
    reschedule(shard, "a", opened.horizon_ms + 2)
    assert ear.heard() == []
    reschedule(shard, "a", opened.horizon_ms)
    assert ear.heard() == [f"{opened.horizon_ms} a".encode()]


def test_reschedule_moves_only_a_job_that_is_due_when_the_caller_thinks_if_asked_so(shard: Shard) -> None:
    now = shard.now_ms()
    shard.schedule(("a", now + HOUR_MS))
    before = shard.snapshot()
    stale = producer.reschedule(shard.keys, "a", str(now + 5), now + HOUR_MS - 1)
    assert shard.raw(stale) == [CHANGED, now + HOUR_MS]
    assert shard.snapshot() == before
    seen = producer.reschedule(shard.keys, "a", str(now + 2 * HOUR_MS), now + HOUR_MS)
    assert shard.raw(seen) == [DONE, now + 2 * HOUR_MS]


# run_now


def run_now(shard: Shard, id: str) -> int:
    return shard.raw(producer.run_now(shard.keys, id))


def test_run_now_promotes_a_waiting_job_with_the_present_as_its_due_time(shard: Shard) -> None:
    before = shard.now_ms()
    shard.schedule(("a", f"+{HOUR_MS}"))
    assert run_now(shard, "a") == DONE
    after = shard.snapshot()
    due = after["ready"]["e1"]["due"]
    assert before <= due <= shard.now_ms()
    assert after == {"jobs": {"a": "e1"}, "ready": {"e1": entry("a", due)}}


# all three


def promoted(shard: Shard) -> None:
    shard.schedule(("a", "+0"))


def retried(shard: Shard) -> None:
    shard.retry(*shard.deliver("a"), HOUR_MS)


def finished(shard: Shard) -> None:
    shard.ack(shard.deliver("a"))


@pytest.mark.parametrize(
    ("bring_about", "status"),
    [(promoted, TOO_LATE), (retried, TOO_LATE), (finished, NOT_FOUND), (lambda shard: None, NOT_FOUND)],
    ids=["promoted", "waits for a retry", "finished", "never scheduled"],
)
def test_a_job_that_does_not_wait_for_its_due_time_is_left_alone(
    shard: Shard, bring_about: Callable[[Shard], None], status: int
) -> None:
    bring_about(shard)
    before = shard.snapshot()
    assert cancel(shard, "a") == status
    assert reschedule(shard, "a", "+5000") == [status, 0]
    assert run_now(shard, "a") == status
    assert shard.snapshot() == before


def test_run_now_of_a_job_that_the_stream_refuses_lets_it_wait(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("a", due))
    shard.redis.set(shard.keys.ready, "not a stream")
    assert run_now(shard, "a") == REFUSED
    shard.redis.delete(shard.keys.ready)
    assert shard.snapshot() == {"delayed": {"a": due}, "jobs": {"a": RECORD}}


# get


def get(shard: Shard, id: str) -> list[object]:
    return shard.raw(state.get(shard.keys, id))


def entry_of(shard: Shard, id: str) -> bytes:
    stored = shard.redis.hget(shard.keys.jobs, id)
    assert stored is not None
    return stored


def test_get_does_not_find_what_is_not_there(shard: Shard) -> None:
    assert get(shard, "a") == []


def test_get_shows_a_waiting_job(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("a", due))
    assert get(shard, "a") == [str(due).encode(), RECORD]


def test_get_shows_a_promoted_job(shard: Shard) -> None:
    due = shard.now_ms()
    shard.schedule(("a", due))
    assert get(shard, "a") == [str(due).encode(), RECORD, entry_of(shard, "a"), b""]


def test_get_tells_that_some_group_has_a_job_delivered(shard: Shard) -> None:
    shard.make_group("h")
    [a] = shard.deliver("a", group="g")
    job = [str(a.due_ms).encode(), RECORD]
    has_it, waits = [b"g", b"running", *job, b"", b"w1", 1], [b"h", b"ready", *job]
    assert get(shard, "a") == [*job, a.entry_id.encode(), b"", has_it, waits]
    shard.read("h", "w2")
    assert get(shard, "a") == [*job, a.entry_id.encode(), b"", has_it, [b"h", b"running", *job, b"", b"w2", 1]]
    shard.ack([a])
    shard.ack([a], group="h", consumer="w2")
    assert get(shard, "a") == []


def test_get_tells_that_a_job_waits_for_a_retry_in_some_group(shard: Shard, a: Entry) -> None:
    due = shard.retry(a, HOUR_MS)
    again = [b"g", b"retrying", str(due).encode(), SECOND_ATTEMPT, b""]
    assert get(shard, "a")[2:] == [a.entry_id.encode(), b"", again]


def test_get_shows_a_job_that_waits_for_a_retry_with_its_next_due_time(shard: Shard, a: Entry) -> None:
    """Also once its first entry is trimmed away: its payload, its attempt and when it runs next."""
    due = shard.retry(a, HOUR_MS)
    shard.ack(shard.deliver("b"))
    assert "e1" not in shard.snapshot()["ready"]
    info = shard.send(state.get(shard.keys, "a"))
    assert info is not None
    assert (info.due_ms, info.payload, info.attempt) == (due, 1, 2)


def test_get_tells_that_a_retry_runs(shard: Shard, a: Entry) -> None:
    shard.retry(a, 0)
    shard.send(leader.sweep(shard.keys, shard.lead(), 30_000, 100))
    [again] = shard.read("g", "w1")
    assert again.attempt == 2
    info = shard.send(state.get(shard.keys, "a"))
    assert info is not None
    assert info.state == "running"


def test_get_finds_no_finished_job(shard: Shard) -> None:
    shard.ack(shard.deliver("a"))
    assert get(shard, "a") == []
