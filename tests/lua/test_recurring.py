"""recurring_*.lua: a definition and the one occurrence that waits for it change together, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Ear, Shard
from tests.records import record
from wheelq.model.recurring import Rule
from wheelq.protocol import codec
from wheelq.protocol.calls import leader, producer
from wheelq.protocol.calls import recurring as calls
from wheelq.protocol.recurring_codec import StoredRecurring, occurrence_id

RULE = Rule(every_ms=HOUR_MS)
NAME = "hourly"


def entry(last_ms: int | None = None, next_ms: int | None = None, record: bytes = RECORD) -> StoredRecurring:
    return StoredRecurring.new(RULE, record, last_ms, next_ms)


def of_occurrence(job: StoredRecurring) -> bytes:
    """The record of an occurrence: its life is the job's revision."""
    return codec.with_life(job.record, bytes.fromhex(job.state.revision))


def hour_of(shard: Shard) -> int:
    """The last full hour, in ms."""
    return shard.now_ms() // HOUR_MS * HOUR_MS


def put(
    shard: Shard, after: StoredRecurring, before: StoredRecurring | None = None, withdrawn: str | None = None
) -> bool:
    state = None if before is None else before.state
    return shard.send(calls.change(shard.keys, NAME, state, after, after.state.next_ms, withdrawn))


def made(shard: Shard, before: StoredRecurring, *moments: int, superseded: str | None = None) -> StoredRecurring | None:
    """Make occurrences; the entry as it then is, or None if nothing was done."""
    following = moments[-1] + HOUR_MS
    state = before.state.made(moments[-1], following)
    jobs = [(occurrence_id(NAME, moment), str(moment)) for moment in moments]
    done = shard.send(calls.make(shard.keys, NAME, before.state, state, following, jobs, superseded))
    return replace(before, state=state) if done else None


# change: put


def test_put_stores_the_definition_and_when_to_look_at_it(shard: Shard, ear: Ear) -> None:
    due = hour_of(shard) + HOUR_MS
    new = entry(next_ms=due)
    assert put(shard, new)
    assert shard.snapshot() == {"recurring": {NAME: new.pack()}, "occurrences": {NAME: due}}
    assert ear.heard() == [calls.NOTICE]


def test_put_that_arrives_twice_has_done_it(shard: Shard) -> None:
    new = entry(next_ms=hour_of(shard))
    assert put(shard, new)
    before = shard.snapshot()
    assert put(shard, new)
    assert shard.snapshot() == before


def test_put_that_arrives_again_after_an_occurrence_was_made_changes_nothing(shard: Shard) -> None:
    due = hour_of(shard) + HOUR_MS
    new = entry(next_ms=due)
    put(shard, new)
    assert made(shard, new, due)
    before = shard.snapshot()
    assert put(shard, new)
    assert shard.snapshot() == before


def test_the_second_of_two_simultaneous_puts_learns_that_it_was_not_first(shard: Shard) -> None:
    first, second = entry(next_ms=hour_of(shard)), entry(next_ms=hour_of(shard))
    assert put(shard, first)
    assert not put(shard, second)
    assert put(shard, second, first)
    assert not put(shard, entry(), first)
    assert shard.snapshot()["recurring"] == {NAME: second.pack()}


def test_put_takes_the_waiting_occurrence_back(shard: Shard) -> None:
    due = hour_of(shard) + HOUR_MS
    put(shard, new := entry(next_ms=due))
    before = made(shard, new, due)
    assert before
    after = entry(next_ms=due + 5)
    assert put(shard, after, before, occurrence_id(NAME, due))
    assert shard.snapshot() == {"recurring": {NAME: after.pack()}, "occurrences": {NAME: due + 5}}


def test_put_does_nothing_if_the_occurrence_was_promoted_meanwhile(shard: Shard) -> None:
    due = hour_of(shard)
    put(shard, new := entry(next_ms=due))
    before = made(shard, new, due)
    assert before
    shard.send(leader.sweep(shard.keys, shard.lead(), 30_000, 500))
    snapshot = shard.snapshot()
    assert not put(shard, entry(next_ms=due + 5), before, occurrence_id(NAME, due))
    assert shard.snapshot() == snapshot


# change: pause and remove


def test_a_paused_recurring_job_is_stored_and_not_looked_at(shard: Shard, ear: Ear) -> None:
    put(shard, new := entry(next_ms=hour_of(shard)))
    ear.heard()
    paused = replace(entry(), is_paused=True)
    assert put(shard, paused, new)
    assert shard.snapshot() == {"recurring": {NAME: paused.pack()}}
    assert ear.heard() == []


def test_remove_leaves_nothing(shard: Shard) -> None:
    due = hour_of(shard) + HOUR_MS
    put(shard, new := entry(next_ms=due))
    before = made(shard, new, due)
    assert before
    assert shard.send(calls.change(shard.keys, NAME, before.state, None, None, occurrence_id(NAME, due)))
    assert shard.snapshot() == {}
    assert shard.send(calls.change(shard.keys, NAME, before.state, None, None, None)), "repeated: it is gone"


# read


def test_read_tells_whether_the_last_occurrence_waits(shard: Shard) -> None:
    assert shard.send(calls.read_one(shard.keys, NAME))[1:] == (None, False)
    due = hour_of(shard) + HOUR_MS
    put(shard, new := entry(next_ms=due))
    assert shard.send(calls.read_one(shard.keys, NAME))[1:] == (new, False)
    after = made(shard, new, due)
    assert shard.send(calls.read_one(shard.keys, NAME))[1:] == (after, True)
    shard.send(producer.cancel(shard.keys, occurrence_id(NAME, due)))
    assert shard.send(calls.read_one(shard.keys, NAME))[1:] == (after, False)


@pytest.mark.parametrize("record", [RECORD, record(b"\n\x00 \n-")])
def test_a_record_of_any_bytes_comes_through(shard: Shard, record: bytes) -> None:
    due = hour_of(shard) + HOUR_MS
    put(shard, new := entry(next_ms=due, record=record))
    assert made(shard, new, due)
    assert shard.snapshot()["jobs"] == {occurrence_id(NAME, due): of_occurrence(new)}
    found = shard.send(calls.read_one(shard.keys, NAME)).entry
    assert found
    assert (found.record, found.rule) == (record, RULE)


# near


def test_near_tells_who_is_near_and_when_to_look_again(shard: Shard) -> None:
    now = shard.now_ms()
    entries = {name: entry(next_ms=due) for name, due in {"a": now - 5, "b": now + 9_000, "c": now + 60_000}.items()}
    for name, one in entries.items():
        shard.send(calls.change(shard.keys, name, None, one, one.state.next_ms, None))
    near = shard.send(calls.near(shard.keys, 10_000))
    assert near.coming == [(name, entries[name].state, RULE, "normal") for name in "ab"]
    assert near.look_ms == now + 60_000
    assert shard.send(calls.near(shard.keys, 70_000)).look_ms is None


def test_near_reads_a_hundred_and_tells_that_there_are_more(shard: Shard) -> None:
    now = shard.now_ms()
    for n in range(101):
        shard.send(calls.change(shard.keys, f"r{n}", None, entry(next_ms=now + n), now + n, None))
    near = shard.send(calls.near(shard.keys, 10_000))
    assert [coming.name for coming in near.coming] == [f"r{n}" for n in range(100)]
    assert near.look_ms == now + 100


def test_near_passes_over_a_name_without_a_definition_and_forgets_it(shard: Shard) -> None:
    shard.redis.zadd(shard.keys.occurrences, {"ghost": 1})
    assert shard.send(calls.near(shard.keys, 10_000))[1:] == (None, [], [])
    assert shard.snapshot() == {}


# make


def test_make_schedules_the_job_and_notes_it(shard: Shard) -> None:
    due = hour_of(shard) + HOUR_MS
    put(shard, new := entry(next_ms=due))
    after = made(shard, new, due)
    assert after
    assert shard.snapshot() == {
        "recurring": {NAME: after.pack()},
        "occurrences": {NAME: due + HOUR_MS},
        "delayed": {occurrence_id(NAME, due): due},
        "jobs": {occurrence_id(NAME, due): of_occurrence(new)},
    }


def test_an_occurrence_is_made_once_also_when_it_has_run_and_is_forgotten(shard: Shard) -> None:
    """A second node, one that was frozen and wakes, a call that arrives twice: all tell the state they have seen."""
    due = hour_of(shard)
    put(shard, new := entry(next_ms=due))
    assert made(shard, new, due)
    shard.send(producer.cancel(shard.keys, occurrence_id(NAME, due)))  # as good as finished: no trace of it
    before = shard.snapshot()
    assert made(shard, new, due) is None
    assert shard.snapshot() == before


def test_an_occurrence_of_a_changed_or_removed_job_is_not_made(shard: Shard) -> None:
    due = hour_of(shard)
    put(shard, seen := entry(next_ms=due))
    put(shard, changed := entry(next_ms=due), seen)
    assert made(shard, seen, due) is None
    shard.send(calls.change(shard.keys, NAME, changed.state, None, None, None))
    assert made(shard, changed, due) is None
    assert shard.snapshot() == {}


def test_a_leader_that_has_loaded_further_gets_a_hint(shard: Shard, ear: Ear) -> None:
    token, due = shard.lead(), hour_of(shard) + HOUR_MS
    shard.send(leader.open_window(shard.keys, token, 30_000, None, 2 * HOUR_MS, 100, 1))
    put(shard, new := entry(next_ms=due))
    ear.heard()
    assert made(shard, new, due)
    assert ear.heard() == [f"{due} {occurrence_id(NAME, due)}".encode()]


def test_a_job_that_has_the_id_is_left_alone(shard: Shard) -> None:
    due = hour_of(shard) + HOUR_MS
    shard.schedule((occurrence_id(NAME, due), due + 1), record=record(7))
    put(shard, new := entry(next_ms=due))
    assert made(shard, new, due)
    assert shard.snapshot()["delayed"] == {occurrence_id(NAME, due): due + 1}
    assert shard.snapshot()["jobs"] == {occurrence_id(NAME, due): record(7)}


def test_several_missed_ones_are_made_in_one_step(shard: Shard) -> None:
    now = hour_of(shard)
    put(shard, new := entry(next_ms=now - 2 * HOUR_MS))
    moments = [now - 2 * HOUR_MS, now - HOUR_MS, now]
    assert made(shard, new, *moments)
    assert shard.snapshot()["delayed"] == {occurrence_id(NAME, moment): moment for moment in moments}


def test_a_waiting_occurrence_gives_way_to_the_last_missed_one(shard: Shard) -> None:
    now = hour_of(shard)
    early = occurrence_id(NAME, now - 5 * HOUR_MS)
    put(shard, new := entry(next_ms=now - 5 * HOUR_MS))
    waiting = made(shard, new, now - 5 * HOUR_MS)
    assert waiting
    assert made(shard, waiting, now, superseded=early)
    assert shard.snapshot()["delayed"] == {occurrence_id(NAME, now): now}
    assert shard.snapshot()["jobs"] == {occurrence_id(NAME, now): of_occurrence(new)}


def test_an_occurrence_promoted_late_replaces_the_missed_ones(shard: Shard) -> None:
    now = hour_of(shard)
    early = occurrence_id(NAME, now - 5 * HOUR_MS)
    put(shard, new := entry(next_ms=now - 5 * HOUR_MS))
    waiting = made(shard, new, now - 5 * HOUR_MS)
    assert waiting
    shard.send(leader.sweep(shard.keys, shard.lead(), 30_000, 500))
    after = made(shard, waiting, now, superseded=early)
    assert after
    snapshot = shard.snapshot()
    assert "delayed" not in snapshot
    assert list(snapshot["jobs"]) == [early]
    assert snapshot["recurring"] == {NAME: after.pack()}


def test_an_occurrence_promoted_in_time_does_not_replace_the_missed_ones(shard: Shard) -> None:
    now = shard.now_ms()
    put(shard, new := entry(next_ms=now))
    before = made(shard, new, now)
    assert before
    shard.send(leader.sweep(shard.keys, shard.lead(), 30_000, 500))
    missed = now + HOUR_MS  # as if an hour had passed
    assert made(shard, before, missed, superseded=occurrence_id(NAME, now))
    assert shard.snapshot()["delayed"] == {occurrence_id(NAME, missed): missed}


def test_a_priority_is_told_by_the_score(shard: Shard) -> None:
    due = hour_of(shard) + HOUR_MS
    put(shard, new := entry(next_ms=due))
    jobs = [(occurrence_id(NAME, due), f"{due}h")]
    assert shard.send(calls.make(shard.keys, NAME, new.state, new.state.made(due, None), None, jobs, None))
    assert shard.redis.zscore(shard.keys.delayed, occurrence_id(NAME, due)) == due - 0.25


def test_an_ended_recurring_job_is_no_longer_looked_at(shard: Shard) -> None:
    due = hour_of(shard)
    put(shard, new := entry(next_ms=due))
    state = new.state.made(due, None)
    jobs = [(occurrence_id(NAME, due), str(due))]
    assert shard.send(calls.make(shard.keys, NAME, new.state, state, None, jobs, None))
    assert "occurrences" not in shard.snapshot()
