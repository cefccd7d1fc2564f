"""hold.lua, read_held.lua, put_off.lua, let_go.lua: one consumer of a group has a shard; its jobs keep their places."""

from __future__ import annotations

from tests.lua.shard import Shard, entry
from tests.records import SECOND_ATTEMPT
from wheelq.protocol.calls import order, worker
from wheelq.protocol.calls.order import Hold, PutOff
from wheelq.protocol.calls.worker import Entry

LONG_MS = 60_000


def hold(
    shard: Shard,
    consumer: str,
    *,
    ms: int = LONG_MS,
    holds: int = 0,
    tell_own: bool = False,
    finished: tuple[str, ...] = (),
    over: str = "",
    gone: tuple[str, ...] = (),
    unknown: tuple[str, ...] = (),
) -> Hold:
    call = order.hold(
        shard.keys,
        "g",
        consumer,
        ms,
        holds,
        tell_own=tell_own,
        finished=finished,
        over=over,
        gone=gone,
        unknown=unknown,
    )
    return shard.send(call)


def ready(shard: Shard, *ids: str) -> None:
    shard.make_group("g")
    if ids:
        now = shard.now_ms()
        shard.schedule(*((id, now) for id in ids))


def read(shard: Shard, consumer: str, count: int = 10) -> list[Entry] | None:
    found = shard.send(order.read_held(shard.keys, "g", consumer, count))
    if found is None:
        return None
    for one in found.entries:
        shard.name(one.entry_id)
    return found.entries


def put_off(shard: Shard, delivery: Entry, consumer: str, pause_ms: int = 500) -> int:
    return shard.send(order.put_off(shard.keys, "g", consumer, delivery, pause_ms, SECOND_ATTEMPT))


# hold


def test_the_first_takes_the_shard_and_others_are_told_for_how_long(shard: Shard) -> None:
    ready(shard)
    assert hold(shard, "w1").is_held
    second = hold(shard, "w2", holds=3)
    assert not second.is_held
    assert 0 < second.wait_ms <= LONG_MS
    assert shard.snapshot() == {
        "ready": {},
        "groups": {"g": {"read": None, "pending": {}}},
        "order": {"g": {"owner": "w1", "asker": "w2", "asker_holds": "3"}},
    }


def test_the_holder_is_told_who_asks_and_only_one_with_fewer_shards_takes_that_place(shard: Shard) -> None:
    ready(shard)
    hold(shard, "w1")
    hold(shard, "w2", holds=3)
    hold(shard, "w3", holds=3)
    assert hold(shard, "w1")[4:6] == ("w2", 3)
    hold(shard, "w3", holds=2)
    assert hold(shard, "w1")[4:6] == ("w3", 2)


def test_an_ended_hold_is_free_for_a_worker_that_has_watched_it(shard: Shard) -> None:
    """The server's clock says nothing: it may have been stepped."""
    ready(shard)
    hold(shard, "w1", ms=1)
    shard.wait_until(shard.now_ms() + 3)
    before = hold(shard, "w2").held
    assert not hold(shard, "w2", over="w0 1").is_held
    hold(shard, "w1", ms=1)
    renewed = hold(shard, "w2", over=before)
    assert not renewed.is_held, "it was renewed meanwhile"
    assert hold(shard, "w2", over=renewed.held).is_held
    assert not hold(shard, "w1").is_held
    assert shard.snapshot()["order"]["g"]["owner"] == "w2"


def test_groups_hold_a_shard_each(shard: Shard) -> None:
    ready(shard)
    shard.make_group("h")
    assert hold(shard, "w1").is_held
    assert shard.send(order.hold(shard.keys, "h", "w2", LONG_MS, 0, tell_own=False)).is_held
    assert shard.snapshot()["order"] == {"g": {"owner": "w1"}, "h": {"owner": "w2"}}


def test_abandoned_jobs_are_taken_over_in_order(shard: Shard) -> None:
    """Not counted as deliveries here: `adopt` does that."""
    entries = shard.deliver("a", "b", consumer="dead")
    assert hold(shard, "w1").others == ["dead"]
    held = hold(shard, "w1", gone=("dead",))
    assert (held.is_busy, held.entry_ids) == (False, [one.entry_id for one in entries])
    assert shard.snapshot()["groups"]["g"]["pending"] == {"e1": ("w1", 1), "e2": ("w1", 1)}


def test_unknown_consumers_lose_the_deliveries_they_do_not_renew(shard: Shard) -> None:
    [a] = shard.deliver("a", consumer="foreign")
    assert hold(shard, "w1", unknown=("foreign",)).is_busy
    shard.redis.xclaim(shard.keys.ready, "g", "foreign", 0, [a.entry_id], idle=LONG_MS, justid=True)
    assert hold(shard, "w1").is_busy, "a living worker's, say"
    assert hold(shard, "w1", unknown=("foreign",)).entry_ids == [a.entry_id]


def test_deliveries_that_others_renew_stay_with_them_and_make_the_shard_busy(shard: Shard) -> None:
    shard.deliver("a", consumer="alive")
    held = hold(shard, "w1")
    assert (held.is_held, held.is_busy, held.entry_ids) == (True, True, [])
    assert shard.snapshot()["groups"]["g"]["pending"] == {"e1": ("alive", 1)}


def test_its_own_deliveries_are_told_on_demand(shard: Shard) -> None:
    """To a holder that does not know what a call gave it whose reply was lost."""
    ready(shard, "a", "b")
    hold(shard, "w1")
    entries = read(shard, "w1")
    assert entries is not None
    assert hold(shard, "w1").entry_ids == []
    assert hold(shard, "w1", tell_own=True).entry_ids == [one.entry_id for one in entries]


# read_held


def test_only_the_holder_reads(shard: Shard) -> None:
    ready(shard, "a", "b", "c")
    hold(shard, "w1")
    assert read(shard, "w2") is None
    before = shard.snapshot()
    assert before["groups"]["g"] == {"read": None, "pending": {}}
    entries = read(shard, "w1", 2)
    assert entries is not None
    assert [one.id for one in entries] == ["a", "b"]
    assert shard.snapshot()["groups"]["g"] == {"read": "e2", "pending": {"e1": ("w1", 1), "e2": ("w1", 1)}}


def test_a_former_holder_reads_nothing(shard: Shard) -> None:
    """As one does that was frozen past its lease, with another worker there."""
    ready(shard, "a")
    hold(shard, "w1")
    hold(shard, "w2", over=hold(shard, "w2").held)
    assert read(shard, "w1") is None
    assert read(shard, "w2") != []


def test_reading_tells_what_is_overdue_and_not_promoted(shard: Shard) -> None:
    ready(shard, "a")
    hold(shard, "w1")
    due = shard.now_ms() + LONG_MS
    shard.schedule(("b", due), ("c", due + LONG_MS))
    assert shard.send(order.read_held(shard.keys, "g", "w1", 1)).overdue_ms is None
    due = shard.now_ms()
    shard.redis.zadd(shard.keys.delayed, {"b": due})
    found = shard.send(order.read_held(shard.keys, "g", "w1", 1))
    assert (found.overdue_ms, found.entries) == (due, [])


def test_the_bell_rings_for_what_is_new(shard: Shard) -> None:
    ready(shard, "a")
    hold(shard, "w1")
    last_id = shard.send(order.read_held(shard.keys, "g", "w1", 1)).last_id
    assert not shard.send(worker.listen([(shard.keys, last_id)], 1))
    shard.schedule(("b", shard.now_ms()))
    assert shard.send(worker.listen([(shard.keys, last_id)], 5_000)) == [0]
    assert shard.send(order.read_held(shard.keys, "g", "w1", 1)).entries[0].id == "b"


# put_off


def test_a_failed_delivery_keeps_its_place_and_its_next_run_is_kept_beside_it(shard: Shard) -> None:
    ready(shard, "a", "b")
    hold(shard, "w1")
    a, b = read(shard, "w1") or []
    due_ms = put_off(shard, a, "w1")
    assert shard.snapshot() == {
        "jobs": {"a": "e1", "b": "e2"},
        "ready": {"e1": entry("a", a.due_ms), "e2": entry("b", b.due_ms)},
        "groups": {"g": {"read": "e2", "pending": {"e1": ("w1", 1), "e2": ("w1", 1)}}},
        "order": {"g": {"owner": "w1", "e1": (due_ms, SECOND_ATTEMPT)}},
    }
    kept = shard.send(order.put_off_before(shard.keys, "g", [b.entry_id, a.entry_id]))
    assert kept == [None, PutOff(due_ms, SECOND_ATTEMPT)]


def test_a_delivery_of_another_holder_is_not_put_off(shard: Shard) -> None:
    ready(shard, "a")
    hold(shard, "w1")
    [a] = read(shard, "w1") or []
    shard.redis.xclaim(shard.keys.ready, "g", "w2", 0, [a.entry_id], justid=True)
    before = shard.snapshot()
    assert put_off(shard, a, "w1") == 0
    assert shard.snapshot() == before


def test_the_next_run_of_a_finished_job_is_forgotten_with_the_next_hold(shard: Shard) -> None:
    ready(shard, "a")
    hold(shard, "w1")
    [a] = read(shard, "w1") or []
    put_off(shard, a, "w1")
    shard.ack([a])
    hold(shard, "w1", finished=(a.entry_id,))
    assert shard.snapshot() == {
        "ready": {},
        "groups": {"g": {"read": "e1", "pending": {}}},
        "order": {"g": {"owner": "w1"}},
    }


def test_anybody_may_forget_the_next_run_of_a_finished_job(shard: Shard) -> None:
    ready(shard, "a")
    hold(shard, "w1")
    [a] = read(shard, "w1") or []
    put_off(shard, a, "w1")
    shard.ack([a])
    shard.send(order.forget(shard.keys, "g", [a.entry_id]))
    assert shard.snapshot()["order"] == {"g": {"owner": "w1"}}


def test_tidying_forgets_the_next_runs_of_finished_jobs_and_no_others(shard: Shard) -> None:
    """Their holder was killed before it could tell. 300 have ended, and one waits for its next run."""
    ready(shard, "a", "b")
    hold(shard, "w1")
    a, b = read(shard, "w1") or []
    for delivery in (a, b):
        put_off(shard, delivery, "w1")
    shard.ack([a])
    shard.redis.hset(shard.keys.order("g"), mapping={f"1-{n}": "1 x" for n in range(1, 300)})
    cursor = shard.send(order.tidy(shard.keys, "g", "0"))
    while cursor != "0":
        cursor = shard.send(order.tidy(shard.keys, "g", cursor))
    kept = shard.snapshot()["order"]["g"]
    assert set(kept) == {"owner", "e2"}


# let_go


def test_a_shard_that_is_let_go_leaves_nothing(shard: Shard) -> None:
    ready(shard)
    hold(shard, "w1")
    hold(shard, "w2")
    assert shard.send(order.let_go(shard.keys, "g", "w1", None, LONG_MS))
    assert "order" not in shard.snapshot()


def test_a_shard_is_passed_on(shard: Shard) -> None:
    ready(shard)
    hold(shard, "w1")
    assert shard.send(order.let_go(shard.keys, "g", "w1", "w2", LONG_MS))
    assert not hold(shard, "w1").is_held
    assert hold(shard, "w2").is_held


def test_only_the_holder_lets_go(shard: Shard) -> None:
    ready(shard)
    hold(shard, "w1")
    assert not shard.send(order.let_go(shard.keys, "g", "w2", "w2", LONG_MS))
    assert shard.snapshot()["order"] == {"g": {"owner": "w1"}}


def test_the_next_holder_finds_a_delivery_handed_back_at_once(shard: Shard) -> None:
    ready(shard, "a")
    hold(shard, "w1")
    [a] = read(shard, "w1") or []
    shard.send(worker.hand_back(shard.keys, "g", "w1", 86_400_000, [a.entry_id]))
    shard.send(order.let_go(shard.keys, "g", "w1", None, LONG_MS))
    assert hold(shard, "w2").entry_ids == [a.entry_id]
