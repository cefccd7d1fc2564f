"""Faults that stay: what they do to a part, and that the healthy parts go on."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.simulation.drawing import draw
from loadtest.simulation.faults import FAULTS
from loadtest.simulation.network import Link, Network
from loadtest.simulation.process import Process
from loadtest.simulation.trials import try_seed
from loadtest.simulation.world import World


class End:
    """Either end of a link, which notes what it gets."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def receive(self, data: bytes) -> None:
        self.got.append(data)

    def gone(self) -> None:
        pass

    def lost(self, error: Exception | None) -> None:
        pass

    def vanish(self) -> None:
        pass


def sent(network: Network) -> tuple[list[bytes], list[bytes]]:
    """Send something in both directions; returns what the server and the process got."""
    process: Any = Process(network.world, network, "node-1")
    link, server, own = Link(network, process, "redis", 1), End(), End()
    link.session, link.transport = server, own
    link.to_server(b"ask")
    link.to_process(b"answer")
    network.world.run(network.world.now + 1.0)
    return server.got, own.got


def test_a_part_that_is_not_heard_hears_and_one_that_does_not_hear_is_heard() -> None:
    network = Network(World(1))
    assert sent(network) == ([b"ask"], [b"answer"])
    network.unheard.add("node-1")
    assert sent(network) == ([], [b"answer"])
    network.unheard.clear()
    network.unhearing.add("node-1")
    assert sent(network) == ([b"ask"], [])


def test_a_clock_that_is_wrong_goes_on_from_where_it_was() -> None:
    world = World(1)
    process = Process(world, Network(world), "node-1")
    process.rate = 1.0
    world.now = 10.0
    before = process.monotonic(), process.wall()
    process.drift(1.1)
    assert (process.monotonic(), process.wall()) == pytest.approx(before)
    world.now = 20.0
    assert process.monotonic() - before[0] == pytest.approx(11.0)
    assert process.wall() - before[1] == pytest.approx(11.0)


def test_every_twelfth_seed_has_faults_that_stay_and_no_others() -> None:
    kinds = {seed: [step.kind for step in draw(seed).steps if step.kind in FAULTS] for seed in range(1, 49)}
    assert [seed for seed, found in kinds.items() if "lasting" in found] == [11, 23, 35, 47]
    assert kinds[11] == ["lasting"]


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_healthy_node_and_healthy_workers_go_on() -> None:
    trial = try_seed(23)
    assert trial.problems == ()
    assert sum(" FAULT " in line and (" has " in line or "hear" in line) for line in trial.lines) >= 6
    assert trial.jobs > 400


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_blocking_producer_that_is_not_heard_does_not_stop_the_run() -> None:
    """A thread waited for a real lock, while the thread that held it waited in virtual time."""
    trial = try_seed(35)
    assert trial.problems == ()
    assert any("blunt-0: is not heard" in line for line in trial.lines)
