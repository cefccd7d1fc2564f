"""Faults of the network between the parts and the servers."""

from __future__ import annotations

from random import Random

from loadtest.torture.faults.registry import Steps, fault
from loadtest.torture.scene import Scene


@fault("cut")
def cut(scene: Scene, random: Random) -> Steps:
    """Connections end."""
    parts = scene.pick_parts(random)
    with scene.disrupting("cut", *parts, lasts_s=2.0):
        scene.arena.proxy.cut(*parts)
        yield 0.0


@fault("shut")
def shut(scene: Scene, random: Random) -> Steps:
    """Connections end, and for a while no new ones can be made."""
    parts = scene.pick_parts(random)
    with scene.disrupting("shut", *parts, lasts_s=2.0):
        scene.arena.proxy.shut(True, *parts)
        scene.arena.proxy.cut(*parts)
        yield random.uniform(0.3, 2.0)
        scene.arena.proxy.shut(False, *parts)


@fault("delay")
def delay(scene: Scene, random: Random) -> Steps:
    """Everything takes longer, by up to a second there and back."""
    parts = scene.pick_parts(random)
    with scene.disrupting("delay", *parts, lasts_s=2.0):
        scene.arena.proxy.delay(random.uniform(0.02, 0.5), *parts)
        yield random.uniform(1.0, 3.0)
        scene.arena.proxy.delay(0.0, *parts)


@fault("swallow")
def swallow(scene: Scene, random: Random) -> Steps:
    """Requests go through, replies do not: callers see a time-out, or the connection end."""
    parts = scene.pick_parts(random)
    with scene.disrupting("swallow", *parts, lasts_s=2.0):
        scene.arena.proxy.swallow(True, *parts)
        yield random.choice((random.uniform(0.05, 0.5), random.uniform(1.6, 2.5)))
        scene.arena.proxy.swallow(False, *parts)


@fault("silence")
def silence(scene: Scene, random: Random) -> Steps:
    """A cable is pulled: connections carry nothing, and neither side notices."""
    parts = scene.pick_parts(random)
    with scene.disrupting("silence", *parts, lasts_s=8.0):  # until the longest wait for a reply has ended
        scene.arena.proxy.silence(*parts)
        yield 0.0
