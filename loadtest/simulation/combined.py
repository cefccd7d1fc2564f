"""Faults in which several things go wrong at the same moment, each for the seeds with its trait.

Two faults that are drawn one by one seldom meet, and some mistakes show only where they do: a worker that loses calls
while it says goodbye, an outbox that delivers over connections that break, a topic that is paused while a standby
promotes in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from loadtest.simulation.faults import BACK_S, DEAD_S, SLOW, Stage, Steps, fault, freeze_node, restart, tell_slow
from loadtest.simulation.plan import WITH_OUTBOX

FREEZES = 3
"""How often a node is frozen in `hedge-late`."""
TRAITS = ("leaving", "keeping", "bundles", "hedging")
"""The traits of these faults."""


@fault("leave-shaken", 1, (0.5, 8), needs="leaving")
def leave_shaken(stage: Stage, random: Random, seconds: float) -> Steps:
    """A worker is stopped, and while it stops about half of its calls are lost, or their replies."""
    part = random.choice(stage.fleet.workers)
    for pause in restart(stage, part, seconds, "restart-worker", DEAD_S):
        until = stage.world.now + pause
        while stage.world.now < until:
            _shake(stage, random, [part.name])
            yield min(random.uniform(0.001, 0.004), until - stage.world.now)


@fault("leave-at-work", 1, (2, 12), needs="leaving")
def leave_at_work(stage: Stage, random: Random, seconds: float) -> Steps:
    """The worker with most running jobs is stopped."""
    running = Counter(run.worker for run in stage.ledger.runs if run.ended is None)
    part = max(stage.fleet.workers, key=lambda part: running[part.name])
    yield from restart(stage, part, seconds, "restart-worker", DEAD_S)


@fault("deliver-shaken", 1, (2, 8), needs="keeping")
def deliver_shaken(stage: Stage, random: Random, seconds: float) -> Steps:
    """The server goes away; when it is back, connections of the producers that kept jobs break again and again."""
    away = random.uniform(0.5, 3.0)
    stage.ledger.trouble("server-away", "", away + seconds, slack=BACK_S)
    stage.fleet.primary.stop()
    yield away
    stage.fleet.primary.start()
    until = stage.world.now + seconds
    while stage.world.now < until:
        _shake(stage, random, [stage.fleet.producers[number].name for number in WITH_OUTBOX])
        yield random.uniform(0.005, 0.06)


@fault("report-shaken", 1, (1, 5), needs="bundles")
def report_shaken(stage: Stage, random: Random, seconds: float) -> Steps:
    """The replies to about every third call that may concern a bundle are lost."""

    def loses(words: Sequence[bytes]) -> bool:
        return any(word.endswith(b":bundles") for word in words) and random.random() < 0.3

    stage.ledger.trouble("lost-replies", "", seconds, slack=1.5)
    servers = stage.fleet.servers
    for server in servers:
        server.loses = loses
    yield seconds
    for server in servers:
        server.loses = lambda words: False


@fault("hedge-late", 1, (3, 5), needs="hedging")
def hedge_late(stage: Stage, random: Random, seconds: float) -> Steps:
    """Nodes are frozen in turn, and the calls of the others, which promote in their place, take long."""
    slow, names = stage.fleet.network.slow, [part.name for part in stage.fleet.nodes]
    tell_slow(stage, FREEZES * (seconds + 1.0), SLOW)
    slow.update(dict.fromkeys(names, SLOW))
    for _ in range(FREEZES):
        yield from freeze_node(stage, random, seconds)
        yield 1.0
    for name in names:
        slow.pop(name, None)


def _shake(stage: Stage, random: Random, names: Iterable[str]) -> None:
    """Break some connections of these parts; half of them lose replies first."""
    for name in names:
        for link in stage.fleet.network.links_of(name):
            if random.random() < 0.3:
                link.is_deaf = random.random() < 0.5
                stage.world.after(0.001 if link.is_deaf else 0.0, link.reset)
