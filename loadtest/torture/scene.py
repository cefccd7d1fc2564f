"""The processes that faults hit, the record of what was done to them, and the seeded plan of when.

`Scene` is what faults work on. It keeps the record by which the judge explains repeated runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from loadtest.torture.arena import Arena
from loadtest.torture.checker import EVERYONE, Hurt
from loadtest.torture.fleet import Fleet
from loadtest.torture.producers import Producer

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault that will be."""

    at_s: float
    kind: str
    seed: int


def plan(seed: int, seconds: float, per_minute: float, kinds: Sequence[str]) -> list[Planned]:
    """The same faults at the same times for the same seed; every kind as often as the others, in changing order."""
    random = Random(seed)
    found: list[Planned] = []
    bag: list[str] = []
    gap_s = 60 / per_minute
    at_s = gap_s / 2
    while at_s < seconds:
        bag = bag or random.sample(list(kinds), len(kinds))
        found.append(Planned(at_s, bag.pop(), random.getrandbits(32)))
        at_s += gap_s * random.uniform(0.5, 1.5)
    return found


@dataclass
class Scene:
    """The processes, and what was done to them."""

    arena: Arena
    fleet: Fleet
    producers: Sequence[Producer]
    start: Callable[[str], str]
    """Starts another `scheduler` or `worker`; returns its name."""
    lease_ms: int
    topics: Sequence[str] = ()
    hurts: list[Hurt] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    """Those to whom something is being done already."""
    is_taken: bool = False
    """Something is being done to a server that only one can suffer at a time."""

    def pick(self, random: Random, kind: str) -> str:
        """One of a kind to whom nothing is being done."""
        free = [name for name in self.fleet.names(kind) if name not in self.busy]
        return random.choice(free) if free else self.start(kind)

    def pick_parts(self, random: Random) -> list[str]:
        """A scheduler, a worker, a producer, or (empty) everyone."""
        kind = random.choice(("scheduler", "worker", "producer", "everyone"))
        if kind == "everyone":
            return []
        return [random.choice(self.producers).name if kind == "producer" else self.pick(random, kind)]

    @contextmanager
    def hurting(self, kind: str, *names: str, lasts_s: float = 0.0, may_undo: bool = False) -> Iterator[None]:
        """Keep record of what is done to these (to all, without a name); its effect lasts so much longer."""
        whom = names or (EVERYONE,)
        from_ms = time.time() * 1000
        begun = [Hurt(kind, name, from_ms, FOREVER, may_undo) for name in whom]
        self.hurts += begun
        self.busy |= set(names)
        try:
            yield
        finally:
            self.busy -= set(names)
            to_ms = time.time() * 1000 + lasts_s * 1000
            for hurt in begun:
                self.hurts.remove(hurt)
                self.hurts.append(replace(hurt, to_ms=to_ms))
