"""Refusals of a running server for a while: writes, channels, and users without the password."""

from __future__ import annotations

from random import Random

from loadtest.torture.faults.registry import Steps, fault, until
from loadtest.torture.scene import Scene
from wheelq.protocol.call import command


@fault("busy-server", alone=True)
def busy_server(scene: Scene, random: Random) -> Steps:
    """A script does not end: for a while the server does not answer, and then it answers every call with BUSY."""
    server = random.choice(scene.arena.masters())
    with scene.arena.occupied(server, silent_ms=random.choice((50, 1_000))):
        yield random.uniform(1.0, 8.0)


@fault("refuse-unsaved", alone=True)
def refuse_unsaved(scene: Scene, random: Random) -> Steps:
    """MISCONF: a snapshot could not be written, and the server takes no writes."""
    with scene.arena.unable_to_save(random.choice(scene.arena.masters())):
        yield random.uniform(1.0, 6.0)


@fault("refuse-alone")
def refuse_alone(scene: Scene, random: Random) -> Steps:
    """NOREPLICAS: fewer replicas follow than the server wants for a write."""
    scene.arena.on_servers(command("CONFIG SET", "min-replicas-to-write", "9", read=bool))
    yield random.uniform(1.0, 6.0)
    again = command("CONFIG SET", "min-replicas-to-write", "0", read=bool)
    yield from until(lambda: scene.arena.on_servers(again), "a server still wants replicas")


@fault("lock-out", alone=True)
def lock_out(scene: Scene, random: Random) -> Steps:
    """The password is changed and all connections end; after a while the old password is restored."""
    scene.arena.on_servers(command("ACL SETUSER", "default", "resetpass", ">another", read=bool))
    scene.arena.on_servers(command("CLIENT KILL", "USER", "default", read=bool))
    yield random.uniform(1.0, 6.0)
    again = command("ACL SETUSER", "default", "nopass", read=bool)
    yield from until(lambda: scene.arena.on_servers(again), "a server keeps its new password")


@fault("take-channels")
def take_channels(scene: Scene, random: Random) -> Steps:
    """No client may subscribe, like a user of Redis 7 without channels; connections that listen are closed."""
    sentinels = "&__sentinel__:*"  # sentinels watch the servers through this channel
    scene.arena.on_servers(command("ACL SETUSER", "default", "resetchannels", sentinels, read=bool))
    yield random.uniform(1.0, 8.0)
    again = command("ACL SETUSER", "default", "resetchannels", "allchannels", read=bool)
    yield from until(lambda: scene.arena.on_servers(again), "a server keeps its channels closed")


@fault("fill-disk", alone=True)
def fill_disk(scene: Scene, random: Random) -> Steps:
    """The disk below the append-only file is full for a while. Then the file is rewritten, as the guide says."""
    disk = scene.arena.disk
    assert disk is not None, "spared without one"
    disk.fill()
    yield random.uniform(1.5, 6.0)
    disk.free()
    ping = command("SET", "torture-writes-again", "1", read=bool)
    yield from until(lambda: scene.arena.on_servers(ping), "a server does not write again")
    rewrite = command("BGREWRITEAOF", read=bool)
    for _ in range(2):  # a server takes the second when the first is done
        yield from until(lambda: scene.arena.on_servers(rewrite), "a server does not rewrite its append-only file")


@fault("step-clock", alone=True)
def step_clock(scene: Scene, random: Random) -> Steps:
    """The server's clock is set a few seconds ahead, or up to an hour back, and later corrected."""
    clock = scene.arena.clock
    assert clock is not None, "spared without one"
    clock.step(random.choice((random.uniform(0.5, 5.0), -random.uniform(0.5, 5.0), -3_600.0)))
    yield random.uniform(1.5, 7.0)
    clock.step(0.0)
    yield 1.5  # it is noticed within a second
