"""What the simulator has found, each as the few steps that its shrinker left."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from loadtest.simulation import run
from loadtest.simulation.drawing import draw
from loadtest.simulation.ledger import Ledger
from loadtest.simulation.plan import Plan, Step
from loadtest.simulation.process import Process
from loadtest.simulation.server import Server, Session
from loadtest.simulation.world import World


@pytest.mark.timeout(300)
def test_a_part_without_channels_asks_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 2: nodes and workers connected and subscribed fifty times a second as long as channels were refused."""
    asked: Counter[str] = Counter()
    carry_out = Server._carry_out

    def counting(self: Server, session: Session, words: list[bytes]) -> None:
        if words[0].upper() == b"SUBSCRIBE" and words[1] == b"wheelq:changes" and self.refusals.forbidden:
            asked[session.link.process.name] += 1
        carry_out(self, session, words)

    monkeypatch.setattr(Server, "_carry_out", counting)
    no_channels = Step(0, 10.0, "no-channels", "", {"seconds": 20.0, "salt": 1})
    result = run.run(_with(draw(2), no_channels))
    assert not result.problems
    assert len(asked) == 7  # nodes and workers
    assert max(asked.values()) <= 30, asked


@pytest.mark.timeout(300)
def test_a_retry_in_order_waits_no_longer_than_a_clock_is_wrong() -> None:
    """Seed 30: the server's clock was set back an hour and right again; its worker slept for the hour."""
    args = {"topic": "order", "id": "o1", "delay": 0, "partition_key": None, "payload": [0.05, 2, "error"]}
    fails_twice = Step(0, 10.0, "schedule", "producer-0", args)
    an_hour_back = Step(1, 10.2, "clock-back", "", {"seconds": 30.0, "salt": _salt(3_600.0)})
    result = run.run(_with(draw(30), fails_twice, an_hour_back))
    assert not result.problems


@pytest.mark.timeout(300)
def test_the_state_of_a_job_that_ends_on_a_full_server_is_kept() -> None:
    """Seed 106: the simulated server refused a script halfway, which no server does."""
    args = {"topic": "plain", "id": "p1", "delay": 0, "partition_key": None, "payload": [2.0, 0, "error"]}
    full = Step(1, 10.5, "full", "", {"seconds": 5.0, "salt": 1})
    topic = replace(draw(1).topics[0], settings={"shards": 1, "keep_done_ms": 20_000})
    plan = Plan(1, (topic, *draw(1).topics[1:5]), False, (Step(0, 10.0, "schedule", "producer-0", args), full))
    assert run.run(plan).problems == ()


@pytest.mark.timeout(300)
def test_nothing_of_a_run_is_left_to_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coroutines of killed and frozen processes ended outside of their loops, in whatever ran next."""
    gc.collect()  # what other tests have left
    ended: list[object] = []
    made: list[Process] = []
    init = Process.__init__

    def seen(self: Process, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(Process, "__init__", seen)
    monkeypatch.setattr(sys, "unraisablehook", lambda what: ended.append(what.object))
    kinds = ("kill-worker", "kill-node", "freeze-worker", "half-open")
    steps = [Step(n, 10.0 + 8 * n, kind, "", {"seconds": 5.0, "salt": 1}) for n, kind in enumerate(kinds)]
    assert run.run(_with(draw(3), *steps)).problems == ()
    assert len(made) == 3 + 4 + 6 + 2  # nodes, workers, producers, and two in the place of those that were killed
    assert not [task for process in made for task in asyncio.all_tasks(process.loop)]
    assert gc.isenabled()
    made.clear()
    gc.collect()
    assert not ended


def test_how_long_a_job_has_waited_ends_with_its_promotion() -> None:
    """Seeds 161 and 178: the next job with its id, promoted as it came, seemed to have waited since the first."""
    world = World(1)
    ledger, server = Ledger(world), Server(world, "redis")
    ledger.watch(server)
    entry = [b"XADD", b"wheelq:{plain:0}:ready", b"*", b"id", b"p1", b"due", b"1", b"attempt", b"1"]
    server.write([b"ZADD", b"wheelq:{plain:0}:delayed", b"1", b"p1"])
    for world.now in (5.0, 9.0):
        server.write(entry)
    assert [one.waits_since for one in ledger.promotions] == [0.0, 9.0]


def test_how_long_a_job_has_waited_ends_with_its_cancellation() -> None:
    """Seed 9071: a cancelled job was made again much later, for a time in the past, and seemed to have waited since."""
    world = World(1)
    ledger, server = Ledger(world), Server(world, "redis")
    ledger.watch(server)
    server.write([b"ZADD", b"wheelq:{plain:0}:delayed", b"1", b"p1"])
    server.write([b"ZREM", b"wheelq:{plain:0}:delayed", b"p1"])
    world.now = 9.0
    server.write([b"XADD", b"wheelq:{plain:0}:ready", b"*", b"id", b"p1", b"due", b"1", b"attempt", b"1"])
    assert [one.waits_since for one in ledger.promotions] == [9.0]


def _salt(wanted: float) -> int:
    """With which the fault sets the clock back by so much."""
    return next(salt for salt in range(100) if Random(salt).choice((2.0, 10.0, 60.0, 3_600.0)) == wanted)


def _with(plan: Plan, *steps: Step) -> Plan:
    return replace(plan, steps=steps, traits=frozenset(), knobs={})
