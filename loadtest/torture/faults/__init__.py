"""The faults, and their targets.

A fault is a generator: it breaks something, yields for how many seconds it stays broken, and repairs it.

    @fault("freeze-worker")
    def freeze_worker(scene, random):
        name = scene.pick(random, "worker")
        with scene.disrupting("freeze-worker", name):
            scene.fleet.freeze(name)
            yield random.uniform(4.5, 6.0)
            scene.fleet.wake(name)

Faults overlap as planned (see `scene`), except those that take a server away. These come one at a time, each only when
all servers work again, because replication does not promise to survive two at once. Until then, such a fault may
explain repeated runs of every process.
"""

from __future__ import annotations

from loadtest.torture.faults import network, parts, refusals, removals, servers
from loadtest.torture.faults.parts import MOST_SHARDS
from loadtest.torture.faults.registry import FAULTS, Steps

__all__ = ["FAULTS", "MOST_SHARDS", "Steps", "network", "parts", "refusals", "removals", "servers"]
