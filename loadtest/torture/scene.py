"""The processes that faults hit, the record of the faults, and their seeded plan.

Faults act on a `Scene`. It keeps the record by which the judge explains repeated runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from loadtest.judge import EVERYONE, Disruption
from loadtest.torture.arena import Arena
from loadtest.torture.fleet import Fleet
from loadtest.torture.producers import Producer

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Planned:
    """One planned fault."""

    at_s: float
    kind: str
    seed: int


def plan(seed: int, seconds: float, per_minute: float, kinds: Sequence[str]) -> list[Planned]:
    """Returns the plan of a seed, always the same: every kind of fault equally often, in varying order."""
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
    """The processes, and the faults that have hit them."""

    arena: Arena
    fleet: Fleet
    producers: Sequence[Producer]
    start: Callable[[str], str]
    """Starts another `scheduler` or `worker`; returns its name."""
    lease_ms: int
    topics: Sequence[str] = ()
    disruptions: list[Disruption] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    """The processes that a fault affects now."""
    is_taken: bool = False
    """Whether a fault lasts that takes a server away; there is only one at a time."""

    def pick(self, random: Random, kind: str) -> str:
        """Returns a process of a kind that no fault affects now."""
        free = [name for name in self.fleet.names(kind) if name not in self.busy]
        return random.choice(free) if free else self.start(kind)

    def pick_parts(self, random: Random) -> list[str]:
        """Returns a scheduler, a worker or a producer, or nothing, which means all of them."""
        kind = random.choice(("scheduler", "worker", "producer", "everyone"))
        if kind == "everyone":
            return []
        return [random.choice(self.producers).name if kind == "producer" else self.pick(random, kind)]

    @contextmanager
    def disrupting(self, kind: str, *names: str, lasts_s: float = 0.0, may_undo: bool = False) -> Iterator[None]:
        """Record a fault of these processes (without names: of all) during the block, and for `lasts_s` after it."""
        whom = names or (EVERYONE,)
        from_ms = time.time() * 1000
        begun = [Disruption(kind, name, from_ms, FOREVER, may_undo) for name in whom]
        self.disruptions += begun
        self.busy |= set(names)
        try:
            yield
        finally:
            self.busy -= set(names)
            to_ms = time.time() * 1000 + lasts_s * 1000
            for disruption in begun:
                self.disruptions.remove(disruption)
                self.disruptions.append(replace(disruption, to_ms=to_ms))
