"""Draws the plan of a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random

from loadtest.simulation import combined, knobs
from loadtest.simulation.faults import FAULTS
from loadtest.simulation.operations import OPERATIONS, Operation
from loadtest.simulation.plan import (
    APART,
    LOAD_S,
    OWN_TOPICS,
    PAUSES,
    PRODUCERS,
    RATE,
    TRAITS,
    Draft,
    Plan,
    Step,
    TopicPlan,
)

BESIDE = ("power", "deaths", *combined.TRAITS)
"""Traits of `APART` that have one more fault."""
LONG = (*PAUSES, "recurring", "cron", "group", "due-range", "late-group", "rerun", "bundle", "group-of-members")
"""Steps that put back what they have changed, which a producer that is killed or cut off does not."""
LASTING_EVERY = 12
"""One seed of so many has faults that stay, and no others."""


def draw(seed: int, *, faults: bool = True, operations: bool = True) -> Plan:
    """Returns the plan of a seed. Without `operations` it only schedules jobs."""
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
    if faults and seed % LASTING_EVERY == LASTING_EVERY - 1:
        args = {"seconds": LOAD_S + 40.0, "salt": breaking.randrange(1 << 30)}
        steps.append(Step(len(steps), breaking.uniform(5.0, 10.0), "lasting", "", args))
        faults = False
    possible = [fault for fault in FAULTS.values() if fault.needs in has.difference(BESIDE)]
    for _ in range(breaking.choices((0, 1, 2, 3), (10, 55, 25, 10))[0] if faults else 0):
        fault = breaking.choices(possible, [one.weight for one in possible])[0]
        at = breaking.uniform(4.0, LOAD_S - 8.0)
        args = {"seconds": round(fault.lasts(breaking), 2), "salt": breaking.randrange(1 << 30)}
        steps.append(Step(len(steps), at, fault.name, "", args))
    for trait in BESIDE:
        if faults and trait in apart:
            steps.append(_beside(Random(f"{seed}/{trait}"), trait, len(steps)))
    for trait in sorted(apart):
        if own := [one for one in OPERATIONS.values() if one.trait == trait]:
            steps += _apart(seed, own, draft, len(steps))
    topics += tuple(topic for topic in OWN_TOPICS if topic.trait in apart)
    if "deaths" in apart or any(step.kind == "lasting" for step in steps):
        steps = [replace(one, who="producer-1") if one.kind in LONG and one.who else one for one in steps]
    in_time = tuple(sorted(steps, key=lambda step: step.at))
    return Plan(seed, topics, draft.has_sentinel, in_time, apart, knobs.drawn(seed, apart) if operations else {})


def _beside(random: Random, trait: str, number: int) -> Step:
    """Returns a fault of this trait, which comes beside the others of a seed."""
    fault = random.choice([fault for fault in FAULTS.values() if fault.needs == trait])
    args = {"seconds": round(fault.lasts(random), 2), "salt": random.randrange(1 << 30)}
    return Step(number, random.uniform(4.0, LOAD_S - 8.0), fault.name, "", args)


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
