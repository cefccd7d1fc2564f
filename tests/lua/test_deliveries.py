"""keep.lua, adopt.lua, hand_back.lua, leave.lua, make_group.lua, counts.lua and mark.lua: who holds what."""

from __future__ import annotations

from tests.lua.shard import HOUR_MS, Shard
from wheelq.protocol.call import scripted
from wheelq.protocol.calls import registry, worker
from wheelq.protocol.calls.worker import Entry

ABANDONED_MS = 60_000


def idle_ms(shard: Shard, entry: Entry, group: str = "g") -> int:
    [pending] = shard.redis.xpending_range(shard.keys.ready, group, entry.entry_id, entry.entry_id, 1)
    return int(pending["time_since_delivered"])


def let_it_idle(shard: Shard, *entries: Entry, ms: int = ABANDONED_MS) -> None:
    ids = [e.entry_id for e in entries]
    shard.redis.xclaim(shard.keys.ready, "g", "w1", 0, ids, idle=ms, justid=True)


def claim(shard: Shard, consumer: str, count: int = 100) -> list[str]:
    call = worker.claim(shard.keys, "g", consumer, ABANDONED_MS, "0-0", count)
    return shard.send(call).entry_ids


# keep


def test_keep_renews_deliveries_and_counts_no_delivery(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    let_it_idle(shard, a, b)
    before = shard.snapshot()
    server_us, lost = shard.send(worker.keep(shard.keys, "g", "w1", [a.entry_id]))
    assert lost == []
    assert abs(server_us // 1000 - shard.now_ms()) < 5_000
    assert idle_ms(shard, a) < ABANDONED_MS
    assert idle_ms(shard, b) >= ABANDONED_MS
    assert shard.snapshot() == before
    assert claim(shard, "w2") == [b.entry_id]


def test_keep_tells_what_was_given_to_another_and_does_not_take_it_back(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    shard.redis.xclaim(shard.keys.ready, "g", "w2", 0, [a.entry_id], justid=True)
    before = shard.snapshot()
    _, lost = shard.send(worker.keep(shard.keys, "g", "w1", [a.entry_id, b.entry_id]))
    assert lost == [a.entry_id]
    assert shard.snapshot() == before


def test_keep_tells_what_is_acked(shard: Shard) -> None:
    [a, _] = shard.deliver("a", "b")
    shard.ack([a])
    assert shard.send(worker.keep(shard.keys, "g", "w1", [a.entry_id]))[1] == [a.entry_id]


# claim and adopt


def test_a_claimed_delivery_is_adopted_and_counted_once(shard: Shard) -> None:
    [a] = shard.deliver("a")
    let_it_idle(shard, a)
    assert claim(shard, "w2") == [a.entry_id]
    [adopted] = shard.send(worker.adopt(shard.keys, "g", "w2", [a.entry_id]))
    assert adopted == a._replace(deliveries=2)
    assert shard.snapshot()["groups"]["g"]["pending"] == {"e1": ("w2", 2)}


def test_only_what_was_not_renewed_for_long_can_be_claimed(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    let_it_idle(shard, b)
    assert claim(shard, "w2") == [b.entry_id]
    assert shard.snapshot()["groups"]["g"]["pending"] == {"e1": ("w1", 1), "e2": ("w2", 1)}
    assert idle_ms(shard, a) < ABANDONED_MS


def test_adopt_leaves_out_what_is_another_consumers(shard: Shard) -> None:
    [a] = shard.deliver("a")
    before = shard.snapshot()
    assert shard.send(worker.adopt(shard.keys, "g", "w2", [a.entry_id])) == []
    assert shard.snapshot() == before


def test_adopt_acknowledges_away_what_was_deleted(shard: Shard) -> None:
    """Redis 6.2 claims deleted entries, and nothing else would ever remove them from the pending list."""
    a, b = shard.deliver("a", "b")
    let_it_idle(shard, a, b)
    shard.redis.xdel(shard.keys.ready, a.entry_id)
    shard.redis.xclaim(shard.keys.ready, "g", "w2", 0, [b.entry_id], justid=True)
    [adopted] = shard.send(worker.adopt(shard.keys, "g", "w2", [a.entry_id, b.entry_id]))
    assert adopted.id == "b"
    assert shard.snapshot()["groups"]["g"]["pending"] == {"e2": ("w2", 2)}


# hand_back


def test_what_is_handed_back_can_be_claimed_at_once(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    before = shard.snapshot()
    assert shard.send(worker.hand_back(shard.keys, "g", "w1", ABANDONED_MS, [a.entry_id])) == 1
    before["groups"]["g"]["pending"]["e1"] = ("w1", 0)
    assert shard.snapshot() == before, "it is shown as old, and this delivery does not count"
    assert claim(shard, "w2") == [a.entry_id]
    assert idle_ms(shard, b) < ABANDONED_MS


def test_what_another_holds_is_not_handed_back(shard: Shard) -> None:
    [a] = shard.deliver("a")
    assert shard.send(worker.hand_back(shard.keys, "g", "w2", ABANDONED_MS, [a.entry_id])) == 0
    assert claim(shard, "w3") == []


def test_what_is_acked_is_not_handed_back(shard: Shard) -> None:
    """XCLAIM would make a pending entry of it again on some servers."""
    [a, _] = shard.deliver("a", "b")
    shard.ack([a])
    before = shard.snapshot()
    assert shard.send(worker.hand_back(shard.keys, "g", "w1", ABANDONED_MS, [a.entry_id])) == 0
    assert shard.snapshot() == before


# leave


def consumers(shard: Shard) -> list[str]:
    return [info["name"].decode() for info in shard.redis.xinfo_consumers(shard.keys.ready, "g")]


def test_a_consumer_that_holds_nothing_can_leave(shard: Shard) -> None:
    shard.ack(shard.deliver("a"))
    assert shard.send(worker.leave(shard.keys, "g", "w1")) is True
    assert consumers(shard) == []
    assert shard.send(worker.leave(shard.keys, "g", "w1")) is False


def test_a_consumer_that_holds_a_delivery_stays(shard: Shard) -> None:
    """XGROUP DELCONSUMER would lose it without a word."""
    [a] = shard.deliver("a")
    before = shard.snapshot()
    assert shard.send(worker.leave(shard.keys, "g", "w1")) is False
    assert consumers(shard) == ["w1"]
    assert shard.snapshot() == before
    let_it_idle(shard, a)
    assert claim(shard, "w2") == [a.entry_id]


def test_others_stay_when_a_consumer_leaves(shard: Shard) -> None:
    shard.ack(shard.deliver("a"))
    shard.ack(shard.deliver("b", consumer="w2"), consumer="w2")
    shard.send(worker.leave(shard.keys, "g", "w1"))
    assert consumers(shard) == ["w2"]


# make_group


def test_a_new_group_gets_everything_that_is_in_the_stream(shard: Shard) -> None:
    shard.schedule(("a", "+0"))
    before = shard.snapshot()
    assert shard.send(worker.make_group(shard.keys, "g")) is True
    assert shard.snapshot() == before | {"groups": {"g": {"read": None, "pending": {}}}}
    assert [e.id for e in shard.read("g", "w1")] == ["a"]


def test_a_group_can_come_before_the_first_job(shard: Shard) -> None:
    assert shard.send(worker.make_group(shard.keys, "g")) is True
    assert shard.snapshot() == {"ready": {}, "groups": {"g": {"read": None, "pending": {}}}}


def test_a_group_that_is_there_keeps_its_place(shard: Shard) -> None:
    shard.deliver("a")
    before = shard.snapshot()
    assert shard.send(worker.make_group(shard.keys, "g")) is False
    assert shard.snapshot() == before


# counts


def test_counts_of_an_empty_shard(shard: Shard) -> None:
    found = shard.send(registry.counts(shard.keys))
    assert found[:4] == (0, 0, 0, None)
    assert shard.snapshot() == {}


def test_counts_of_a_full_one(shard: Shard) -> None:
    [a, *_] = shard.deliver("a", "b", "c")
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("d", due + 1), ("e", due))
    shard.bury(a)
    before = shard.snapshot()
    found = shard.send(registry.counts(shard.keys))
    assert found[:4] == (2, 2, 1, due)
    assert abs(found.server_us // 1000 - shard.now_ms()) < 5_000
    assert shard.snapshot() == before


# mark


def test_a_mark_is_a_write_that_changes_nothing(shard: Shard) -> None:
    """So that WAIT has something to wait for; also on a shard that holds nothing."""
    mark = scripted("mark", (shard.keys.delayed,), (), int)
    assert shard.send(mark) == 0
    assert shard.snapshot() == {}
    shard.schedule(("a", f"+{HOUR_MS}"))
    before = shard.snapshot()
    assert shard.send(mark) == 0
    assert shard.snapshot() == before
