"""Faults of the servers."""

from __future__ import annotations

from random import Random

from loadtest.torture.faults.parts import MOST_SHARDS
from loadtest.torture.faults.registry import Steps, fault, until
from loadtest.torture.scene import Scene
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys


@fault("crash-server", alone=True)
def crash_server(scene: Scene, random: Random) -> Steps:
    """SIGKILL, and back at once or after a second: with replicas, one of them may have taken over."""
    server = random.choice(scene.arena.masters())
    server.kill()
    yield random.choice((0.0, 1.0))
    server.start()


@fault("restart-server", alone=True)
def restart_server(scene: Scene, random: Random) -> Steps:
    """SIGTERM, and back."""
    random.choice(scene.arena.masters()).restart()
    yield 0.0


@fault("freeze-server", alone=True)
def freeze_server(scene: Scene, random: Random) -> Steps:
    """The server does not answer for a while; it carries out waiting calls afterwards, or a failover undoes them."""
    server = random.choice(scene.arena.masters())
    scene.arena.freeze(server)
    yield random.uniform(0.2, 2.5)
    scene.arena.wake(server)


@fault("fail-over", alone=True)
def fail_over(scene: Scene, random: Random) -> Steps:
    """SIGKILL, and back only when a replica has taken over."""
    server = random.choice(scene.arena.masters())
    server.kill()
    yield from until(scene.arena.is_served, "no replica takes over")
    yield random.uniform(0.0, 1.0)
    server.start()


@fault("switch-over", alone=True)
def switch_over(scene: Scene, random: Random) -> Steps:
    """A replica takes its master's place in a planned switch, for maintenance."""
    before = set(scene.arena.masters())
    yield from until(lambda: scene.arena.switch_over(random), "no replica is taken")
    for _ in range(100):
        if not before <= set(scene.arena.masters()):
            return
        yield 0.1


@fault("restart-replica", alone=True)
def restart_replica(scene: Scene, random: Random) -> Steps:
    """SIGKILL, and back: the replica confirms nothing meanwhile."""
    server = random.choice(scene.arena.replicas())
    server.kill()
    yield random.uniform(0.0, 1.5)
    server.start()


@fault("freeze-replica", alone=True)
def freeze_replica(scene: Scene, random: Random) -> Steps:
    """The replica falls behind, and confirms nothing."""
    server = random.choice(scene.arena.replicas())
    scene.arena.freeze(server)
    yield random.uniform(0.5, 2.5)
    scene.arena.wake(server)


@fault("move-slots", alone=True)
def move_slots(scene: Scene, random: Random) -> Steps:
    """A shard moves to another master, key by key."""
    shard = Keys().shard(random.choice(scene.topics), random.randrange(MOST_SHARDS))
    yield from scene.arena.move_slot(shard.ready, random)


@fault("flush-scripts")
def flush_scripts(scene: Scene, random: Random) -> Steps:
    """SCRIPT FLUSH, three times."""
    for _ in range(3):
        scene.arena.on_servers(command("SCRIPT FLUSH", read=bool))
        yield 0.1


@fault("fill-memory")
def fill_memory(scene: Scene, random: Random) -> Steps:
    """maxmemory is set below the memory in use for a while: commands that need memory are refused."""
    scene.arena.on_servers(command("CONFIG SET", "maxmemory", "1mb", read=bool))
    yield random.uniform(1.0, 2.5)
    enough = command("CONFIG SET", "maxmemory", "0", read=bool)
    yield from until(lambda: scene.arena.on_servers(enough), "a server stays full")


@fault("kick-clients")
def kick_clients(scene: Scene, random: Random) -> Steps:
    """The server ends all connections but those of subscribers."""
    with scene.disrupting("kick-clients", lasts_s=2.0):
        scene.arena.on_servers(command("CLIENT KILL TYPE normal", read=bool))
        yield 0.0


@fault("kick-subscribers")
def kick_subscribers(scene: Scene, random: Random) -> Steps:
    """The server ends the connections of subscribers: hints are lost, and leaders look as if they were gone."""
    scene.arena.on_servers(command("CLIENT KILL TYPE pubsub", read=bool))
    yield 0.0
