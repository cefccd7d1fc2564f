"""Faults in which several things go wrong at the same moment, each for the seeds with its trait.

Two faults that are drawn one by one seldom meet, and some mistakes show only where they do: a worker that loses calls
while it says goodbye, an outbox that delivers over connections that break, a topic that is paused while a standby
promotes in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from loadtest.simulation.faults import (
    BACK_S,
    DEAD_S,
    NOTICED_S,
    SLOW,
    Stage,
    Steps,
    fault,
    freeze_node,
    restart,
    tell_slow,
)
from loadtest.simulation.parts import Part
from loadtest.simulation.plan import WITH_OUTBOX
from loadtest.simulation.refusals import NOREPLICAS

STOPS, MANY = 4, 8
"""How often `leave-finishing` stops a worker, and how many jobs of bursts that is running then."""
CUTS = ("server-away", "partition", "unheard", "unheard", "flapping", "flapping", "flapping")
"""What `cut-at-calls` does."""
UNHEARD_S = 1.5
"""After so long a connection that is not heard breaks."""
FREEZES = 3
"""How often a node is frozen in `hedge-late`."""
BETWEEN_S = 5.0
"""Seconds from the end of one restart to the next in `roll`."""
TRAITS = ("leaving", "keeping", "bundles", "hedging", "outages", "bursts", "rolling")
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


@fault("leave-finishing", 1, (0.5, 4), needs="bursts")
def leave_finishing(stage: Stage, random: Random, seconds: float) -> Steps:
    """A few times a worker is stopped that is about to finish many short jobs."""
    for _ in range(STOPS):
        until = stage.world.now + 12.0
        running = Counter[str]()
        while stage.world.now < until and max(running.values(), default=0) < MANY:
            yield 0.05
            running = Counter(
                run.worker for run in stage.ledger.runs[-500:] if run.ended is None and run.topic == "short"
            )
        part = max(stage.fleet.workers, key=lambda part: running[part.name])
        yield from restart(stage, part, seconds, "restart-worker", DEAD_S)


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


@fault("roll", 1, (0.3, 2), needs="rolling")
def roll(stage: Stage, random: Random, seconds: float) -> Steps:
    """The workers of the first group are restarted one after the other, as for a new release."""
    for part in random.sample(stage.fleet.workers[:-1], len(stage.fleet.workers) - 1):
        yield from restart(stage, part, seconds, "restart-worker", DEAD_S)
        yield BETWEEN_S


def _shake(stage: Stage, random: Random, names: Iterable[str]) -> None:
    """Break some connections of these parts; half of them lose replies first."""
    for name in names:
        for link in stage.fleet.network.links_of(name):
            if random.random() < 0.3:
                link.is_deaf = random.random() < 0.5
                stage.world.after(0.001 if link.is_deaf else 0.0, link.reset)


@fault("cut-at-calls", 1, (20, 40), needs="outages")
def cut_at_calls(stage: Stage, random: Random, seconds: float) -> Steps:
    """Again and again a call for new jobs is done, its reply is lost, and the server goes away, or only its producer.

    At other times a producer with an outbox hears the server, and is not heard; or the server refuses some writes, and
    loses some replies.
    """
    until = stage.world.now + seconds
    while stage.world.now < until:
        how, away = random.choice(CUTS), random.uniform(0.3, 3.0)
        if how == "unheard":
            yield from _unheard(stage, stage.fleet.producers[random.choice(WITH_OUTBOX)], away)
        elif how == "flapping":
            yield from _flapping(stage, random, away)
        else:
            yield from _cut_at_a_call(stage, how, away, until)
        yield random.uniform(0.2, 1.5)


def _cut_at_a_call(stage: Stage, how: str, away: float, until: float) -> Steps:
    armed, server, network = [True], stage.fleet.primary, stage.fleet.network
    server.loses = lambda words: _is_call(words) and bool(armed) and armed.pop()
    while armed and stage.world.now < until:
        yield 0.002
    server.loses = lambda words: False
    who = next((link.process.name for link in network.links_of(address=server.address) if link.is_deaf), "")
    if armed or not who or not server.is_up:
        return
    stage.world.story.tell("FAULT", f"{who} has made a call, then: {how}")
    stage.ledger.trouble("lost-replies", "", 0.1, slack=1.5)
    if how == "server-away":
        stage.ledger.trouble(how, "", away, slack=BACK_S)
        server.stop()
        yield away
        server.start()
    else:
        stage.ledger.trouble(how, who, away, slack=NOTICED_S + BACK_S)
        network.part(who, server.address)
        yield away
        network.join(who, server.address)


def _is_call(words: Sequence[bytes]) -> bool:
    return any(word.startswith(b"wheelq:{stored:") and b":tags:" in word for word in words)


def _flapping(stage: Stage, random: Random, seconds: float) -> Steps:
    server = stage.fleet.primary

    def loses(words: Sequence[bytes]) -> bool:
        server.refusals.writes = NOREPLICAS if random.random() < 0.4 else ""
        return _is_call(words) and random.random() < 0.5

    stage.world.story.tell("FAULT", "some writes are refused, and some replies are lost")
    stage.ledger.trouble("writes-refused", "", seconds, slack=BACK_S + DEAD_S)
    server.loses = loses
    yield seconds
    server.refusals.writes, server.loses = "", lambda words: False


def _unheard(stage: Stage, part: Part, seconds: float) -> Steps:
    network = stage.fleet.network
    stage.world.story.tell("FAULT", f"{part.name} is not heard")
    stage.ledger.trouble("half-open", part.name, UNHEARD_S + seconds, slack=NOTICED_S)
    network.unheard.add(part.name)
    for pause in (UNHEARD_S, seconds):
        yield pause
        for link in network.links_of(part.name):
            link.reset()
    network.unheard.discard(part.name)
