"""The plan of a seed: its topics, and all steps with their times, decided before anything runs.

A step is an operation of a producer or a fault. Because all steps are decided in advance, the shrinker can remove some
without changing the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadtest.simulation.operations import Operation

LOAD_S = 60.0
"""Seconds of load and faults."""
RATE = 10.0
"""Operations a second, of all producers together."""
NODES, WORKERS, PRODUCERS = 3, 4, 6
WITH_OUTBOX = (4, 5)
"""The producers that have an outbox."""


TRAITS = {"base": 0.1, "limits": 0.4, "reshards": 0.5, "pauses": 0.5, "settings": 0.5, "recurring": 0.4, "groups": 0.2}
"""How likely a seed has each trait."""
APART = {"bulk": 0.25, "web": 0.3, "blocking": 0.25}
"""The same for traits with their own topics or processes, which do not change the rest of a seed."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic, and the kind of its handler."""

    name: str
    settings: Mapping[str, Any]
    handling: str
    """single, thread, batch, ordered or keyed."""
    weight: float
    groups: tuple[str, ...] = ("default",)
    retry_delays: tuple[float, ...] = (0.3, 0.7, 1.5)
    """The pauses between four attempts."""
    trait: str = ""
    """Only seeds with this trait have the topic."""


OWN_TOPICS = (
    TopicPlan("range", {"shards": 2}, "single", 1.0, trait="bulk"),
    TopicPlan("leased", {"shards": 2}, "leased", 1.0, groups=("http.lessees",), trait="web"),
    TopicPlan("called", {"shards": 1}, "called", 1.0, groups=("callbacks",), trait="web"),
    TopicPlan("blunt", {"shards": 2}, "single", 1.0, trait="blocking"),
)
"""The topics of the traits in `APART`."""


@dataclass(frozen=True, slots=True)
class Step:
    """An operation or fault, with its time."""

    number: int
    at: float
    kind: str
    who: str
    """The part that carries it out; "" for a fault."""
    args: Mapping[str, Any]

    def __str__(self) -> str:
        told = " ".join(f"{name}={value}" for name, value in self.args.items() if value not in (None, (), "keep", 0))
        return f"#{self.number} {self.kind} {told}"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A job that a step schedules."""

    topic: str
    id: str
    at: float
    delay: float
    partition_key: str | None


@dataclass(slots=True)
class Draft:
    """The draws so far, which later steps depend on."""

    random: Random
    topics: tuple[TopicPlan, ...]
    has_sentinel: bool
    traits: frozenset[str]
    """The traits of this seed. No seed has all of them, so that one does not hide another."""
    jobs: list[Drawn] = field(default_factory=list)
    now: float = 0.0

    def topic(self) -> TopicPlan:
        """Draw a topic."""
        return self.random.choices(self.topics, [topic.weight for topic in self.topics])[0]

    def a_job(self) -> Drawn | None:
        """Draw a job that was scheduled some time ago, and may still wait."""
        known = [job for job in self.jobs[-60:] if self.now - 25 < job.at < self.now - 0.3]
        return self.random.choice(known) if known else None


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one seed."""

    seed: int
    topics: tuple[TopicPlan, ...]
    has_sentinel: bool
    steps: tuple[Step, ...]
    traits: frozenset[str] = frozenset()
    """Its traits in `APART`."""


def draw(seed: int, *, faults: bool = True, operations: bool = True) -> Plan:
    """Returns the plan of a seed. Without `operations` it only schedules jobs."""
    from loadtest.simulation.faults import FAULTS
    from loadtest.simulation.operations import OPERATIONS, know_all

    know_all()
    random = Random(f"{seed}/plan")
    traits = _drawn(random, TRAITS)
    topics = _topics(random, traits)
    draft = Draft(random, topics, random.random() < 0.25, traits)
    steps: list[Step] = []
    draft.now = 0.5
    mixed = [one for one in OPERATIONS.values() if not one.trait]
    weights = [one.weight if operations or one.name == "schedule" else 0.0 for one in mixed]
    while True:
        draft.now += random.expovariate(RATE)
        if draft.now > LOAD_S:
            break
        operation = random.choices(mixed, weights)[0]
        args = operation.draw(draft)
        if args is not None:
            who = f"producer-{random.randrange(PRODUCERS)}"
            steps.append(Step(len(steps), draft.now, operation.name, who, args))
    breaking = Random(f"{seed}/faults")
    apart = _drawn(Random(f"{seed}/apart"), APART) if operations else frozenset()
    has = {"", *apart, *(["sentinel"] if draft.has_sentinel else [])}
    possible = [fault for fault in FAULTS.values() if fault.needs in has]
    for _ in range(breaking.choices((0, 1, 2, 3), (10, 55, 25, 10))[0] if faults else 0):
        fault = breaking.choices(possible, [one.weight for one in possible])[0]
        at = breaking.uniform(4.0, LOAD_S - 8.0)
        args = {"seconds": round(fault.lasts(breaking), 2), "salt": breaking.randrange(1 << 30)}
        steps.append(Step(len(steps), at, fault.name, "", args))
    for trait in sorted(apart):
        steps += _apart(seed, [one for one in OPERATIONS.values() if one.trait == trait], draft, len(steps))
    topics += tuple(topic for topic in OWN_TOPICS if topic.trait in apart)
    return Plan(seed, topics, draft.has_sentinel, tuple(sorted(steps, key=lambda step: step.at)), apart)


def _drawn(random: Random, chances: Mapping[str, float]) -> frozenset[str]:
    return frozenset(name for name, chance in chances.items() if random.random() < chance)


def _apart(seed: int, operations: list[Operation], draft: Draft, number: int) -> Iterator[Step]:
    """Yields the steps of the operations of one trait, numbered from `number`."""
    trait, weights = operations[0].trait, [one.weight for one in operations]
    random = Random(f"{seed}/{trait}")
    own = Draft(random, tuple(topic for topic in OWN_TOPICS if topic.trait == trait), False, draft.traits)
    own.now = 2.0
    while (at := own.now + random.expovariate(sum(weights) / LOAD_S)) < LOAD_S - 5.0:
        own.now = at
        operation = random.choices(operations, weights)[0]
        args = operation.draw(own)
        if args is not None:
            who = operation.who or f"producer-{random.randrange(PRODUCERS)}"
            yield Step(number, at, operation.name, who, args)
            number += 1


def _topics(random: Random, traits: frozenset[str]) -> tuple[TopicPlan, ...]:
    """Returns five topics of different kinds."""
    limits = random.choice(
        ({"max_rate": 8.0}, {"max_pending": random.choice((6, 20))}, {"max_ready": 5}, {"max_pending": 4})
    )
    limits = limits if "limits" in traits else {}
    kept = {"keep_done_ms": random.choice((0, 3_000, 20_000)), "retention_ms": random.choice((0, 0, 4_000))}
    return (
        TopicPlan("plain", {"shards": random.choice((1, 2, 3))}, "single", 4.0),
        TopicPlan("order", {"shards": random.choice((1, 2))}, random.choice(("ordered", "keyed")), 2.0),
        TopicPlan("batch", {"shards": random.choice((1, 2))}, "batch", 1.5),
        TopicPlan("limit", {"shards": random.choice((1, 2)), **limits, **kept}, "single", 2.0),
        TopicPlan("quiet", {"shards": 1}, "thread", 0.25, groups=("default", "audit")),
    )
