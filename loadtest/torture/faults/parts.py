"""Faults of schedulers, workers, producers and topics."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from loadtest.torture.faults.registry import Steps, fault
from loadtest.torture.scene import Scene
from wheelq import Client
from wheelq.errors import ServerError

ABANDONED_S = 3.5
"""Seconds without a sign of life after which a worker's deliveries are given to others (a default of wheelq)."""
MOST_SHARDS = 5


def _kill(scene: Scene, random: Random, kind: str) -> Steps:
    name = scene.pick(random, kind)
    with scene.disrupting(f"kill-{kind}", name):
        scene.fleet.kill(name)
        yield random.choice((0.0, 1.0))
        scene.start(kind)


def _freeze(scene: Scene, random: Random, kind: str, seconds: float) -> Steps:
    name = scene.pick(random, kind)
    with scene.disrupting(f"freeze-{kind}", name):
        scene.fleet.freeze(name)
        yield seconds
        scene.fleet.wake(name)


def _stop(scene: Scene, random: Random, kind: str) -> Steps:
    name = scene.pick(random, kind)
    with scene.disrupting(f"stop-{kind}", name):
        scene.fleet.ask_to_stop(name)
        scene.start(kind)
        while scene.fleet.is_running(name):
            yield 0.1


@fault("kill-scheduler")
def kill_scheduler(scene: Scene, random: Random) -> Steps:
    """SIGKILL; another takes its place at once, or after a second."""
    yield from _kill(scene, random, "scheduler")


@fault("kill-worker")
def kill_worker(scene: Scene, random: Random) -> Steps:
    """SIGKILL; another takes its place at once, or after a second."""
    yield from _kill(scene, random, "worker")


@fault("freeze-scheduler")
def freeze_scheduler(scene: Scene, random: Random) -> Steps:
    """SIGSTOP past the end of its leases, then SIGCONT."""
    yield from _freeze(scene, random, "scheduler", random.uniform(1.5, 3.0) * scene.lease_ms / 1000)


@fault("freeze-worker")
def freeze_worker(scene: Scene, random: Random) -> Steps:
    """SIGSTOP until its deliveries are given to others, then SIGCONT."""
    yield from _freeze(scene, random, "worker", ABANDONED_S + random.uniform(1.5, 3.0))


@fault("stop-scheduler")
def stop_scheduler(scene: Scene, random: Random) -> Steps:
    """SIGTERM; another is started at the same time."""
    yield from _stop(scene, random, "scheduler")


@fault("stop-worker")
def stop_worker(scene: Scene, random: Random) -> Steps:
    """SIGTERM; another is started at the same time."""
    yield from _stop(scene, random, "worker")


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
