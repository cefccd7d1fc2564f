"""What can be done to whom.

A fault is a generator: it does something, yields for how many seconds to leave it so, and puts it right again.

    @fault("freeze-worker")
    def freeze_worker(scene, random):
        name = scene.pick(random, "worker")
        with scene.hurting("freeze-worker", name):
            scene.fleet.freeze(name)
            yield random.uniform(4.5, 6.0)
            scene.fleet.wake(name)

Faults overlap as the plan has it (see `scene`), but for those that take a server away: these come one at a time, and
the next only when all servers play their parts again, since two at once would be more than replication promises to
survive. Each of them concerns everyone until then.
"""

from __future__ import annotations

from loadtest.faults import network, parts, servers
from loadtest.faults.parts import MOST_SHARDS
from loadtest.faults.registry import FAULTS, Steps

__all__ = ["FAULTS", "MOST_SHARDS", "Steps", "network", "parts", "servers"]
