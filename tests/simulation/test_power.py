"""What servers have lost when they come back after a loss of power."""

from __future__ import annotations

import pytest

from loadtest.simulation import run
from loadtest.simulation.drawing import draw
from loadtest.simulation.plan import OWN_TOPICS, Plan, Step
from loadtest.simulation.server import Server
from loadtest.simulation.world import World

TOPICS = draw(1).topics[:5]


@pytest.mark.parametrize(("cut", "left"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 5)])
def test_a_cut_log_has_a_script_as_a_whole_or_not_at_all(cut: int, left: int) -> None:
    server = Server(World(1), "redis")
    for writes in (1, 3, 1):
        server.commands += 1
        for n in range(writes):
            server.write([b"HSET", b"%d" % server.commands, b"%d" % n, b"1"])
    server.stop(cut=cut)
    assert len(server.store.log) == left
    server.start()
    server.write([b"HSET", b"later", b"0", b"1"])
    server.stop(cut=left + 1)
    assert len(server.store.log) == left + 1


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("salt", [0, 2, 3])
def test_primary_and_replica_come_back_together(salt: int) -> None:
    """Whichever is the primary then: what was stored a second before is not lost, and runs once."""
    args = {"topic": "plain", "delay": 6.0, "partition_key": None, "payload": [0, 0, "error"]}
    jobs = [Step(n, 5.0 + n / 5, "schedule", "producer-1", {**args, "id": f"p{n}"}) for n in range(40)]
    lost = Step(100, 10.0, "power-lost", "", {"seconds": 1.0, "salt": salt})
    result = run.run(Plan(1, TOPICS, True, (*jobs, lost)))
    assert result.problems == ()
    assert any("writes are lost" in line for line in result.story.lines)
    assert 30 <= result.jobs <= 50


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("salt", range(2))
def test_the_outbox_of_a_producer_that_was_killed_is_delivered_by_the_next(salt: int) -> None:
    """The lock of its file ends with the process that was killed."""
    args = {"topic": "plain", "delay": 1.0, "partition_key": None, "payload": [0, 0, "error"]}
    jobs = [Step(n, 9.9 + n / 20, "schedule", "producer-4", {**args, "id": f"p{n}"}) for n in range(20)]
    again = Step(50, 25.0, "schedule", "producer-4", {**args, "id": "later"})
    killed = Step(100, 10.0, "kill-keeping", "", {"seconds": 2.0, "salt": salt})
    result = run.run(Plan(1, TOPICS, False, (*jobs, again, killed)))
    assert result.problems == ()
    assert sum(line.endswith(": kept") for line in result.story.lines) >= 4
    assert result.jobs >= 7


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_topic_whose_resumption_was_lost_with_the_power_is_resumed_again() -> None:
    """Its jobs waited for ever, and seemed to be lost."""
    pause = Step(1, 8.0, "pause", "producer-1", {"topic": "plain", "seconds": 1.9})
    job = {"topic": "plain", "id": "p2", "delay": 1.0, "partition_key": None, "payload": [0, 0, "error"]}
    lost = Step(3, 10.0, "power-lost", "", {"seconds": 1.0, "salt": 2})
    result = run.run(Plan(1, TOPICS, True, (pause, lost, Step(2, 15.0, "schedule", "producer-1", job))))
    assert result.problems == ()
    assert sum("pause plain: done" in line for line in result.story.lines) == 3


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("salt", [0, 2])
def test_a_group_whose_removal_was_lost_with_the_power_is_removed_again(salt: int) -> None:
    """On one shard or on both: it has no worker, and would keep its jobs there."""
    joined = next(topic for topic in OWN_TOPICS if topic.name == "joined")
    job = {"topic": "joined", "delay": 0.2, "partition_key": None, "payload": [0, 0, "error"]}
    args = {"topic": "joined", "group": "late", "pause": 1.0, "jobs": [{**job, "id": f"j{n}"} for n in range(6)]}
    removed = Step(1, 10.0, "late-group", "producer-1", args)
    lost = Step(2, 11.6, "aof-cut", "", {"seconds": 1.0, "salt": salt})
    result = run.run(Plan(1, (*TOPICS, joined), False, (removed, lost), traits=frozenset({"removal"})))
    assert result.problems == ()
    assert sum("late-group joined: done" in line for line in result.story.lines) == 3  # made, removed, removed again


class Caller:
    """A connection that keeps what it is answered."""

    written, blocked, is_gone = 1, None, False

    def __init__(self, world: World) -> None:
        self._world = world
        self.answers: list[tuple[float, object]] = []

    def send(self, reply: object) -> None:
        self.answers.append((round(self._world.now, 3), reply))


@pytest.mark.parametrize(("is_cut_off", "answer", "after"), [(False, 1, 0.3), (True, 0, 2.0)])
def test_a_replica_that_is_cut_off_confirms_nothing(is_cut_off: bool, answer: int, after: float) -> None:
    """A confirmation that was to come counted, although the replica never got the write."""
    caller = Caller(world := World(1))
    server = Server(world, "redis")
    server.replica_lag = [0.3]
    server.write([b"HSET", b"key", b"field", b"1"])
    server.wait(caller, [b"WAIT", b"1", b"2000"])  # type: ignore[arg-type]
    if is_cut_off:
        world.after(0.1, server.replica_lag.clear)
    world.run(10.0)
    assert caller.answers == [(after, answer)]
