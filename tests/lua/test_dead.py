"""find_dead.lua, replay.lua, purge.lua, and how bury.lua trims: what becomes of jobs that were given up."""

from __future__ import annotations

import pytest

from tests.lua.shard import HOUR_MS, RECORD, Ear, Shard, entry
from tests.records import record, unstamped
from wheelq.model.dead import DeadFilter, DeadJob, ReplayOutcome
from wheelq.protocol import codec
from wheelq.protocol.calls import dead as calls
from wheelq.protocol.calls import leader, shard_counts, worker
from wheelq.protocol.calls.dead import DeadRange, FoundDead
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import MEMBER_SEPARATOR
from wheelq.settings import TopicSettings

ANY = DeadFilter()
ANEW = codec.replayed(RECORD)


def buried(shard: Shard, *ids: str, group: str = "g", settings: TopicSettings | None = None) -> None:
    """Let jobs be delivered and given up."""
    for delivery in shard.deliver(*ids, group=group):
        shard.bury(delivery, group=group, settings=settings or TopicSettings())


def find(shard: Shard, where: DeadFilter = ANY, limit: int = 100, *, newest_first: bool = False) -> FoundDead:
    return shard.send(calls.find(shard.keys, where, DeadRange.of(where), limit, newest_first=newest_first))


def ids(found: FoundDead) -> list[str]:
    return [job.id for job, _ in found.jobs]


def replay(shard: Shard, jobs: list[tuple[DeadJob, bytes]], due_ms: int = 0, spacing_ms: int = 0) -> list[str]:
    return [str(it) for it in shard.send(calls.replay(shard.keys, jobs, due_ms, spacing_ms)).outcomes]


def member(id: str, group: str = "g") -> str:
    return f"{id}{MEMBER_SEPARATOR}{group}"


# find


def test_a_dead_job_tells_what_became_of_it(shard: Shard) -> None:
    before = shard.now_ms()
    [a] = shard.deliver("a")
    shard.bury(a)
    [(job, record)] = find(shard).jobs
    assert unstamped(record) == RECORD
    assert (job.id, job.group, job.reason, job.error, job.traceback) == ("a", "g", "failed", "it broke", "Traceback")
    assert (job.attempt, job.payload, job.due_ms, job.first_due_ms, job.replays) == (1, 1, a.due_ms, a.due_ms, 0)
    assert before <= job.buried_ms <= shard.now_ms()


def test_dead_jobs_are_found_from_either_end(shard: Shard) -> None:
    buried(shard, "a", "b", "c")
    assert ids(find(shard)) == ["a", "b", "c"]
    assert ids(find(shard, newest_first=True)) == ["c", "b", "a"]
    assert find(shard).looked_to is None


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_call_that_has_found_enough_tells_where_to_go_on(shard: Shard, newest_first: bool) -> None:
    buried(shard, "a", "b", "c")
    first = find(shard, limit=2, newest_first=newest_first)
    assert ids(first) == (["c", "b"] if newest_first else ["a", "b"])
    assert first.looked_to is not None
    assert str(first.looked_to) == first.jobs[-1][0].dead_id
    assert find(shard, limit=3, newest_first=newest_first).looked_to is None


def test_a_call_looks_at_a_bounded_number_of_entries(shard: Shard) -> None:
    for n in range(calls.LOOKED_AT + 5):
        fields = {"id": str(n), "group": "rare" if n > calls.LOOKED_AT else "g", "record": RECORD}
        shard.redis.xadd(shard.keys.dead, fields)  # type: ignore[arg-type]
    where = DeadFilter(group="rare")
    first = find(shard, where)
    assert first.jobs == []
    assert first.looked_to is not None
    span = DeadRange(f"({first.looked_to.entry_id}", "+")
    rest = shard.send(calls.find(shard.keys, where, span, 100, newest_first=False))
    assert len(rest.jobs) == 4


def test_only_what_matches_everything_is_found(shard: Shard) -> None:
    shard.make_group("h")
    for delivery in shard.deliver("a", "b"):
        shard.bury(delivery)
    for delivery in shard.read("h", "w2"):
        shard.bury(delivery, group="h", consumer="w2")
    assert ids(find(shard, DeadFilter(group="h"))) == ["a", "b"]
    assert ids(find(shard, DeadFilter(id="a"))) == ["a", "a"]
    assert ids(find(shard, DeadFilter(group="h", id="a"))) == ["a"]
    assert ids(find(shard, DeadFilter(reason="given_up"))) == []


def test_a_time_has_a_beginning_that_belongs_to_it_and_an_end_that_does_not(shard: Shard) -> None:
    buried(shard, "a")
    [(job, _)] = find(shard).jobs
    assert ids(find(shard, DeadFilter(since_ms=job.buried_ms, until_ms=job.buried_ms + 1))) == ["a"]
    assert ids(find(shard, DeadFilter(until_ms=job.buried_ms))) == []
    assert ids(find(shard, DeadFilter(since_ms=job.buried_ms + 1))) == []


def test_a_foreign_entry_is_shown_too(shard: Shard) -> None:
    shard.redis.xadd(shard.keys.dead, {"hello": b"\xff"})
    [(job, _)] = find(shard).jobs
    assert (job.id, job.group, job.payload) == ("", "", None)


# replay


def test_replay_lets_a_dead_job_wait_again_in_its_group(shard: Shard) -> None:
    buried(shard, "a")
    before = shard.now_ms()
    assert replay(shard, find(shard).jobs) == ["replayed"]
    after = shard.snapshot()
    due = after["delayed"][member("a")]
    assert before <= due <= shard.now_ms()
    assert after == {
        "delayed": {member("a"): due},
        "jobs": {"a": "0-0", member("a"): ANEW},
        "retries": 1,
        "ready": {},
        "groups": {"g": {"read": "e1", "pending": {}}},
        "dead": [],
        "replays": [":dead"],
    }
    assert 0 < shard.redis.pttl(shard.keys.replays) <= 24 * HOUR_MS


def test_replay_again_changes_nothing(shard: Shard) -> None:
    buried(shard, "a")
    jobs = find(shard).jobs
    replay(shard, jobs)
    before = shard.snapshot()
    assert replay(shard, jobs) == ["not_found"]
    assert shard.snapshot() == before


def test_a_replayed_job_leaves_nothing_when_it_is_done(shard: Shard) -> None:
    buried(shard, "a")
    replay(shard, find(shard).jobs)
    shard.sweep()
    [a] = shard.read("g", "w1")
    assert (a.id, a.attempt, a.group) == ("a", 1, "g")
    shard.ack([a])
    shard.redis.delete(shard.keys.replays)  # for a day it tells when a dead job was called back
    assert shard.snapshot() == {"ready": {}, "groups": {"g": {"read": "e2", "pending": {}}}, "dead": []}


def test_a_replayed_job_can_die_again(shard: Shard) -> None:
    buried(shard, "a")
    replay(shard, find(shard).jobs)
    shard.sweep()
    [a] = shard.read("g", "w1")
    shard.bury(a)
    [(job, record)] = find(shard).jobs
    assert (job.replays, codec.decode(codec.replayed(record)).replays) == (1, 2)
    assert replay(shard, find(shard).jobs) == ["replayed"]


def test_the_id_of_a_replayed_job_is_taken(shard: Shard) -> None:
    buried(shard, "a")
    replay(shard, find(shard).jobs)
    [(status, _)] = shard.schedule(("a", "+60000"), record=record(life=b"another "))
    assert status == 3
    [(status, _)] = shard.schedule(("a", "+60000"))
    assert status == 1, "the same call finds its job"
    assert list(shard.snapshot()["delayed"]) == [member("a")]


def test_a_job_whose_id_has_a_new_life_stays_dead(shard: Shard) -> None:
    buried(shard, "a")
    shard.schedule(("a", "+60000"))
    before = shard.snapshot()
    assert replay(shard, find(shard).jobs) == ["alive"]
    assert shard.snapshot() == before
    shard.schedule(("a", "+0"), on_duplicate="replace")
    shard.sweep()
    assert replay(shard, find(shard).jobs) == ["alive"], "ready is alive too"


@pytest.mark.parametrize("is_promoted", [False, True])
def test_of_two_lives_of_an_id_that_two_groups_gave_up_one_is_replayed(shard: Shard, is_promoted: bool) -> None:
    shard.make_group("h")
    buried(shard, "a")
    shard.ack(shard.read("h", "w2"), group="h", consumer="w2")
    shard.schedule(("a", "+0"), record=codec.with_life(RECORD, b"new life"))
    shard.ack(shard.read("g", "w1"))
    [theirs] = shard.read("h", "w2")
    shard.bury(theirs, "h", "w2")
    first, second = find(shard).jobs
    assert replay(shard, [first]) == ["replayed"]
    if is_promoted:
        shard.sweep()
    assert replay(shard, [second]) == ["alive"]
    shard.sweep()
    for group, consumer in (("g", "w1"), ("h", "w2")):
        shard.ack(shard.read(group, consumer), group=group, consumer=consumer)
    assert replay(shard, [second]) == ["replayed"]


def test_a_job_that_another_group_is_still_running_can_be_replayed(shard: Shard) -> None:
    shard.make_group("h")
    buried(shard, "a")
    [theirs] = shard.read("h", "w2")
    assert replay(shard, find(shard).jobs) == ["replayed"]
    assert shard.snapshot()["jobs"] == {"a": "e1", member("a"): ANEW}
    shard.ack([theirs], group="h", consumer="w2")
    assert shard.snapshot()["jobs"] == {"a": "e1", member("a"): ANEW}, "alive until the replay is done"
    shard.sweep()
    [mine] = shard.read("g", "w1")
    shard.ack([mine])
    assert "jobs" not in shard.snapshot()


@pytest.mark.parametrize("first", ["g", "h"])
def test_a_job_that_two_groups_gave_up_is_replayed_in_each_on_its_own(shard: Shard, first: str) -> None:
    shard.make_group("h")
    buried(shard, "a")
    for delivery in shard.read("h", "w2"):
        shard.bury(delivery, group="h", consumer="w2")
    assert replay(shard, find(shard).jobs) == ["replayed", "replayed"]
    shard.sweep()
    groups = [first, "h" if first == "g" else "g"]
    for group in groups:
        deliveries = shard.read(group, "w1")
        assert sorted(str(delivery.group) for delivery in deliveries) == ["g", "h"]
        assert "a" in shard.snapshot()["jobs"]
        shard.ack(deliveries, group=group)
    after = shard.snapshot()
    assert "jobs" not in after
    assert after["ready"] == {}


def test_two_lives_of_one_id_are_replayed_one_after_the_other(shard: Shard) -> None:
    buried(shard, "a")
    buried(shard, "a")
    assert replay(shard, find(shard).jobs) == ["replayed", "alive"]
    assert len(shard.snapshot()["dead"]) == 1


def test_a_job_without_a_record_cannot_be_replayed(shard: Shard) -> None:
    shard.redis.zadd(shard.keys.delayed, {"a": 1})
    shard.sweep()
    before = shard.snapshot()
    assert replay(shard, find(shard).jobs) == [ReplayOutcome.NO_RECORD]
    assert shard.snapshot() == before


def test_replayed_jobs_fall_due_at_a_rate(shard: Shard) -> None:
    buried(shard, "a", "b", "c")
    begin = shard.now_ms() + HOUR_MS
    answer = shard.send(calls.replay(shard.keys, find(shard).jobs, begin, 100))
    assert shard.snapshot()["delayed"] == {member(id): begin + n * 100 for n, id in enumerate("abc")}
    assert answer.next_due_ms == begin + 300


def test_replay_rings_the_leader_if_it_has_loaded_further(shard: Shard, ear: Ear) -> None:
    buried(shard, "a", "b")
    shard.send(leader.open_window(shard.keys, shard.lead(), 30_000, None, HOUR_MS, 100, HOUR_MS))
    replay(shard, find(shard).jobs, shard.now_ms() + HOUR_MS - 60_000, HOUR_MS)
    [hint] = ear.heard()
    assert [name for name, _ in leader.read_near(hint)] == [member("a")]


# purge


def test_purge_removes_what_matches_and_nothing_else(shard: Shard) -> None:
    buried(shard, "a", "b", "c")
    where = DeadFilter(id="b")
    answer = shard.send(calls.purge(shard.keys, where, DeadRange.of(where)))
    assert (answer.purged, answer.looked_to) == (1, None)
    assert [job["id"] for job in shard.snapshot()["dead"]] == ["a", "c"]
    assert shard.send(calls.purge(shard.keys, where, DeadRange.of(where))).purged == 0


# Retention


def test_more_dead_jobs_than_allowed_push_the_oldest_out(shard: Shard) -> None:
    buried(shard, "a", "b", "c", settings=TopicSettings(dead_max=2))
    assert [job["id"] for job in shard.snapshot()["dead"]] == ["b", "c"]


def test_dead_jobs_that_are_too_old_go_twenty_at_a_time(shard: Shard) -> None:
    for n in range(30):
        shard.redis.xadd(shard.keys.dead, {"id": f"old-{n}"}, id=f"{1000 + n}-0")
    buried(shard, "a", settings=TopicSettings(dead_retention_ms=HOUR_MS))
    assert [job["id"] for job in shard.snapshot()["dead"]] == [f"old-{n}" for n in range(20, 30)] + ["a"]
    buried(shard, "b", settings=TopicSettings(dead_retention_ms=HOUR_MS))
    assert [job["id"] for job in shard.snapshot()["dead"]] == ["a", "b"]


def test_without_limits_all_are_kept(shard: Shard) -> None:
    shard.redis.xadd(shard.keys.dead, {"id": "old"}, id="1000-0")
    buried(shard, "a", settings=TopicSettings(dead_retention_ms=0, dead_max=0))
    assert len(shard.snapshot()["dead"]) == 2


def test_a_buried_retry_tells_when_the_job_was_first_due(shard: Shard, a: Entry) -> None:
    record = codec.again(a.record, a.due_ms, "it broke", counts=True)
    shard.send(worker.retry(shard.keys, "g", "w1", a, 0, record))
    shard.sweep()
    [again] = shard.read("g", "w1")
    assert entry("a", again.due_ms, 2, unstamped(record), "g") in shard.snapshot()["ready"].values()
    known = codec.decode(again.record)
    assert (known.attempt, known.last_error, known.first_due_ms) == (2, "it broke", a.due_ms)


# clear_out


def clear_out(shard: Shard, settings: TopicSettings, silent_ms: int = HOUR_MS) -> tuple[int, int]:
    [cleared] = shard.send(worker.clear_out([(shard.keys, settings)], "g", silent_ms))
    return cleared.consumers, cleared.dead


def test_clearing_out_tells_when_the_first_waiting_job_is_due(shard: Shard) -> None:
    call = worker.clear_out([(shard.keys, TopicSettings())], "g", HOUR_MS)
    assert shard.send(call)[0].first_due_ms is None
    shard.schedule(("late", "+60000"))
    due_ms = shard.send(shard_counts.counts(shard.keys)).first_due_ms
    assert due_ms is not None
    assert shard.send(call)[0].first_due_ms == due_ms


def test_clearing_out_removes_dead_jobs_too_where_none_is_buried_any_more(shard: Shard) -> None:
    shard.make_group("g")
    for n in range(30):
        shard.redis.xadd(shard.keys.dead, {"id": f"old-{n}"}, id=f"{1000 + n}-0")
    shard.redis.xadd(shard.keys.dead, {"id": "new"})
    settings = TopicSettings(dead_retention_ms=HOUR_MS)
    assert [clear_out(shard, settings) for _ in range(3)] == [(0, 20), (0, 10), (0, 0)]
    assert [job["id"] for job in shard.snapshot()["dead"]] == ["new"]


def test_clearing_out_removes_silent_consumers_and_never_one_that_holds_a_delivery(shard: Shard) -> None:
    shard.deliver("a", consumer="holds")
    shard.redis.xgroup_createconsumer(shard.keys.ready, "g", "empty")
    assert clear_out(shard, TopicSettings()) == (0, 0), "not silent for long"
    while clear_out(shard, TopicSettings(), silent_ms=0)[0] == 0:
        pass
    names = [info["name"] for info in shard.redis.xinfo_consumers(shard.keys.ready, "g")]
    assert names == [b"holds"]
