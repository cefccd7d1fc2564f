"""Faults of schedulers, workers, producers and topics."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from random import Random

from loadtest.torture.faults.registry import Steps, fault
from loadtest.torture.scene import Scene
from wheelq import Client
from wheelq.errors import ServerError

ABANDONED_S = 3.5
"""Seconds without a sign of life after which a worker's deliveries are given to others (a default of wheelq)."""
AWAKE_S = 0.5
"""Seconds after which a process that was frozen has told the others that it is alive."""
MOST_SHARDS = 5


def kill(scene: Scene, random: Random, kind: str) -> Steps:
    """SIGKILL; another takes its place at once, or after a second."""
    name = scene.pick(random, kind)
    with scene.disrupting(f"kill-{kind}", name):
        scene.fleet.kill(name)
        yield random.choice((0.0, 1.0))
        scene.start(kind)


def freeze(scene: Scene, random: Random, kind: str) -> Steps:
    """SIGSTOP until a scheduler's leases have ended, or a worker's deliveries are given to others; then SIGCONT."""
    longer = random.uniform(1.5, 3.0)
    name = scene.pick(random, kind)
    with scene.disrupting(f"freeze-{kind}", name, lasts_s=AWAKE_S):
        scene.fleet.freeze(name)
        yield longer * scene.lease_ms / 1000 if kind == "scheduler" else ABANDONED_S + longer
        scene.fleet.wake(name)


def stop(scene: Scene, random: Random, kind: str) -> Steps:
    """SIGTERM; another is started at the same time."""
    name = scene.pick(random, kind)
    with scene.disrupting(f"stop-{kind}", name):
        scene.fleet.ask_to_stop(name)
        scene.start(kind)
        while scene.fleet.is_running(name):
            yield 0.1


for what in (kill, freeze, stop):
    for kind in ("scheduler", "worker"):
        fault(f"{what.__name__}-{kind}")(partial(what, kind=kind))


@fault("pause-producers")
def pause_producers(scene: Scene, random: Random) -> Steps:
    """No new jobs for a while: few jobs wait, and leaders may rest."""
    for producer in scene.producers:
        producer.may_go_on.clear()
    yield random.uniform(1.0, 3.0)
    for producer in scene.producers:
        producer.may_go_on.set()


@fault("reshard")
def reshard(scene: Scene, random: Random) -> Steps:
    """A topic gets another number of shards while its jobs wait; producers are not told."""
    with suppress(ServerError):  # such as a full server; the next client that meets a half-done change completes it
        Client(scene.arena.control).set_shards(random.choice(scene.topics), random.randint(1, MOST_SHARDS))
    yield 0.0
