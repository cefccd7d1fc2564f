"""Limits per key in the scripts: who is promoted, who is held back, and when a permit is given back."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.lua.shard import LEASE_MS, Ear, Shard
from wheelq.model.job import OnDuplicate
from wheelq.model.topic import Shaping, Topic
from wheelq.protocol import codec
from wheelq.protocol.calls import bulk, leader, leases, producer, registry, removal, state, worker
from wheelq.protocol.calls.leader import KEY_MARK, LookPlace, Swept
from wheelq.protocol.calls.worker import Entry

HELD = 2**45
NUMBERS = itertools.count()


def record_of(key: str | None) -> bytes:
    """A record with this partition key, and a life of its own."""
    record = codec.encode(None, {}, 1_000, parts=codec.Parts(partition_key=key))
    return record[:9] + next(NUMBERS).to_bytes(8, "big") + record[17:]


def left_by_limits(shard: Shard) -> tuple[str, ...]:
    return shard.keys.held, shard.keys.permits, shard.keys.permitted


def move_held(shard: Shard, key: str, order: str, id: str, due_ms: int) -> None:
    """As if a job that is held back were due then: the server's clock was ahead when it was."""
    [*places] = shard.redis.zscan_iter(shard.keys.held, f"{key}\x1f{order}*\x1f{id}")
    assert len(places) == 1
    shard.redis.zrem(shard.keys.held, places[0][0])
    shard.redis.zadd(shard.keys.held, {f"{key}\x1f{order}{due_ms:016.2f}\x1f{id}": 0})
    shard.redis.zadd(shard.keys.delayed, {id: HELD + due_ms})


class Keyed:
    """A shard whose topic has limits per key."""

    def __init__(self, shard: Shard, most: int = 0, rate: float = 0.0) -> None:
        self.shard = shard
        self.topic = Topic(key_concurrency=most, key_rate=rate)
        self.shaping = Shaping(0, 0, 0, most, rate)
        self.place = LookPlace()
        shard.send(registry.fence(shard.keys, self.topic.terms, 1))

    def wait(self, key: str | None, *ids: str, due: int = 0, on_duplicate: OnDuplicate = "keep") -> None:
        now = self.shard.now_ms()
        jobs = [(id, str(now - 1_000 + due + n), record_of(key)) for n, id in enumerate(ids)]
        self.shard.send(producer.schedule(self.shard.keys, jobs, on_duplicate, self.topic.terms))

    def sweep(self, *freed: str, looks: bool = False, limit: int = 100) -> list[str]:
        """Sweep; the ids that were promoted by it, in order."""
        before = {entry for entry, _ in self.shard.redis.xrange(self.shard.keys.ready)}
        token = self.shard.send(leader.acquire(self.shard.keys, "n", "run:1", LEASE_MS, self.topic.terms)).token
        keys = [KEY_MARK + key for key in freed]
        place = self.place if looks else None
        call = leader.sweep(self.shard.keys, token, LEASE_MS, limit, self.shaping, keys, place)
        self.swept: Swept = self.shard.send(call)
        assert self.swept.keys is not None
        if looks:
            self.place = self.swept.keys.place
        found = self.shard.redis.xrange(self.shard.keys.ready)
        return [fields[b"id"].decode() for entry, fields in found if entry not in before]

    def sweep_until(self, key: str, id: str) -> None:
        """Serve the key again and again, until it is this job's turn."""
        while not (found := self.sweep(key)):
            pass
        assert found == [id]

    def held(self) -> list[str]:
        """The ids that are held back, by the scores alone."""
        return [id.decode() for id in self.shard.redis.zrangebyscore(self.shard.keys.delayed, HELD, "+inf")]

    def permits(self) -> list[str]:
        """The key of each permit."""
        members = self.shard.redis.zrange(self.shard.keys.permits, 0, -1)
        keys = sorted(member.decode().partition("\x1f")[0] for member in members)
        assert keys == sorted(
            value.decode().partition("\x1f")[2] for value in self.shard.redis.hvals(self.shard.keys.permitted)
        )
        return keys


def test_limits_that_are_removed_and_set_again_lose_no_job_that_is_held_back(shard: Shard) -> None:
    """The second change comes before a sweep has reached them all."""
    keyed = Keyed(shard, most=1)
    keyed.wait("k", "a", "b", "c", "d")
    assert keyed.sweep() == ["a"]
    assert keyed.held() == ["b", "c", "d"]
    plain = Topic()
    shard.send(registry.fence(shard.keys, plain.terms, 2))
    token = shard.send(leader.acquire(shard.keys, "n", "run:1", LEASE_MS, plain.terms)).token
    shard.send(leader.sweep(shard.keys, token, LEASE_MS, 1, Shaping(0, 0, 0)))
    assert keyed.held() == ["c", "d"]
    keyed.topic, keyed.shaping = Topic(key_concurrency=9), Shaping(0, 0, 0, 9, 0.0)
    shard.send(registry.fence(shard.keys, keyed.topic.terms, 3))
    assert keyed.sweep("k", looks=True) == ["c", "d"]
    assert keyed.held() == []


def test_a_key_gets_as_many_permits_as_its_limit_and_the_rest_is_held_back_in_order(shard: Shard) -> None:
    keyed = Keyed(shard, 2)
    keyed.wait("ann", "a1", "a2", "a3", "a4")
    keyed.wait("bob", "b1", due=2)
    keyed.wait(None, "free", due=9)
    assert keyed.sweep() == ["a1", "a2", "b1", "free"]
    assert (keyed.held(), keyed.permits()) == (["a3", "a4"], ["ann", "ann", "bob"])
    assert shard.send(producer.waiting(shard.keys, 0.0, 1e15, b"", 10))[0].due_ms < shard.now_ms()
    keyed.wait("ann", "earlier", due=-500)
    assert keyed.sweep() == []
    assert keyed.held() == ["earlier", "a3", "a4"]
    assert keyed.sweep("ann", "bob", "nobody") == []


def conclude(shard: Shard, entry: Entry) -> object:
    ended = state.Concluded(entry.entry_id, entry.member, 0, b"")
    return shard.send(state.conclude(shard.keys, "g", "w1", 0, 60_000, [ended])).acknowledged


def ack_with_others(shard: Shard, entry: Entry) -> object:
    acks = worker.Acks(shard.keys, 0, 0, [(entry.entry_id, entry.member)])
    return shard.send(worker.ack_some([acks], "g", "w1")) == [1]


SETTLES: dict[str, Callable[[Shard, Entry], object]] = {
    "ack": lambda shard, entry: shard.ack([entry]),
    "ack of many shards": ack_with_others,
    "conclude": conclude,
    "retry": lambda shard, entry: shard.retry(entry, pause_ms=60_000),
    "burial": lambda shard, entry: shard.bury(entry),
    "taken by its id": lambda shard, entry: shard.send(leases.take(shard.keys, "g", entry.id)),
    "end of the group": lambda shard, entry: shard.send(removal.remove_group(shard.keys, "g", removal.BEGIN)),
}


@pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)
def test_what_settles_a_delivery_gives_its_permit_back_and_hints_the_leader(
    shard: Shard, settle: Callable[[Shard, Entry], object]
) -> None:
    keyed = Keyed(shard, 1)
    shard.make_group("g")
    keyed.wait("ann", "a1", "a2")
    keyed.sweep()
    [entry] = shard.read("g", "w1")
    ear = Ear(shard)
    assert settle(shard, entry)
    assert keyed.permits() == []
    hints = [job for message in ear.heard() for job in leader.read_near(message)]
    ear.close()
    assert (f"{KEY_MARK}ann", 0) in hints
    assert keyed.sweep("ann") == ["a2"]
    assert keyed.permits() == ["ann"]


def test_a_permit_is_held_until_each_group_has_ended_the_job_and_a_retry_needs_one_for_its_own_group(
    shard: Shard,
) -> None:
    keyed = Keyed(shard, 1)
    for group in ("g", "h"):
        shard.make_group(group)
    keyed.wait("ann", "a1", "a2")
    keyed.sweep()
    [of_g], [of_h] = shard.read("g", "w1"), shard.read("h", "w2")
    shard.retry(of_g)
    assert keyed.permits() == ["ann"]
    assert keyed.sweep() == []
    assert keyed.held() == ["a1\x1fg", "a2"] or keyed.held() == ["a2", "a1\x1fg"]
    shard.ack([of_h], group="h", consumer="w2")
    assert keyed.permits() == []
    assert keyed.sweep("ann") == ["a2"]
    [second] = shard.read("g", "w1")
    shard.ack([second])
    [second] = shard.read("h", "w2")
    shard.ack([second], group="h", consumer="w2")
    assert keyed.sweep("ann") == ["a1"]
    assert shard.redis.hvals(shard.keys.permitted) == [b"g\x1fann"]
    [skipped] = shard.read("h", "w2")
    shard.ack([skipped], group="h", consumer="w2")
    assert keyed.permits() == ["ann"]
    [again] = shard.read("g", "w1")
    shard.ack([again])
    assert keyed.permits() == []
    assert not shard.redis.exists(*left_by_limits(shard), shard.keys.retries, shard.keys.jobs, shard.keys.delayed)


def test_a_sweep_looks_for_permits_that_are_over_and_for_keys_that_were_freed_without_a_hint(shard: Shard) -> None:
    keyed = Keyed(shard, 1)
    shard.make_group("g")
    for n in range(120):
        keyed.wait(f"k{n:03}", f"a{n}", f"b{n}")
    for _ in range(3):
        keyed.sweep()
    entries = shard.read("g", "w1", 500)
    shard.redis.xack(shard.keys.ready, "g", *(entry.entry_id for entry in entries))
    assert len(keyed.permits()) == 120
    assert len(keyed.sweep(looks=True)) == 100
    assert len(keyed.sweep(looks=True)) == 20
    assert keyed.held() == []


def test_a_group_that_has_not_read_keeps_permits_until_it_goes(shard: Shard) -> None:
    keyed = Keyed(shard, 1)
    for group in ("g", "idle"):
        shard.make_group(group)
    keyed.wait("ann", "a1", "a2")
    keyed.sweep()
    shard.ack(shard.read("g", "w1"))
    assert keyed.sweep("ann", looks=True) == []
    shard.redis.xgroup_destroy(shard.keys.ready, "idle")
    assert keyed.sweep(looks=True) == ["a2"]


def test_a_rate_says_when_the_next_of_a_key_may_go_and_is_kept_in_the_shard(shard: Shard) -> None:
    keyed = Keyed(shard, rate=2.0)
    keyed.wait("ann", "a1", "a2", "a3")
    keyed.wait("bob", "b1")
    assert sorted(keyed.sweep()) == ["a1", "b1"]
    assert keyed.swept.keys is not None
    [(key, at_ms)] = keyed.swept.keys.later
    assert key == f"{KEY_MARK}ann"
    assert 450 <= at_ms - keyed.swept.server_us // 1_000 <= 450 + 1
    shard.redis.delete(shard.keys.lease)  # another leader
    promoted = ["a1"]
    moments = [keyed.swept.server_us]
    while len(promoted) < 3:
        if found := keyed.sweep("ann"):
            promoted += found
            moments.append(keyed.swept.server_us)
    assert promoted == ["a1", "a2", "a3"]
    assert moments[-1] - moments[0] >= 950_000
    assert shard.redis.exists(shard.keys.permits) == 0


def test_a_rate_that_is_next_to_nothing_still_limits(shard: Shard) -> None:
    keyed = Keyed(shard, rate=1e-320)
    keyed.wait("ann", "a1", "a2")
    assert keyed.sweep() == ["a1"]
    assert keyed.sweep("ann") == []
    assert keyed.held() == ["a2"]


def test_a_key_that_was_served_and_met_its_rate_is_to_be_served_again(shard: Shard) -> None:
    keyed = Keyed(shard, rate=2.0)
    keyed.wait("ann", "a1", "a2")
    keyed.sweep()
    shard.redis.delete(shard.keys.paces)
    keyed.wait("ann", "a3")
    assert keyed.sweep("ann") == ["a2"]
    assert keyed.held() == ["a3"]
    assert keyed.swept.keys is not None
    assert [key for key, _ in keyed.swept.keys.later] == [f"{KEY_MARK}ann"]


def test_after_the_clock_was_set_back_a_rate_holds_a_key_up_once_more_and_nobody_goes_early(shard: Shard) -> None:
    keyed = Keyed(shard, rate=2.0)
    keyed.wait("ann", "a1", "a2")
    keyed.wait("bob", "b1", "b2")
    keyed.sweep()
    assert keyed.held() == ["a2", "b2"]
    later_ms = shard.now_ms() + 3_600_000
    shard.redis.zadd(shard.keys.paces, {"ann": later_ms * 1_000, "bob": 0})
    move_held(shard, "bob", "1", "b2", later_ms)
    assert keyed.sweep("ann", "bob") == []
    assert keyed.swept.keys is not None
    soon_ms = keyed.swept.server_us // 1_000 + 500
    assert keyed.swept.keys.later == [(f"{KEY_MARK}ann", pytest.approx(soon_ms, abs=1)), (f"{KEY_MARK}bob", later_ms)]
    keyed.sweep_until("ann", "a2")


def test_a_second_in_which_the_rate_was_raised_has_no_more_than_the_higher_rate_and_one(shard: Shard) -> None:
    keyed = Keyed(shard, rate=30.0)
    keyed.wait("ann", "a1", "a2")
    assert keyed.sweep() == ["a1"]
    first_us = keyed.swept.server_us
    shard.redis.zadd(shard.keys.paces, {"ann": first_us + 95_000})  # as if it had been the second at 20/s, and early
    keyed.sweep_until("ann", "a2")
    assert keyed.swept.server_us - first_us >= 33_000


@pytest.mark.parametrize("how", ["cancelled", "moved", "replaced with another key"])
def test_who_is_held_back_no_more_is_passed_over(shard: Shard, how: str) -> None:
    keyed = Keyed(shard, 1)
    shard.make_group("g")
    keyed.wait("ann", "a1", "a2", "a3")
    keyed.sweep()
    entries = shard.read("g", "w1")
    match how:
        case "cancelled":
            shard.send(producer.cancel(shard.keys, "a2"))
        case "moved":
            shard.send(producer.reschedule(shard.keys, "a2", "+60000"))
        case _:
            keyed.wait("bob", "a2", on_duplicate="replace")
            keyed.sweep()
    shard.ack(entries)
    assert keyed.sweep("ann")[-1] == "a3"


def test_who_was_moved_and_is_held_back_again_goes_by_the_new_due_time(shard: Shard) -> None:
    keyed = Keyed(shard, 1)
    shard.make_group("g")
    keyed.wait("ann", "a1", "a2", "a3")
    keyed.sweep()
    shard.send(producer.reschedule(shard.keys, "a2", "+1"))
    shard.wait_until(shard.redis.zscore(shard.keys.delayed, "a2"))
    keyed.sweep()
    assert keyed.held() == ["a3", "a2"]
    shard.ack(shard.read("g", "w1"))
    assert keyed.sweep("ann") == ["a3"]
    shard.ack(shard.read("g", "w1"))
    assert keyed.sweep("ann") == ["a2"]
    assert shard.redis.zcard(shard.keys.held) == 0


def test_due_jobs_pass_one_that_was_run_now_before_the_clock_was_set_back(shard: Shard) -> None:
    keyed = Keyed(shard, 1)
    shard.make_group("g")
    keyed.wait("ann", "a1", "a2", "a3")
    keyed.sweep()
    assert shard.send(producer.run_now(shard.keys, "a2")) == "held_back"
    later_ms = shard.now_ms() + 3_600_000
    move_held(shard, "ann", "0", "a2", later_ms)
    shard.ack(shard.read("g", "w1"))
    assert keyed.sweep("ann") == ["a3"]
    shard.ack(shard.read("g", "w1"))
    assert keyed.sweep("ann") == []
    assert keyed.swept.keys is not None
    assert keyed.swept.keys.later == [(f"{KEY_MARK}ann", later_ms)]
    assert keyed.held() == ["a2"]


def test_a_batch_that_is_cut_says_so_and_loses_nobody(shard: Shard) -> None:
    keyed = Keyed(shard, 5)
    keyed.wait("ann", *(f"a{n}" for n in range(9)))
    keyed.wait("bob", *(f"b{n}" for n in range(9)))
    seen = keyed.sweep(limit=3)
    assert keyed.swept.is_partial
    for _ in range(9):
        seen += keyed.sweep("ann", "bob", limit=3)
    assert sorted(seen) == [f"{kind}{n}" for kind in "ab" for n in range(5)]
    assert len(keyed.held()) == 8


def test_a_standby_that_promotes_in_place_of_the_leader_obeys_too(shard: Shard) -> None:
    keyed = Keyed(shard, 1)
    keyed.wait("ann", "a1", "a2")
    answer = shard.send(leader.hedge(shard.keys, 1, 100, keyed.topic.terms, keyed.shaping))
    assert answer.promoted == 1
    assert keyed.held() == ["a2"]
    looked = shard.send(leader.look(shard.keys))
    assert (looked.first_due_ms, looked.has_held) == (None, True)
    assert shard.send(leader.hedge(shard.keys, 1, 100, keyed.topic.terms, keyed.shaping)).promoted == 0
    assert shard.send(leader.rest(shard.keys, keyed.topic.terms, 100, 1_000)).horizon_ms is None


def test_without_limits_those_held_back_go_and_nothing_is_left_of_them(shard: Shard) -> None:
    keyed = Keyed(shard, 1, rate=1.0)
    keyed.wait("ann", *(f"a{n}" for n in range(9)))
    keyed.sweep()
    shard.send(registry.fence(shard.keys, Topic().terms, 2))
    answer = shard.send(leader.sweep(shard.keys, shard.lead(), LEASE_MS, 5))
    assert (answer.promoted, answer.is_partial, answer.keys) == (5, True, None)
    assert shard.send(leader.sweep(shard.keys, shard.lead(), LEASE_MS, 5)).promoted == 3
    assert not shard.redis.exists(*left_by_limits(shard), shard.keys.paces, shard.keys.delayed)


def test_without_limits_those_held_back_wait_until_they_are_due_if_the_clock_was_set_back(shard: Shard) -> None:
    keyed = Keyed(shard, 1)
    shard.make_group("g")
    keyed.wait("ann", "a0", "a1")
    keyed.sweep()
    [entry] = shard.read("g", "w1")
    shard.retry(entry)
    assert keyed.sweep("ann") == ["a1"]
    keyed.sweep()
    member = "a0\x1fg"
    assert keyed.held() == [member]
    later = shard.now_ms() + 3_600_000
    shard.redis.zadd(shard.keys.delayed, {member: HELD + later})
    shard.redis.delete(shard.keys.retries)
    shard.redis.hset(shard.keys.retries, str((HELD + later) >> 20), "1")
    shard.send(registry.fence(shard.keys, Topic().terms, 2))
    assert shard.send(leader.sweep(shard.keys, shard.lead(), LEASE_MS, 5)).promoted == 0
    assert shard.redis.zscore(shard.keys.delayed, member) == later
    assert shard.redis.hgetall(shard.keys.retries) == {b"%d" % (later >> 20): b"1"}


@pytest.mark.parametrize("by_ms", [3_600_000, -60_000])
def test_a_range_of_due_times_finds_those_held_back_page_by_page(
    shard: Shard, by_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = Keyed(shard, 1)
    keyed.wait("ann", *(f"a{n}" for n in range(9)))
    keyed.sweep()
    keyed.wait("ann", "future", due=60_000)
    since = shard.now_ms() - 5_000
    due = bulk.DueRange.of(since, since + 30_000)
    assert sum(shard.send(bulk.count(shard.keys, band)) for band in due.bands()) == 8
    monkeypatch.setattr(bulk, "BATCH", 3)
    parts = [shard.send(bulk.move(shard.keys, "m", due, "", by_ms))]
    while not parts[-1].is_all:
        parts.append(shard.send(bulk.move(shard.keys, "m", due, "", by_ms)))
    assert (parts[-1].jobs, keyed.held()) == (8, [])
    assert len(parts) >= 4


def test_a_job_that_is_held_back_after_it_was_moved_is_not_moved_again(shard: Shard) -> None:
    keyed = Keyed(shard, 1)
    keyed.wait("ann", "a0", "a1")
    keyed.sweep()
    assert keyed.held() == ["a1"]
    keyed.wait("ann", "a2", due=-9_000)
    due = bulk.DueRange.of(0, shard.now_ms() + 60_000)
    assert not shard.send(bulk.move(shard.keys, "m", due, "", 5_000)).is_all  # those held back come next
    moved_to = shard.redis.zscore(shard.keys.delayed, "a2")
    shard.wait_until(moved_to)
    keyed.sweep()
    assert keyed.held() == ["a1", "a2"]
    part = shard.send(bulk.move(shard.keys, "m", due, "", 5_000))
    assert (part.is_all, part.jobs) == (True, 2)
    assert shard.redis.zscore(shard.keys.delayed, "a2") == HELD + moved_to


def test_a_job_that_is_run_now_takes_a_permit_or_goes_first(shard: Shard) -> None:
    keyed = Keyed(shard, 1)
    shard.make_group("g")
    keyed.wait("ann", "a1", "a2", "late", due=0)
    assert shard.send(producer.run_now(shard.keys, "late")) == "promoted"
    assert keyed.sweep() == []
    assert shard.send(producer.run_now(shard.keys, "a2")) == "held_back"
    shard.ack(shard.read("g", "w1"))
    assert keyed.sweep("ann") == ["a2"]
    assert keyed.held() == ["a1"]
