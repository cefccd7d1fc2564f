"""On a server that is out of memory new jobs are refused, and what is due still runs: that is what frees memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.lua.shard import HOUR_MS, LEASE_MS, RECORD, Shard, entry
from wheelq.embedded import EmbeddedServer
from wheelq.errors import NotLeader, ServerFull
from wheelq.protocol.calls import heartbeats, leader, outgoing, producer, registry, state, worker
from wheelq.protocol.calls.leader import ToPromote
from wheelq.protocol.calls.outgoing import Follower
from wheelq.protocol.calls.state import Concluded
from wheelq.protocol.keys import MEMBER_SEPARATOR, Keys
from wheelq.settings import TopicSettings


@pytest.fixture
def shard(private_server: Callable[..., EmbeddedServer], topic: str) -> Iterator[Shard]:
    """A shard on a server of its own."""
    shard = Shard(private_server(appendonly=False).url, topic)
    yield shard
    shard.close()


def fill(shard: Shard) -> None:
    shard.redis.config_set("maxmemory", "100kb")  # less than an empty server takes
    with pytest.raises(Exception, match="memory"):
        shard.redis.set("anything", "at all")


def overdue(shard: Shard, *ids: str) -> int:
    due = shard.now_ms() - 5
    shard.schedule(*((id, due + HOUR_MS) for id in ids))
    shard.redis.zadd(shard.keys.delayed, dict.fromkeys(ids, due))
    return due


@pytest.mark.parametrize("due", ["+0", f"+{HOUR_MS}"], ids=["due", "waiting"])
def test_a_new_job_is_refused_whole(shard: Shard, due: str) -> None:
    fill(shard)
    with pytest.raises(ServerFull, match="out of memory"):
        shard.send(producer.schedule(shard.keys, [("a", due, RECORD), ("b", due, RECORD)], "keep", "1"))
    assert shard.snapshot() == {}


def test_a_new_topic_is_refused(shard: Shard) -> None:
    fill(shard)
    with pytest.raises(ServerFull):
        shard.send(registry.register_topic(Keys(), "orders", TopicSettings()))


def test_rescheduling_is_refused_and_changes_nothing(shard: Shard) -> None:
    due = shard.now_ms() + HOUR_MS
    shard.schedule(("a", due))
    fill(shard)
    with pytest.raises(ServerFull):
        shard.send(producer.reschedule(shard.keys, "a", "+5000"))
    assert shard.snapshot() == {"delayed": {"a": due}, "jobs": {"a": RECORD}}


def test_run_now_goes_on(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    fill(shard)
    assert shard.send(producer.run_now(shard.keys, "a")) == "promoted"
    assert list(shard.snapshot()["ready"]) == ["e1"]


def test_cancelling_and_looking_up_go_on(shard: Shard) -> None:
    shard.schedule(("a", f"+{HOUR_MS}"))
    fill(shard)
    assert shard.send(state.get(shard.keys, "a")) is not None
    assert shard.send(producer.cancel(shard.keys, "a")) == "cancelled"
    assert shard.snapshot() == {}


def test_a_new_leader_takes_the_lease(shard: Shard) -> None:
    fill(shard)
    token = shard.lead()
    assert shard.raw(leader.renew(shard.keys, token, LEASE_MS))[0] == 1
    again = shard.lead()
    assert shard.snapshot() == {"lease": again, "epoch": int(again.split(":")[1])}
    assert shard.raw(leader.release(shard.keys, again)) == 1


def test_the_window_is_opened(shard: Shard) -> None:
    due = shard.now_ms() + 9_000
    shard.schedule(("a", due))
    token = shard.lead()
    fill(shard)
    opened = shard.send(leader.open_window(shard.keys, token, LEASE_MS, None, 10_000, 10, 10_000))
    assert opened.jobs == [("a", due)]


@pytest.mark.parametrize("how", ["promote", "sweep", "hedge"])
def test_a_due_job_is_promoted(shard: Shard, how: str) -> None:
    due = overdue(shard, "a", "b")
    fill(shard)
    if how == "promote":
        assert shard.send(leader.promote(shard.keys, shard.lead(), LEASE_MS, ["a", "b"])).promoted == 2
    elif how == "sweep":
        assert shard.send(leader.sweep(shard.keys, shard.lead(), LEASE_MS, 10)).promoted == 2
    else:
        assert shard.send(leader.hedge(shard.keys, 1, 10, "1")).promoted == 2
    after = shard.snapshot()
    assert after["ready"] == {"e1": entry("a", due), "e2": entry("b", due)}
    assert after["jobs"] == {"a": "e1", "b": "e2"}
    assert "delayed" not in after


def test_due_jobs_of_many_shards_are_promoted_also_if_the_first_has_another_leader(shard: Shard) -> None:
    """Nothing is written for the first, and the next must not be refused for that."""
    token = shard.lead()
    overdue(shard, "a", "b")
    other = Keys().shard(shard.keys.topic, 1)
    fill(shard)
    named = [ToPromote(other, token, ["c"]), ToPromote(shard.keys, token, ["a", "b"])]
    first, second = shard.send(leader.promote_some(named, LEASE_MS))
    assert isinstance(first, NotLeader)
    assert isinstance(second, leader.Promoted)
    assert second.promoted == 2


def test_a_ready_job_is_read_and_finished(shard: Shard) -> None:
    """Also by a worker that comes only now."""
    shard.schedule(("a", "+0"), ("b", "+0"), ("c", "+0"))
    fill(shard)
    shard.make_group("g")
    a, b, c = shard.read("g", "w1")
    assert shard.ack([a]) == 1
    due = shard.retry(b, HOUR_MS)
    assert shard.bury(c)
    after = shard.snapshot()
    assert after["delayed"] == {f"b{MEMBER_SEPARATOR}g": due}
    assert [d["id"] for d in after["dead"]] == ["c"]
    assert set(after["jobs"]) == {"b", f"b{MEMBER_SEPARATOR}g"}
    assert after["groups"]["g"]["pending"] == {}


def test_deliveries_are_renewed_handed_back_and_taken_over(shard: Shard) -> None:
    [a] = shard.deliver("a")
    fill(shard)
    assert shard.send(worker.keep(shard.keys, "g", "w1", [a.entry_id]))[1] == []
    assert shard.send(worker.hand_back(shard.keys, "g", "w1", 60_000, [a.entry_id])) == 1
    assert shard.send(worker.take_over(shard.keys, "g", "w2", 10, 60_000, [], ["w1"])) == [a.entry_id]
    assert [e.id for e in shard.send(worker.adopt(shard.keys, "g", "w2", [a.entry_id]))] == ["a"]
    assert shard.send(worker.leave(shard.keys, "g", "w1")) is True


def test_scheduler_nodes_say_that_they_live_and_share_the_shards_out(shard: Shard) -> None:
    fill(shard)
    with pytest.raises(ServerFull):
        shard.send(heartbeats.beat_node(Keys(), "node", {"shards": 1}))
    with pytest.raises(ServerFull):
        shard.send(heartbeats.beat_worker(Keys(), "worker", "1 g"))
    shard.send(heartbeats.beat_node_though_full(Keys(), "node", {"shards": 1}))
    assert shard.send(heartbeats.alive(Keys().nodes)) == {"node": {"shards": 1}}
    shard.send(heartbeats.beat_worker_though_full(Keys(), "worker", "1 g", {"running": 1}))
    answer = shard.send(heartbeats.beat_worker_though_full(Keys(), "worker", "2 g", {"running": 2}))
    assert answer.beats == {"worker": "2 g"}
    assert shard.send(heartbeats.alive(Keys().workers)) == {"worker": {"running": 2}}
    assert shard.send(heartbeats.put_assignment(Keys(), 0, 1, {("orders", 0): ("node", None)})) is True


def test_a_job_is_settled_with_its_followers(shard: Shard) -> None:
    """Both, or neither."""
    [a] = shard.deliver("a")
    fill(shard)
    follower = Follower("next", "b", "+0", "", "", RECORD, b"twelve bytes")
    ended = Concluded(a.entry_id, "a", a.due_ms, b"")
    settled = shard.send(state.conclude(shard.keys, "g", "w1", 0, 0, [ended], 0, [[follower]]))
    assert [one.follower.id for one in settled.outgoing] == ["b"]
    assert shard.snapshot()["groups"]["g"]["pending"] == {}
    [placed] = shard.send(outgoing.place(shard.keys, settled.outgoing))
    assert placed
    assert shard.redis.xlen(shard.keys.outgoing) == 1
