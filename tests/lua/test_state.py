"""conclude.lua, note.lua, listen.lua, and what get.lua makes of them: what is known of jobs that run or have ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import msgpack

from tests.lua.shard import HOUR_MS, RECORD, Shard, entry
from tests.lua.test_dead import find
from tests.records import OTHER
from tests.waiting import eventually
from wheelq import CancelOutcome, JobState
from wheelq.model.state import Attempt, JobInfo
from wheelq.protocol import attempts, codec
from wheelq.protocol.calls import bulk, bundles, dead, producer, state, worker
from wheelq.protocol.calls.producer import Tagging
from wheelq.protocol.calls.state import Concluded
from wheelq.protocol.calls.worker import Entry

STARTED_MS = 1_763_000_000_000
NEXT = codec.with_life(OTHER, b"its next")
"""The record of another job."""


def conclude(
    shard: Shard,
    entries: Sequence[Entry],
    *,
    group: str = "g",
    consumer: str = "w1",
    keep_done_ms: int = HOUR_MS,
    retention_ms: int = 0,
    result: object = None,
) -> int:
    packed = b"" if result is None else msgpack.packb(result)
    records = [codec.original(one.record) if one.group else b"" for one in entries]
    ended = [
        Concluded(
            one.entry_id, one.member, STARTED_MS, packed, record, attempts.pack(codec.decode(one.record).attempts)
        )
        for one, record in zip(entries, records, strict=True)
    ]
    return shard.send(state.conclude(shard.keys, group, consumer, retention_ms, keep_done_ms, ended)).acknowledged


def note(shard: Shard, *entries: Entry, fraction: float = 0.5, group: str = "g", consumer: str = "w1") -> int:
    said = state.pack_note(fraction, "half", STARTED_MS + 5, STARTED_MS)
    return shard.send(state.note(shard.keys, group, consumer, [(one.entry_id, one.id, said) for one in entries]))


def members(shard: Shard, *ids: str, bundle: str = "b") -> tuple[str, list[Entry]]:
    """A bundle, and the deliveries of its members."""
    bundle = f"{shard.keys.topic}:{bundle}"
    shard.send(bundles.enter(shard.keys, bundle))
    shard.make_group("g")
    jobs = [(id, "+0", codec.encode(1, {}, 1_000, codec.Parts(bundle=bundle))) for id in ids]
    shard.send(producer.schedule(shard.keys, jobs, "keep", "1", Tagging(60_000, 60_000).tag(has_key=True)))
    return bundle, shard.read("g", "w1")


def conclude_members(shard: Shard, *deliveries: Entry) -> int:
    ended = [
        Concluded(
            one.entry_id, one.member, 0, b"", life=one.record[codec.LIFE] if bundles.bundle_of(one.record) else b""
        )
        for one in deliveries
    ]
    safe_until_ms = shard.now_ms() + 60_000
    call = state.conclude(shard.keys, "g", "w1", HOUR_MS, 0, ended, safe_until_ms=safe_until_ms)
    return shard.send(call).acknowledged


def look(shard: Shard, id: str) -> JobInfo:
    found = shard.send(state.get(shard.keys, id))
    assert found is not None
    return found


# conclude


def test_conclude_finishes_a_job_as_ack_does_and_keeps_what_is_to_be_known(shard: Shard, a: Entry) -> None:
    assert conclude(shard, [a], result={"closed": True}) == 1
    assert shard.snapshot() == {
        "ready": {},
        "groups": {"g": {"read": "e1", "pending": {}}},
        "done": ["a"],
        "ended": ["a"],
    }
    info = look(shard, "a")
    assert (info.state, info.payload, info.attempt, info.due_ms) == (JobState.DONE, 1, 1, a.due_ms)
    assert (info.started_ms, info.worker, info.result) == (STARTED_MS, "w1", {"closed": True})
    assert info.promoted_ms == int(a.entry_id.partition("-")[0])
    assert info.finished_ms is not None
    assert info.promoted_ms <= info.finished_ms <= shard.now_ms()


def test_a_kept_job_that_was_retried_keeps_its_earlier_attempts_and_they_go_with_it(shard: Shard) -> None:
    failed = Attempt(STARTED_MS - 500, 20, "w1", "it broke")
    [a] = shard.deliver("a")
    record = codec.again(a.record, a.due_ms, "it broke", counts=True, attempt=failed)
    shard.raw(worker.retry(shard.keys, "g", "w1", a, 0, record))
    shard.sweep()
    [again] = shard.read("g", "w1")
    assert conclude(shard, [again]) == 1
    assert shard.snapshot()["done"] == shard.snapshot()["ended"] == ["a", "a\x1fg"]
    info = look(shard, "a")
    first, last = info.attempts
    assert first == failed
    assert (last.started_ms, last.worker, last.error) == (STARTED_MS, "w1", None)
    assert last.started_ms + last.duration_ms == info.finished_ms
    assert info.groups.keys() == {"g"}


def test_attempts_of_an_earlier_life_of_an_id_are_not_told(shard: Shard, a: Entry) -> None:
    record = codec.again(a.record, a.due_ms, "it broke", counts=True, attempt=Attempt(STARTED_MS, 20, "w1", "it broke"))
    shard.raw(worker.retry(shard.keys, "g", "w1", a, 0, record))
    shard.sweep()
    conclude(shard, shard.read("g", "w1"))
    ended_ms = look(shard, "a").finished_ms
    assert eventually(lambda: shard.now_ms() != ended_ms)
    conclude(shard, shard.deliver("a", record=OTHER))
    [only] = look(shard, "a").attempts
    assert only.error is None


def test_conclude_without_anything_to_keep_is_an_ack(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    assert note(shard, a, b) == 2
    assert conclude(shard, [a], keep_done_ms=0) == 1
    after = shard.snapshot()
    assert "done" not in after
    assert list(after["progress"]) == ["b\x1fg"]
    assert after["jobs"] == {"b": "e2"}


def test_conclude_again_changes_nothing(shard: Shard) -> None:
    """Also when the repeated call has grown by others meanwhile: each is kept once."""
    a, b = shard.deliver("a", "b")
    conclude(shard, [a])
    kept = shard.redis.hget(shard.keys.done, "a")
    before = shard.snapshot()
    assert conclude(shard, [a]) == 0
    assert shard.snapshot() == before
    assert conclude(shard, [a, b]) == 1
    assert shard.redis.hget(shard.keys.done, "a") == kept


def test_a_shard_that_was_given_up_takes_members_only_while_it_has_jobs(url: str, topic: str) -> None:
    """A producer has missed that: without jobs nobody looks at the shard any more. With some, a key may be replaced."""
    with closing(Shard(url, topic, number=1)) as former:
        former.redis.set(former.keys.shards, "1")
        bundle = f"{topic}:b"
        assert former.send(bundles.enter(former.keys, bundle)) == 0
        assert former.send(bundles.totals(former.keys, bundle)) is None
        record = codec.encode(1, {}, 1_000, codec.Parts(bundle=bundle))
        call = producer.schedule(
            former.keys, [("a", "+0", record)], "keep", None, Tagging(60_000, 60_000).tag(has_key=True)
        )
        assert former.send(call).receipts == [None], "no live job here has the id: it belongs elsewhere"
        former.redis.hset(former.keys.jobs, "a", RECORD)
        assert former.send(bundles.enter(former.keys, bundle)) == 1
        assert former.send(bundles.totals(former.keys, bundle)) == bundles.NONE


def test_members_that_no_other_can_have_claimed_are_counted_once_though_concluded_twice(shard: Shard) -> None:
    """Then the call looks up no owner, as an ack."""
    bundle, deliveries = members(shard, "a", "b")
    assert conclude_members(shard, *deliveries[:1]) == 1
    assert conclude_members(shard, *deliveries[:1]) == 0
    assert conclude_members(shard, *deliveries) == 1
    totals = shard.send(bundles.totals(shard.keys, bundle))
    assert totals is not None
    assert (totals.members, totals.done, totals.left) == (2, 2, 0)
    assert shard.redis.hget(shard.keys.counts, "done\x1fg") == b"2"


def test_one_call_counts_the_members_of_several_bundles_among_other_jobs(shard: Shard) -> None:
    others = shard.deliver("x", "y")
    first, of_first = members(shard, "a", bundle="b1")
    second, of_second = members(shard, "b", "c", bundle="b2")
    assert conclude_members(shard, others[0], *of_first, others[1], of_second[0]) == 4
    found = [shard.send(bundles.totals(shard.keys, bundle)) for bundle in (first, second)]
    assert [one and (one.members, one.done, one.left) for one in found] == [(1, 1, 0), (2, 1, 1)]


def test_a_bundle_that_is_closed_again_is_forgotten_when_the_report_arrives_that_was_on_its_way(shard: Shard) -> None:
    """Nobody repeats the second call if its reply is lost, and then no other report comes."""
    bundle, deliveries = members(shard, "a")
    shard.send(bundles.shut(shard.keys, bundle))
    assert conclude_members(shard, *deliveries) == 1
    [(entry_id, fields)] = shard.redis.xrange(shard.keys.outgoing)
    under_way = shard.send(bundles.shut(shard.keys, bundle))
    assert under_way.encode() in fields.values()
    assert shard.send(bundles.forget(shard.keys, bundle, under_way, entry_id.decode(), False)) == 1
    assert not shard.redis.exists(shard.keys.bundles)


def test_conclude_of_a_delivery_that_was_given_to_another_changes_nothing(shard: Shard, a: Entry) -> None:
    shard.redis.xclaim(shard.keys.ready, "g", "w2", 0, [a.entry_id], justid=True)
    before = shard.snapshot()
    assert conclude(shard, [a]) == 0
    assert shard.snapshot() == before


def test_a_job_is_kept_once_for_all_groups(shard: Shard) -> None:
    """Each says when and by whom it was done there, and what came of it."""
    shard.make_group("h")
    [a] = shard.deliver("a")
    conclude(shard, [a], result=1)
    assert look(shard, "a").state is JobState.READY
    assert {name: one.state for name, one in look(shard, "a").groups.items()} == {"g": "done", "h": "ready"}
    [again] = shard.read("h", "w2")
    conclude(shard, [again], group="h", consumer="w2", result=2)
    info = look(shard, "a")
    assert info.state is JobState.DONE
    assert {name: (one.worker, one.result) for name, one in info.groups.items()} == {"g": ("w1", 1), "h": ("w2", 2)}
    assert shard.snapshot()["done"] == ["a"]


def test_a_retry_of_another_group_that_is_passed_over_is_not_kept(shard: Shard) -> None:
    shard.make_group("h")
    [a] = shard.deliver("a")
    conclude(shard, shard.read("h", "w2"), group="h", consumer="w2", result="h")
    shard.retry(a)
    shard.sweep()
    [passed_over] = shard.read("h", "w2")
    assert passed_over.group == "g"
    assert conclude(shard, [passed_over], group="h", consumer="w2") == 1
    [again] = shard.read("g", "w1")
    conclude(shard, [again], result="g")
    info = look(shard, "a")
    assert {name: (one.result, one.attempt) for name, one in info.groups.items()} == {"g": ("g", 2), "h": ("h", 1)}


def test_the_kept_state_of_an_earlier_job_gives_way_to_a_newer_job_with_its_id(shard: Shard) -> None:
    conclude(shard, shard.deliver("a"), result="old")
    [again] = shard.deliver("a", record=OTHER)
    info = look(shard, "a")
    assert (info.state, info.result) == (JobState.RUNNING, None)
    conclude(shard, [again], result="new")
    assert look(shard, "a").result == "new"


def test_a_kept_job_has_only_the_groups_that_finished_this_life_of_its_id(shard: Shard) -> None:
    shard.make_group("h")
    [first] = shard.deliver("a")
    conclude(shard, [first], result=1)
    conclude(shard, shard.read("h", "w1"), group="h", result=1)
    again = codec.with_life(RECORD, b"its next")
    [second] = shard.deliver("a", record=again)
    conclude(shard, [second], result=2)
    found = shard.send(state.get(shard.keys, "a", codec.life_of(again)))
    assert found is not None
    assert [(name, one.result) for name, one in found.groups.items() if one.is_finished] == [("g", 2)]


def test_the_kept_state_of_a_rerun_is_found_although_a_newer_job_with_its_id_was_cancelled(shard: Shard) -> None:
    [entry] = shard.deliver("a")
    shard.ack([entry], retention_ms=HOUR_MS)
    shard.schedule(("a", f"+{HOUR_MS}"), record=OTHER)
    shard.send(bulk.rerun(shard.keys, "r", "g", 0, None, 100))
    conclude(shard, shard.read("g", "w1"))
    assert shard.send(producer.cancel(shard.keys, "a")) is CancelOutcome.CANCELLED
    assert look(shard, "a").state is JobState.DONE


def later(shard: Shard) -> None:
    """Lets the time pass in which the last job was scheduled."""
    now_ms = shard.now_ms()
    assert eventually(lambda: shard.now_ms() > now_ms)


def replay(shard: Shard) -> Entry:
    shard.send(dead.replay(shard.keys, find(shard).jobs, 0, 0))
    shard.sweep()
    [again] = [one for one in shard.read("g", "w1") if one.group]
    return again


def test_the_end_of_a_replayed_job_is_kept_in_place_of_an_earlier_job_with_its_id(shard: Shard) -> None:
    conclude(shard, shard.deliver("a"), result="earlier")
    later(shard)
    [entry] = shard.deliver("a", record=NEXT)
    shard.bury(entry)
    info = look(shard, "a")
    assert (info.state, info.payload, info.promoted_ms) == (JobState.DEAD, 2, None), (
        "nothing is told of the earlier job"
    )
    conclude(shard, [replay(shard)], result="of the replay")
    info = look(shard, "a")
    assert (info.state, info.payload, info.result) == (JobState.DONE, 2, "of the replay")


def test_the_end_of_a_replayed_job_is_not_kept_in_place_of_a_later_job_with_its_id(shard: Shard) -> None:
    [entry] = shard.deliver("a")
    shard.bury(entry)
    later(shard)
    conclude(shard, shard.deliver("a", record=NEXT), result="later")
    conclude(shard, [replay(shard)], result="of the replay")
    assert look(shard, "a").result == "later"


def test_a_job_is_kept_although_the_rerun_of_an_earlier_job_with_its_id_ended_while_it_ran(shard: Shard) -> None:
    [entry] = shard.deliver("a")
    shard.ack([entry], retention_ms=HOUR_MS)
    before_ms = shard.now_ms()
    assert eventually(lambda: shard.now_ms() > before_ms)
    [running] = shard.deliver("a", record=NEXT)
    shard.send(bulk.rerun(shard.keys, "r", "g", 0, before_ms, 100))
    conclude(shard, shard.read("g", "w1"), result="of the rerun")
    conclude(shard, [running], result="later")
    assert look(shard, "a").result == "later"


def test_finished_jobs_are_forgotten_in_time(shard: Shard) -> None:
    """By later calls of the same kind, some at a time."""
    conclude(shard, shard.deliver("a", "b", "c"))
    shard.redis.zadd(shard.keys.ended, {id: shard.now_ms() - 10_000 for id in "abc"})
    conclude(shard, shard.deliver("d"), keep_done_ms=9_000)
    after = shard.snapshot()
    assert (after["done"], after["ended"]) == (["c", "d"], ["c", "d"])


# schedule finds what is kept


def test_a_repeated_schedule_call_finds_its_finished_job(shard: Shard, a: Entry) -> None:
    """ "Created", with the due time it was told the first time, and nothing is made."""
    conclude(shard, [a])
    before = shard.snapshot()
    assert shard.schedule(("a", "+0")) == [(1, a.due_ms)]
    assert shard.snapshot() == before


def test_a_repeated_schedule_call_finds_its_job_that_was_retried(shard: Shard, a: Entry) -> None:
    shard.retry(a)
    shard.sweep()
    conclude(shard, shard.read("g", "w1"))
    before = shard.snapshot()
    [(status, _)] = shard.schedule(("a", "+0"))
    assert status == 1
    assert shard.snapshot() == before


def test_another_call_with_the_id_of_a_finished_job_makes_a_new_one(shard: Shard) -> None:
    conclude(shard, shard.deliver("a"))
    due = shard.now_ms() + HOUR_MS
    assert shard.schedule(("a", due), record=OTHER) == [(1, due)]
    assert shard.snapshot()["delayed"] == {"a": due}
    assert look(shard, "a").state is JobState.WAITING


# note


def test_a_note_is_shown_while_the_job_runs(shard: Shard, a: Entry) -> None:
    assert note(shard, a, fraction=0.2) == note(shard, a, fraction=0.5) == 1
    info = look(shard, "a")
    assert info.progress is not None
    assert (info.progress.fraction, info.progress.text, info.progress.at_ms) == (0.5, "half", STARTED_MS + 5)
    assert (info.started_ms, info.state) == (STARTED_MS, JobState.RUNNING)


def test_a_note_about_a_job_that_is_not_the_callers_any_more_is_passed_over(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    shard.redis.xclaim(shard.keys.ready, "g", "w2", 0, [a.entry_id], justid=True)
    assert note(shard, a, b) == 1
    assert list(shard.snapshot()["progress"]) == ["b\x1fg"]


def test_notes_of_workers_that_died_do_not_stay_for_ever(shard: Shard) -> None:
    note(shard, *shard.deliver("a"))
    assert 0 < shard.redis.pttl(shard.keys.progress) <= state.PROGRESS_KEEP_MS


# the dead


def test_a_buried_job_is_found_among_the_dead(shard: Shard, a: Entry) -> None:
    note(shard, a)
    dead_id = shard.bury(a)
    assert "progress" not in shard.snapshot()
    info = look(shard, "a")
    assert (info.state, info.payload, info.attempt, info.last_error) == (JobState.DEAD, 1, 1, "it broke")
    assert info.groups["g"].reason == "failed"
    assert info.finished_ms == int(dead_id.partition(b"-")[0])


def test_a_job_that_some_group_gave_up_is_dead_when_all_have_finished(shard: Shard) -> None:
    shard.make_group("h")
    [a] = shard.deliver("a")
    shard.bury(a)
    assert look(shard, "a").state is JobState.READY
    conclude(shard, shard.read("h", "w2"), group="h", consumer="w2")
    info = look(shard, "a")
    assert info.state is JobState.DEAD
    assert {name: one.state for name, one in info.groups.items()} == {"g": "dead", "h": "done"}


def test_a_dead_entry_of_an_earlier_job_is_not_taken_for_the_newer_ones(shard: Shard, a: Entry) -> None:
    shard.bury(a)
    shard.wait_until(shard.now_ms() + 2)
    shard.deliver("a", record=OTHER)
    assert look(shard, "a").state is JobState.RUNNING


def test_a_removed_dead_entry_is_not_found(shard: Shard, a: Entry) -> None:
    shard.redis.xdel(shard.keys.dead, shard.bury(a))
    assert shard.send(state.get(shard.keys, "a")) is None


# news


def test_ends_are_told_only_while_somebody_listens(shard: Shard) -> None:
    a, b, c, d = shard.deliver("a", "b", "c", "d")
    conclude(shard, [a])
    assert "news" not in shard.snapshot()
    cursor = shard.send(state.listen(shard.keys))
    assert shard.send(state.listen(shard.keys)) == cursor
    conclude(shard, [b, c])
    shard.bury(d)
    assert shard.snapshot()["news"] == ["", "b\nc", "d"]
    later, ended = shard.send(state.news_since(shard.keys, cursor, 1))
    assert ended == {"b", "c", "d"}
    assert shard.send(state.news_since(shard.keys, later, 1)) == (later, set())
    assert 0 < shard.redis.pttl(shard.keys.news) <= state.NEWS_MS


def test_a_cancelled_job_is_told_too(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    shard.send(state.listen(shard.keys))
    shard.send(producer.cancel(shard.keys, "a"))
    assert shard.snapshot() == {"news": ["", "a"]}


def test_a_job_is_looked_up_in_one_step(shard: Shard, a: Entry) -> None:
    """What is left in the stream by retention is no job any more."""
    shard.ack([a], retention_ms=HOUR_MS)
    assert shard.snapshot()["ready"] == {"e1": entry("a", a.due_ms, record=RECORD)}
    assert shard.send(state.get(shard.keys, "a")) is None


# Runs again


def test_the_kept_state_of_a_job_that_runs_again_and_again_does_not_grow(shard: Shard) -> None:
    """The last run of each group is kept."""
    shard.make_group("other")
    conclude(shard, shard.deliver("a"), retention_ms=HOUR_MS, result="first")
    conclude(shard, shard.read("other", "w2"), group="other", consumer="w2", retention_ms=HOUR_MS, result="its own")
    sizes = set()
    for n in range(10, 30):
        shard.send(bulk.rerun(shard.keys, f"r{n}", "g", 0, None, 100))
        conclude(shard, shard.read("g", "w1"), retention_ms=HOUR_MS, result=f"run {n}")
        conclude(shard, shard.read("other", "w2"), group="other", consumer="w2", retention_ms=HOUR_MS)
        sizes.add(shard.redis.hstrlen(shard.keys.done, "a"))
    groups = look(shard, "a").groups
    assert (groups["g"].result, groups["other"].result) == ("run 29", "its own")
    assert max(sizes) - min(sizes) < 10, sizes
