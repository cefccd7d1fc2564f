"""What can be done to whom.

A fault is a generator: it does something, yields for how many seconds to leave it so, and puts it right again.

    @fault("freeze-worker")
    def freeze_worker(scene, random):
        name = scene.pick(random, "worker")
        with scene.hurting("freeze-worker", name):
            scene.fleet.freeze(name)
            yield random.uniform(4.5, 6.0)
            scene.fleet.wake(name)

Faults overlap as the plan has it (see `scene`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from random import Random

from loadtest.scene import Scene
from wheelq import Client
from wheelq.errors import ServerError
from wheelq.protocol.call import command

ABANDONED_S = 3.5
"""After so long without a sign of life a worker's deliveries are given to others (a default of wheelq)."""
MOST_SHARDS = 5
Steps = Generator[float, None, None]
Fault = Callable[[Scene, Random], Steps]
FAULTS: dict[str, Fault] = {}
"""Every fault by its name."""
THROUGH_PROXY = frozenset({"cut", "shut", "delay", "swallow", "silence"})
"""Those that need a proxy between the parts and the servers."""


def fault(name: str) -> Callable[[Fault], Fault]:
    """Make a fault known by a name."""

    def register(function: Fault) -> Fault:
        FAULTS[name] = function
        return function

    return register


# --- schedulers and workers ----------------------------------------------------------------------------------------


def _kill(scene: Scene, random: Random, kind: str) -> Steps:
    name = scene.pick(random, kind)
    with scene.hurting(f"kill-{kind}", name):
        scene.fleet.kill(name)
        yield random.choice((0.0, 1.0))
        scene.start(kind)


def _freeze(scene: Scene, random: Random, kind: str, seconds: float) -> Steps:
    name = scene.pick(random, kind)
    with scene.hurting(f"freeze-{kind}", name):
        scene.fleet.freeze(name)
        yield seconds
        scene.fleet.wake(name)


def _stop(scene: Scene, random: Random, kind: str) -> Steps:
    name = scene.pick(random, kind)
    with scene.hurting(f"stop-{kind}", name):
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
    """Nothing new for a while: what waits becomes thin, and leaders may rest."""
    for producer in scene.producers:
        producer.may_go_on.clear()
    yield random.uniform(1.0, 3.0)
    for producer in scene.producers:
        producer.may_go_on.set()


@fault("reshard")
def reshard(scene: Scene, random: Random) -> Steps:
    """A topic gets another number of shards while its jobs wait; producers are not told."""
    with suppress(ServerError):  # such as a full server; a change that was begun is finished by whoever meets it
        Client(scene.arena.control).set_shards(random.choice(scene.topics), random.randint(1, MOST_SHARDS))
    yield 0.0


# --- servers -------------------------------------------------------------------------------------------------------


@fault("crash-server")
def crash_server(scene: Scene, random: Random) -> Steps:
    """SIGKILL, and back at once or after a second."""
    with scene.hurting("crash-server", lasts_s=2.0):
        scene.arena.crash(random.choice((0.0, 1.0)))
        yield 0.0


@fault("restart-server")
def restart_server(scene: Scene, random: Random) -> Steps:
    """SIGTERM, and back."""
    with scene.hurting("restart-server", lasts_s=2.0):
        scene.arena.restart()
        yield 0.0


@fault("freeze-server")
def freeze_server(scene: Scene, random: Random) -> Steps:
    """Nobody is answered for a while; what was asked meanwhile happens afterwards."""
    with scene.hurting("freeze-server", lasts_s=2.0):
        scene.arena.freeze(random.uniform(0.2, 2.5))
        yield 0.0


@fault("flush-scripts")
def flush_scripts(scene: Scene, random: Random) -> Steps:
    """SCRIPT FLUSH, three times."""
    for _ in range(3):
        scene.arena.on_servers(command("SCRIPT FLUSH", read=bool))
        yield 0.1


@fault("fill-memory")
def fill_memory(scene: Scene, random: Random) -> Steps:
    """maxmemory is below what is in use, for a while: what needs memory is refused."""
    scene.arena.on_servers(command("CONFIG SET", "maxmemory", "1mb", read=bool))
    yield random.uniform(1.0, 2.5)
    scene.arena.on_servers(command("CONFIG SET", "maxmemory", "0", read=bool))


@fault("kick-clients")
def kick_clients(scene: Scene, random: Random) -> Steps:
    """The server ends all connections but those of subscribers."""
    with scene.hurting("kick-clients", lasts_s=2.0), suppress(ServerError):
        scene.arena.on_servers(command("CLIENT KILL TYPE normal", read=bool))
        yield 0.0


@fault("kick-subscribers")
def kick_subscribers(scene: Scene, random: Random) -> Steps:
    """The server ends the connections of subscribers: hints are lost, and leaders look as if they were gone."""
    scene.arena.on_servers(command("CLIENT KILL TYPE pubsub", read=bool))
    yield 0.0


# --- the network ---------------------------------------------------------------------------------------------------


@fault("cut")
def cut(scene: Scene, random: Random) -> Steps:
    """Connections end."""
    parts = scene.pick_parts(random)
    with scene.hurting("cut", *parts, lasts_s=2.0):
        scene.proxy.cut(*parts)
        yield 0.0


@fault("shut")
def shut(scene: Scene, random: Random) -> Steps:
    """Connections end, and for a while no new ones can be made."""
    parts = scene.pick_parts(random)
    with scene.hurting("shut", *parts, lasts_s=2.0):
        scene.proxy.shut(True, *parts)
        scene.proxy.cut(*parts)
        yield random.uniform(0.3, 2.0)
        scene.proxy.shut(False, *parts)


@fault("delay")
def delay(scene: Scene, random: Random) -> Steps:
    """Everything takes longer, by up to a second there and back."""
    parts = scene.pick_parts(random)
    with scene.hurting("delay", *parts, lasts_s=2.0):
        scene.proxy.delay(random.uniform(0.02, 0.5), *parts)
        yield random.uniform(1.0, 3.0)
        scene.proxy.delay(0.0, *parts)


@fault("swallow")
def swallow(scene: Scene, random: Random) -> Steps:
    """Requests go through, replies do not: callers see a time-out, or the connection end."""
    parts = scene.pick_parts(random)
    with scene.hurting("swallow", *parts, lasts_s=2.0):
        scene.proxy.swallow(True, *parts)
        yield random.choice((random.uniform(0.05, 0.5), random.uniform(1.6, 2.5)))
        scene.proxy.swallow(False, *parts)


@fault("silence")
def silence(scene: Scene, random: Random) -> Steps:
    """A cable is pulled: connections carry nothing, and neither side is told."""
    parts = scene.pick_parts(random)
    with scene.hurting("silence", *parts, lasts_s=8.0):  # until the longest wait for a reply has ended
        scene.proxy.silence(*parts)
        yield 0.0
