"""Deliveries: the scripts that give them to a worker, take them over and hand them back."""

from __future__ import annotations

from tests.lua.shard import Shard
from wheelq.protocol.calls import worker
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import Keys

ABANDONED_MS = 60_000


def idle_ms(shard: Shard, entry: Entry, group: str = "g") -> int:
    [pending] = shard.redis.xpending_range(shard.keys.ready, group, entry.entry_id, entry.entry_id, 1)
    return int(pending["time_since_delivered"])


def let_it_idle(shard: Shard, *entries: Entry, ms: int = ABANDONED_MS) -> None:
    ids = [e.entry_id for e in entries]
    shard.redis.xclaim(shard.keys.ready, "g", "w1", 0, ids, idle=ms, justid=True)


def claim(shard: Shard, consumer: str) -> list[str]:
    """As consumers in other languages do it."""
    found = shard.redis.xautoclaim(shard.keys.ready, "g", consumer, ABANDONED_MS, "0-0", justid=True)
    return [entry_id.decode() for entry_id in found]


def take_over(shard: Shard, consumer: str, gone: list[str], others: list[str], count: int = 100) -> list[str]:
    return shard.send(worker.take_over(shard.keys, "g", consumer, count, ABANDONED_MS, gone, others))


def give(shard: Shard, consumer: str, *entries: Entry, idle: int = 0) -> None:
    ids = [entry.entry_id for entry in entries]
    shard.redis.xclaim(shard.keys.ready, "g", consumer, 0, ids, idle=idle, justid=True)


# keep


def test_keep_renews_deliveries_and_counts_no_delivery(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    let_it_idle(shard, a, b)
    before = shard.snapshot()
    server_us, lost = shard.send(worker.keep(shard.keys, "g", "w1", [a.entry_id]))
    assert lost == []
    assert abs(server_us // 1000 - shard.now_ms()) < 60_000
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


def test_a_claimed_delivery_is_adopted_and_counted_once(shard: Shard, a: Entry) -> None:
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


def test_adopt_leaves_out_what_is_another_consumers(shard: Shard, a: Entry) -> None:
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


# holders and take_over


def test_holders_tells_who_holds_how_much(shard: Shard) -> None:
    a, b, c = shard.deliver("a", "b", "c")
    give(shard, "w2", b, c)
    other = Keys().shard(shard.keys.topic, 1)
    assert shard.send(worker.holders([shard.keys], "g")) == [{"w1": 1, "w2": 2}]
    assert shard.send(worker.holders([shard.keys], "nobody")) == [{}]
    assert shard.send(worker.holders([other], "g")) == [{}]
    shard.ack([a])
    assert shard.send(worker.holders([shard.keys], "g")) == [{"w2": 2}]


def test_all_deliveries_of_a_departed_consumer_are_taken_over_at_any_idle_time(shard: Shard) -> None:
    a, b, c = shard.deliver("a", "b", "c")
    give(shard, "dead", a, b)
    give(shard, "living", c, idle=10 * ABANDONED_MS)
    assert take_over(shard, "w2", ["dead", "never there"], []) == [a.entry_id, b.entry_id]
    assert shard.send(worker.holders([shard.keys], "g")) == [{"w2": 2, "living": 1}]
    assert take_over(shard, "w3", ["dead"], []) == []
    assert idle_ms(shard, a) < ABANDONED_MS


def test_an_unknown_consumer_loses_only_the_deliveries_it_does_not_renew(shard: Shard) -> None:
    a, b, c = shard.deliver("a", "b", "c")
    give(shard, "foreign", a, idle=ABANDONED_MS)
    give(shard, "foreign", b)
    give(shard, "other", c, idle=ABANDONED_MS)
    assert take_over(shard, "w2", [], ["foreign"]) == [a.entry_id]
    assert shard.send(worker.holders([shard.keys], "g")) == [{"w2": 1, "foreign": 1, "other": 1}]


def test_no_more_is_taken_over_than_there_is_room_for(shard: Shard) -> None:
    """Also where what is gone stands behind 1,000 deliveries of the living."""
    for some in range(10):
        give(shard, "living", *shard.deliver(*(f"living-{some}-{n}" for n in range(100))))
    dead = shard.deliver(*(f"dead-{n}" for n in range(5)))
    give(shard, "dead", *dead[:3])
    give(shard, "foreign", *dead[3:], idle=ABANDONED_MS)
    ids = [entry.entry_id for entry in dead]
    assert take_over(shard, "w2", ["dead"], ["foreign"], 2) == ids[:2]
    assert take_over(shard, "w2", ["dead"], ["foreign"], 2) == ids[2:4]
    assert take_over(shard, "w2", ["dead"], ["foreign"], 2) == ids[4:]
    assert take_over(shard, "w2", ["dead"], ["foreign"], 2) == []


# read_some


def test_many_shards_are_read_in_one_call_that_gives_no_more_than_there_is_room_for(shard: Shard) -> None:
    others = [Keys().shard(shard.keys.topic, n) for n in (1, 2, 3)]
    shard.schedule(("a", "+0"), ("b", "+0"), ("c", "+0"))
    last = shard.redis.xinfo_stream(shard.keys.ready)["last-generated-id"].decode()
    shard.send(worker.make_group(shard.keys, "g"))
    shard.send(worker.make_group(others[0], "g"))
    keys = [shard.keys, others[0], others[1]]
    first, nothing, missing = shard.send(worker.read_some(keys, "g", "w1", 6))
    assert isinstance(first, worker.ReadTo)
    assert [entry.id for entry in first.entries] == ["a", "b"], "each has its share"
    assert first.last_id == "", "there may be more"
    assert nothing == worker.ReadTo("0-0", [])
    assert isinstance(missing, str)
    assert "NOGROUP" in missing
    [rest] = shard.send(worker.read_some([shard.keys], "g", "w1", 6))
    assert isinstance(rest, worker.ReadTo)
    assert ([entry.id for entry in rest.entries], rest.last_id) == (["c"], last)
    assert shard.send(worker.listen([(shard.keys, "0-0"), (others[0], "0-0")], 1)) == [0]
    assert shard.send(worker.listen([(shard.keys, last), (others[0], "0-0")], 1)) == []


def test_streams_for_which_there_is_no_room_are_not_asked(shard: Shard) -> None:
    other = Keys().shard(shard.keys.topic, 1)
    shard.schedule(("a", "+0"), ("b", "+0"))
    shard.send(worker.make_group(shard.keys, "g"))
    shard.send(worker.make_group(other, "g"))
    assert len(shard.send(worker.read_some([shard.keys, other], "g", "w1", 1))) == 1


# hand_back


def test_only_what_was_counted_is_taken_off_the_count(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    ids = [a.entry_id, b.entry_id]
    assert shard.send(worker.hand_back(shard.keys, "g", "w1", ABANDONED_MS, ids, uncounted={b.entry_id})) == 2
    pending = shard.redis.xpending_range(shard.keys.ready, "g", "-", "+", 9)
    assert [one["times_delivered"] for one in pending] == [0, 1]
    assert {one["time_since_delivered"] >= ABANDONED_MS for one in pending} == {True}


def test_a_delivery_handed_back_can_be_claimed_at_once(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    before = shard.snapshot()
    assert shard.send(worker.hand_back(shard.keys, "g", "w1", ABANDONED_MS, [a.entry_id])) == 1
    before["groups"]["g"]["pending"]["e1"] = ("w1", 0)
    assert shard.snapshot() == before, "it is shown as old, and this delivery does not count"
    assert claim(shard, "w2") == [a.entry_id]
    assert idle_ms(shard, b) < ABANDONED_MS


def test_a_delivery_of_another_consumer_is_not_handed_back(shard: Shard, a: Entry) -> None:
    assert shard.send(worker.hand_back(shard.keys, "g", "w2", ABANDONED_MS, [a.entry_id])) == 0
    assert claim(shard, "w3") == []


def test_an_acked_delivery_is_not_handed_back(shard: Shard) -> None:
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


def test_a_consumer_that_holds_a_delivery_stays(shard: Shard, a: Entry) -> None:
    """XGROUP DELCONSUMER would lose it without a word."""
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


def test_the_first_group_alone_marks_the_beginning_of_the_shard(shard: Shard) -> None:
    before = shard.now_ms()
    shard.send(worker.make_group(shard.keys, "g"))
    born = shard.redis.hget(shard.keys.counts, "born")
    assert born is not None
    assert before <= int(born.removesuffix(b" ms")) <= shard.now_ms()
    shard.redis.hdel(shard.keys.counts, "born")
    shard.send(worker.make_group(shard.keys, "h"))
    assert shard.redis.hget(shard.keys.counts, "born") is None


def test_a_group_that_is_there_keeps_its_place(shard: Shard) -> None:
    shard.deliver("a")
    before = shard.snapshot()
    assert shard.send(worker.make_group(shard.keys, "g")) is False
    assert shard.snapshot() == before
