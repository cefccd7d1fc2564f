"""The plan of a seed: its topics, and all steps with their times, decided before anything runs.

A step is an operation of a producer or a fault. Because all steps are decided in advance, the shrinker can remove some
without changing the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

LOAD_S = 60.0
"""Seconds of load and faults."""
RATE = 10.0
"""Operations a second, of all producers together."""
NODES, WORKERS, PRODUCERS = 3, 4, 6
WITH_OUTBOX = (4, 5)
"""The producers that have an outbox."""
DEBOUNCED = "index"
"""The topic of the trait `debounce`."""
WEB, BLUNT = "web-0", "blunt-0"
"""The HTTP service, and the producer with the blocking client."""

TRAITS = {"base": 0.1, "limits": 0.4, "reshards": 0.5, "pauses": 0.5, "settings": 0.5, "recurring": 0.4, "groups": 0.2}
"""How likely a seed has each trait."""
APART = {
    "bulk": 0.25,
    "web": 0.3,
    "blocking": 0.25,
    "dead": 0.3,
    "looks": 0.3,
    "lives": 0.3,
    "terms": 0.3,
    "removal": 0.2,
}
APART |= {"visits": 0.5, "rivals": 0.4, "power": 0.15, "deaths": 0.2, "callers": 0.75, "crons": 0.3, "chains": 0.4}
APART |= {"leaving": 0.25, "keeping": 0.25, "bundles": 0.4, "shares": 0.4, "debounce": 0.3, "hedging": 0.25}
APART |= {"outages": 0.3, "bursts": 0.25, "lent": 0.75, "fickle": 0.25, "aside": 0.25}
APART |= {"alters": 0.3, "dates": 0.25, "rolling": 0.3}
"""The same for traits with their own topics or processes, which do not change the rest of a seed."""

PAUSES = ("pause", "hedged-pause")
"""Steps that pause a topic, and resume it later."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic, and the kind of its handler."""

    name: str
    settings: Mapping[str, Any]
    handling: str
    """single, result, thread, batch, ordered, keyed, chained, chained in order or told."""
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
    TopicPlan("grave", {"shards": 2}, "single", 1.0, trait="dead"),
    TopicPlan("looked", {"shards": 2, "keep_done_ms": 5_000}, "single", 1.0, trait="looks"),
    TopicPlan("lives", {"shards": 2, "keep_done_ms": 20_000, "retention_ms": 8_000}, "result", 1.0, trait="lives"),
    TopicPlan("brief", {"shards": 1, "max_rate": 3.0}, "single", 1.0, trait="terms"),
    TopicPlan("ranked", {"shards": 1}, "single", 1.0, trait="terms"),
    TopicPlan(
        "strict", {"shards": 1, "max_rate": 4.0, "misfire": "bury", "grace_ms": 700}, "single", 1.0, trait="terms"
    ),
    TopicPlan("fleeting", {"shards": 2}, "single", 1.0, trait="removal"),
    TopicPlan("joined", {"shards": 2}, "single", 1.0, trait="removal"),
    TopicPlan("asked", {"shards": 2, "keep_done_ms": 20_000}, "leased", 1.0, groups=("http.askers",), trait="callers"),
    TopicPlan("timed", {"shards": 1}, "single", 1.0, trait="crons"),
    TopicPlan("long", {"shards": 4}, "single", 1.0, trait="leaving"),
    TopicPlan("kept", {"shards": 2}, "single", 1.0, trait="keeping"),
    TopicPlan("chain", {"shards": 2, "on_dead": "deaths"}, "chained", 2.0, trait="chains"),
    TopicPlan("link", {"shards": 3, "on_dead": "deaths"}, "chained", 2.0, trait="chains"),
    TopicPlan("deaths", {"shards": 2}, "told", 0.01, trait="chains"),
    TopicPlan("queue", {"shards": 1}, "chained in order", 1.0, trait="chains"),
    TopicPlan("sparse", {"shards": 1, "max_pending": 4, "keep_done_ms": 3_000}, "chained", 1.0, trait="chains"),
    TopicPlan("brood", {"shards": 2}, "single", 1.0, trait="bundles"),
    TopicPlan("flock", {"shards": 3}, "single", 1.0, groups=("default", "audit"), trait="bundles"),
    TopicPlan(
        "hasty", {"shards": 1, "max_rate": 6.0, "misfire": "skip", "grace_ms": 700}, "single", 1.0, trait="bundles"
    ),
    TopicPlan("album", {"shards": 2, "keep_done_ms": 20_000}, "single", 0.01, trait="bundles"),
    TopicPlan(
        "shared", {"shards": 2, "key_concurrency": 2}, "single", 1.0, groups=("default", "audit"), trait="shares"
    ),
    TopicPlan("paced", {"shards": 1, "key_concurrency": 1, "key_rate": 4.0}, "single", 1.0, trait="shares"),
    TopicPlan(DEBOUNCED, {"shards": 2}, "single", 1.0, trait="debounce"),
    TopicPlan("rivals", {"shards": 2, "keep_done_ms": 2_000}, "single", 1.0, trait="rivals"),
    TopicPlan("hedged", {"shards": 6}, "single", 1.0, trait="hedging"),
    TopicPlan("stored", {"shards": 2}, "single", 1.0, trait="outages"),
    TopicPlan("short", {"shards": 2}, "result", 1.0, trait="bursts"),
    TopicPlan("lent", {"shards": 2}, "leased", 1.0, groups=("http.lenders",), trait="lent"),
    TopicPlan("fickle", {"shards": 2}, "result", 0.0, trait="fickle"),
    TopicPlan("prompt", {"shards": 2, "keep_done_ms": 20_000}, "result", 1.0, trait="fickle"),
    TopicPlan("passing", {"shards": 1}, "single", 1.0, trait="aside"),
    TopicPlan("staying", {"shards": 2}, "single", 1.0, trait="aside"),
    TopicPlan("buried", {"shards": 3, "dead_max": 1_000}, "single", 1.0, trait="alters"),
    TopicPlan("failing", {"shards": 2}, "single", 1.0, retry_delays=(4.0, 4.0, 4.0), trait="alters"),
    TopicPlan("moved", {"shards": 1, "max_rate": 4.0}, "single", 1.0, trait="alters"),
    TopicPlan(
        "paired",
        {"shards": 2},
        "single",
        1.0,
        groups=("default", "audit"),
        retry_delays=(2.5, 2.5, 2.5),
        trait="alters",
    ),
    TopicPlan("dates", {"shards": 3}, "single", 1.0, trait="dates"),
    TopicPlan("lined", {"shards": 3}, "ordered", 1.0, retry_delays=(3.0, 3.0, 3.0), trait="rolling"),
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
        args = " ".join(f"{name}={value}" for name, value in self.args.items() if value not in (None, (), "keep", 0))
        return f"#{self.number} {self.kind} {args}"


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
    names: set[str] = field(default_factory=set)

    def name(self, kind: str) -> str:
        """Returns a name with the time of the draw; another draw of the same millisecond gets another one."""
        name = f"{kind}-{int(self.now * 1000)}"
        while name in self.names:
            name += "x"
        self.names.add(name)
        return name

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
    knobs: Mapping[str, int] = field(default_factory=dict)
    """Its small limits: see `knobs`."""
