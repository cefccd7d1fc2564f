"""What a settled delivery leaves for other shards: conclude.lua, ack_leased.lua, claim_outgoing.lua, place_outgoing.lua
and bury_follower.lua.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.lua.shard import HOUR_MS, RECORD, TERMS, Ear, Shard
from tests.lua.test_settling import rob
from tests.records import record
from wheelq.errors import Refused
from wheelq.protocol import codec
from wheelq.protocol.calls import leader, leases, outgoing, state, worker
from wheelq.protocol.calls.leases import LeaseId
from wheelq.protocol.calls.outgoing import LIFE_MS, NOWHERE, Conclusion, Follower
from wheelq.protocol.calls.state import Concluded
from wheelq.protocol.calls.worker import Burial, Entry
from wheelq.settings import TopicSettings

MOST = 10_000
"""As in lib/outgoing.lua."""


def follower(id: str = "b", due: str = "+0", shard: int = 2, **given: object) -> Follower:
    one = Follower("next", id, due, "", "", RECORD, b"twelve bytes", shard, "4" if shard != NOWHERE else "")
    return one._replace(**given)


def settle(
    shard: Shard,
    entries: Sequence[Entry],
    followers: Sequence[Sequence[Follower]],
    consumer: str = "w1",
    keep_ms: int = 0,
) -> Conclusion:
    ended = [Concluded(entry.entry_id, entry.member, entry.due_ms, b"") for entry in entries]
    return shard.send(state.conclude(shard.keys, "g", consumer, 0, keep_ms, ended, 0, followers))


def left(shard: Shard) -> list[dict[str, bytes]]:
    """What is outgoing."""
    entries = shard.redis.xrange(shard.keys.outgoing)
    return [{name.decode(): value for name, value in fields.items()} for _, fields in entries]


def claim(shard: Shard, after: str = "0-0") -> outgoing.Claimed:
    return shard.send(outgoing.claim(shard.keys, after))


def age(shard: Shard, ms: int) -> None:
    """Make everything outgoing older."""
    entries = shard.redis.xrange(shard.keys.outgoing)
    shard.redis.delete(shard.keys.outgoing)
    for entry_id, fields in entries:
        made, _, number = entry_id.partition(b"-")
        shard.redis.xadd(shard.keys.outgoing, fields, id=f"{int(made) - ms}-{int(number)}")
    if entries:
        shard.redis.execute_command("XSETID", shard.keys.outgoing, entries[-1][0])


def test_each_call_that_looks_after_a_shard_says_whether_something_is_outgoing(shard: Shard) -> None:
    def told() -> list[bool]:
        token = shard.lead()
        opened = shard.send(leader.open_window(shard.keys, token, 30_000, None, 2_000, 100, HOUR_MS))
        looked = shard.send(leader.look(shard.keys))
        shard.redis.delete(shard.keys.lease)
        rested = shard.send(leader.rest(shard.keys, TERMS, 2_000, HOUR_MS))
        assert rested.horizon_ms is not None
        return [opened.has_outgoing, looked.has_outgoing, rested.has_outgoing]

    assert told() == [False] * 3
    [settled] = settle(shard, shard.deliver("a"), [[follower("x")]]).outgoing
    shard.redis.delete(shard.keys.ready)  # a shard with entries does not rest
    assert told() == [True] * 3
    shard.send(outgoing.remove(shard.keys, [settled]))
    assert told() == [False] * 3


# settling


def test_a_delivery_is_settled_and_leaves_its_followers_in_one_step(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    before = shard.now_ms()
    settled = settle(shard, [a, b], [[follower("x"), follower("y", f"+{HOUR_MS}h", NOWHERE)], []])
    assert settled.acknowledged == 2
    assert [one.follower.id for one in settled.outgoing] == ["x", "y"]
    x, y = left(shard)
    assert before <= int(x["due"]) <= shard.now_ms(), "the delay counts from now"
    assert y["due"].endswith(b"h")
    assert int(y["due"][:-1]) >= before + HOUR_MS
    assert (x["topic"], x["id"], x["record"], x["tag"]) == (b"next", b"x", RECORD, b"twelve bytes")
    assert (x["shard"], x["terms"], y["shard"], y["terms"], y["placed"]) == (b"2", b"4", b"", b"", b"")
    assert int(x["placed"]) >= before
    shard.redis.delete(shard.keys.outgoing)
    assert shard.snapshot() == {"ready": {}, "groups": {"g": {"read": "e2", "pending": {}}}}


def test_a_call_that_is_repeated_leaves_nothing_more(shard: Shard, a: Entry) -> None:
    settle(shard, [a], [[follower()]])
    assert settle(shard, [a], [[follower()]]) == Conclusion(0, [])
    assert len(left(shard)) == 1


def test_whoever_lost_the_delivery_leaves_nothing(shard: Shard) -> None:
    a, b = shard.deliver("a", "b")
    rob(shard, a)
    settled = settle(shard, [a, b], [[follower("of a")], [follower("of b")]])
    assert settled.acknowledged == 1
    assert [one["id"] for one in left(shard)] == [b"of b"]
    assert [one.follower.id for one in settled.outgoing] == ["of b"]


def test_what_has_no_room_is_not_settled_and_holds_up_no_other(shard: Shard) -> None:
    a, b, c = shard.deliver("a", "b", "c")
    with shard.redis.pipeline() as many:
        for _ in range(MOST - 1):
            many.xadd(shard.keys.outgoing, {"topic": "x"})
        many.execute()
    settled = settle(shard, [a, b, c], [[follower("1"), follower("2")], [], [follower("3")]])
    assert (settled.acknowledged, settled.held) == (2, {0})
    assert [one.follower.id for one in settled.outgoing] == ["3"]
    assert shard.redis.xlen(shard.keys.outgoing) == MOST
    shard.redis.xtrim(shard.keys.outgoing, maxlen=0)
    assert settle(shard, [a], [[follower("1"), follower("2")]]).acknowledged == 1
    assert len(left(shard)) == 2


def test_a_bad_follower_leaves_all_as_it_was(shard: Shard, a: Entry) -> None:
    with pytest.raises(Exception, match="no due time"):
        settle(shard, [a], [[follower(due="soon")]])
    assert shard.snapshot()["groups"]["g"]["pending"] == {"e1": ("w1", 1)}


def test_a_key_of_another_program_leaves_the_delivery_alone(shard: Shard, a: Entry) -> None:
    shard.redis.set(shard.keys.outgoing, "of another")
    with pytest.raises(Exception, match="WRONGTYPE"):
        settle(shard, [a], [[follower()]])
    assert settle(shard, [a], []).acknowledged == 1, "and without followers nothing needs it"


def test_leaders_get_a_hint_when_something_is_left(shard: Shard, ear: Ear) -> None:
    a, b, c = shard.deliver("a", "b", "c")
    settle(shard, [a], [[]])
    assert ear.heard() == []
    settle(shard, [b], [[follower()]])
    [message] = ear.heard()
    due_ms, member = message.split(b" ")
    assert member == outgoing.OUTGOING
    assert int(due_ms) > shard.now_ms()
    settle(shard, [c], [[follower()]])
    assert ear.heard() == [], "they know already"


def test_five_hundred_followers_go_in_one_call(shard: Shard) -> None:
    entries = shard.deliver(*(f"job-{n}" for n in range(100)))
    followers = [[follower(f"{n}-{m}") for m in range(5)] for n in range(100)]
    assert len(settle(shard, entries, followers, keep_ms=HOUR_MS).outgoing) == 500
    assert [one["id"].decode() for one in left(shard)] == [f"{n}-{m}" for n in range(100) for m in range(5)]


def test_a_lease_is_acknowledged_with_its_followers_or_not_at_all(shard: Shard) -> None:
    a, b = shard.deliver("a", "b", consumer=leases.CONSUMER)
    handles = [LeaseId(a.entry_id, b"a", 1), LeaseId(b.entry_id, b"b", 7)]
    call = leases.ack(shard.keys, "g", TopicSettings(), handles, followers=[[follower("x")], [follower("y")]])
    acked = shard.send(call)
    assert acked.done == [True, False]
    assert [one.follower.id for one in acked.outgoing] == ["x"]
    assert [one["id"] for one in left(shard)] == [b"x"]
    assert shard.send(call).outgoing == []


def test_a_lease_without_room_for_its_followers_stays(shard: Shard) -> None:
    [a] = shard.deliver("a", consumer=leases.CONSUMER)
    with shard.redis.pipeline() as many:
        for _ in range(MOST):
            many.xadd(shard.keys.outgoing, {"topic": "x"})
        many.execute()
    lease = LeaseId(a.entry_id, b"a", 1)
    acked = shard.send(leases.ack(shard.keys, "g", TopicSettings(), [lease], followers=[[follower()]]))
    assert (acked.done, acked.is_full) == ([False], True)
    assert shard.send(leases.ack(shard.keys, "g", TopicSettings(), [lease])).done == [True]


# claiming


def test_only_what_is_a_second_old_is_claimed(shard: Shard, a: Entry) -> None:
    [first] = settle(shard, [a], [[follower()]]).outgoing
    young = claim(shard)
    assert young.entries == []
    assert young.next_ms is not None
    assert 0 < young.next_ms - young.now_ms <= 1_000
    age(shard, 1_000)
    [one] = claim(shard).entries
    assert one.entry_id != first.entry_id, "the first carrier finds its entry gone"
    assert one.follower == first.follower
    assert (one.claims, one.refusals, one.is_too_old) == (1, 0, False)
    assert shard.send(outgoing.remove(shard.keys, [first])) == 0
    assert shard.send(outgoing.remove(shard.keys, [one])) == 1
    nothing = claim(shard)
    assert (nothing.after, nothing.next_ms, nothing.entries) == ("", None, [])


def test_claims_come_less_and_less_often(shard: Shard, a: Entry) -> None:
    settle(shard, [a], [[follower()]])
    for claims in range(1, 4):
        age(shard, 500 * 2**claims - 100)
        assert claim(shard).entries == []
        age(shard, 200)
        assert [one.claims for one in claim(shard).entries] == [claims]


def test_what_was_placed_too_long_ago_is_told_apart(shard: Shard, a: Entry) -> None:
    settle(shard, [a], [[follower("old"), follower("unplaced", shard=NOWHERE)]])
    for entry_id, fields in shard.redis.xrange(shard.keys.outgoing):
        if fields[b"placed"]:
            fields[b"placed"] = int(fields[b"placed"]) - LIFE_MS - 1
        shard.redis.xdel(shard.keys.outgoing, entry_id)
        shard.redis.xadd(shard.keys.outgoing, fields)
    age(shard, 1_000)
    assert {one.follower.id: one.is_too_old for one in claim(shard).entries} == {"old": True, "unplaced": False}


def test_a_page_ends_where_the_next_begins(shard: Shard, a: Entry) -> None:
    settle(shard, [a], [[follower(str(n)) for n in range(100)]])
    settle(shard, shard.deliver("b"), [[follower("last")]])
    page = claim(shard)
    assert page.after
    assert claim(shard, page.after).after == ""


# placing


def test_a_place_is_written_down_only_while_the_entry_is_there(shard: Shard, a: Entry) -> None:
    [one] = settle(shard, [a], [[follower(shard=NOWHERE)]]).outgoing
    placed = one._replace(follower=one.follower._replace(shard=3, terms="8", tag=b"another tag!"), refusals=2)
    [entry_id] = shard.send(outgoing.place(shard.keys, [placed]))
    assert entry_id not in ("", one.entry_id)
    [now] = left(shard)
    assert (now["shard"], now["terms"], now["tag"], now["refusals"]) == (b"3", b"8", b"another tag!", b"2")
    assert now["placed"]
    assert shard.send(outgoing.place(shard.keys, [placed])) == [""], "another carrier has it now"
    assert len(left(shard)) == 1


def test_a_tag_that_stays_with_its_shard_is_not_young_again(shard: Shard, a: Entry) -> None:
    [one] = settle(shard, [a], [[follower()]]).outgoing
    [entry_id] = shard.redis.xrange(shard.keys.outgoing)[0][:1]
    fields = shard.redis.xrange(shard.keys.outgoing)[0][1] | {b"placed": b"5"}
    shard.redis.xdel(shard.keys.outgoing, entry_id)
    again = shard.redis.xadd(shard.keys.outgoing, fields)
    shard.send(outgoing.place(shard.keys, [one._replace(entry_id=again.decode(), refusals=1)]))
    [now] = left(shard)
    assert (now["placed"], now["refusals"]) == (b"5", b"1")


# burying


def test_a_follower_is_buried_once(shard: Shard) -> None:
    one = follower("x", "1700000000000h")
    dead = shard.send(outgoing.bury(shard.keys, one, "not delivered", TopicSettings()))
    assert shard.send(outgoing.bury(shard.keys, one, "again", TopicSettings())) == dead
    [shown] = shard.snapshot()["dead"]
    assert (shown["id"], shown["group"], shown["reason"], shown["due"]) == ("x", "", "undelivered", 1_700_000_000_000)
    other = replace_life(one)
    assert shard.send(outgoing.bury(shard.keys, other, "not delivered", TopicSettings())) != dead


def replace_life(one: Follower) -> Follower:
    return one._replace(record=record(life=b"new life"))


def test_dead_followers_are_as_many_as_the_topic_keeps(shard: Shard) -> None:
    for n in range(5):
        shard.send(outgoing.bury(shard.keys, follower(str(n)), "not delivered", replace(TopicSettings(), dead_max=3)))
    assert [one["id"] for one in shard.snapshot()["dead"]] == ["2", "3", "4"]


# telling of deaths

TELLS = TopicSettings(on_dead="deaths")


def test_a_delivery_is_buried_and_leaves_what_tells_of_it_in_one_step(shard: Shard, a: Entry, ear: Ear) -> None:
    dead_id = shard.bury(a, settings=TELLS)
    [notice] = left(shard)
    assert (notice["topic"], notice["shard"]) == (b"deaths", b"")
    assert notice["id"].startswith(b"dead-")
    payload = codec.decode(notice["record"]).payload
    assert (payload["id"], payload["group"], payload["reason"], payload["error"]) == ("a", "g", "failed", "it broke")
    assert [message.split(b" ")[1] for message in ear.heard()] == [outgoing.OUTGOING]
    assert dead_id
    assert shard.bury(a, settings=TELLS) == b"", "a repeated call leaves nothing more"
    assert len(left(shard)) == 1


def test_whoever_lost_the_delivery_tells_nothing(shard: Shard, a: Entry) -> None:
    rob(shard, a)
    assert shard.bury(a, settings=TELLS) == b""
    assert left(shard) == []


def test_a_job_is_not_buried_while_there_is_no_room_to_tell_of_it(shard: Shard, a: Entry) -> None:
    with shard.redis.pipeline() as many:
        for _ in range(MOST):
            many.xadd(shard.keys.outgoing, {"topic": "x"})
        many.execute()
    burial = Burial("failed", "it broke", "", 1, a.due_ms)
    with pytest.raises(Refused, match="no room"):
        shard.send(worker.bury(shard.keys, "g", "w1", a, burial, TELLS))
    assert shard.redis.xlen(shard.keys.dead) == 0
    assert shard.bury(a)


def test_a_lease_is_buried_with_what_tells_of_it(shard: Shard) -> None:
    [a] = shard.deliver("a", consumer=leases.CONSUMER)
    burial = Burial("failed", "it broke", "", 1, a.due_ms)
    assert not shard.send(worker.bury(shard.keys, "g", leases.CONSUMER, a, burial, TELLS, 7))
    assert left(shard) == []
    assert shard.send(worker.bury(shard.keys, "g", leases.CONSUMER, a, burial, TELLS, 1))
    assert len(left(shard)) == 1


def test_a_service_is_told_by_a_callback(shard: Shard, a: Entry) -> None:
    shard.bury(a, settings=TopicSettings(on_dead="billing:/dead"))
    [notice] = left(shard)
    headers = codec.decode(notice["record"]).headers
    assert notice["topic"].decode() == worker.CALLED_ON_DEATH
    assert json.loads(headers[worker.TARGET]) == {"service": "billing", "path": "/dead"}


def test_an_unreadable_job_is_told_of_without_its_payload(shard: Shard) -> None:
    [a] = shard.deliver("a", record=b"\x02" + bytes(17) + b"\xc1")
    shard.bury(a, settings=TELLS)
    [notice] = left(shard)
    assert codec.decode(notice["record"]).payload["payload"] is None
