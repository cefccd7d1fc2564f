"""How figures grow with the number of jobs that wait, and with the number of topics.

| 10,000, 1 million, 10 million jobs wait in one topic  | they are due in an hour or later, spread over a day          |
| 1, 100, 3,000 topics                                  | 100,000 jobs wait in them, the measured ones fall due in all |

At each size 1,300 jobs a second fall due on top: their lateness, what a job costs in processor time (floor: one bare
awaited EVALSHA, see `rate`), the rate of `schedule_many` in between, and the most memory that the scheduler has held.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from statistics import median

import redis

from loadtest.bench.bare import connect
from loadtest.bench.figures import Figure, Outcome
from loadtest.bench.parts import SPAWN
from loadtest.bench.rate import Cost, bare_us_at, one_round
from loadtest.bench.running import STEADY_RATE
from loadtest.bench.stage import Play, Stage, payloads, waiting
from wheelq import JobSpec

HUGE = 10_000_000
HOUR_S, DAY_S = 3_600.0, 86_400.0
CHUNK = 50_000
"""Waiting jobs that are made at a time."""
ADDED = 20_000
"""Jobs of one `schedule_many`, between the streams."""


@dataclass(slots=True)
class Size:
    """One size, and the figures of its rounds."""

    waiting: int
    topics: int
    costs: list[Cost] = field(default_factory=list)
    added_per_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0

    @property
    def name(self) -> str:
        """As the table shows it."""
        topics = f"{self.topics:,} topics" if self.topics > 1 else "1 topic"
        return f"{self.waiting:,} in {topics}"

    def figures(self) -> Iterator[Figure]:
        """The figures of this size."""
        costs = self.costs
        yield Figure.of(f"{self.name}: start, p50", [one.p50_ms for one in costs], "ms")
        yield Figure.of(f"{self.name}: start, p99", [one.p99_ms for one in costs], "ms")
        yield Figure.beside(f"{self.name}: processor time", [(one.all_us, one.bare_us) for one in costs], "µs")
        yield Figure.of(f"{self.name}: schedule_many", self.added_per_s, "jobs/s")
        yield Figure(f"{self.name}: scheduler's memory, most", self.peak_mb, "MB")

    def point(self) -> dict[str, float]:
        """What the plot draws."""
        return {
            "waiting": self.waiting,
            "topics": self.topics,
            "p50_ms": median(one.p50_ms for one in self.costs),
            "p99_ms": median(one.p99_ms for one in self.costs),
            "us": median(one.all_us for one in self.costs),
            "added_per_s": median(self.added_per_s),
            "peak_mb": self.peak_mb,
        }


def growth(stage: Stage) -> Outcome:
    """Measure every size in rounds, the smallest first."""
    sizes = stage.sizes
    wanted = [(waiting, 1) for waiting in sizes.growth_waiting]
    wanted += [(sizes.growth_in_topics, topics) for topics in sizes.growth_topics]
    found = [Size(*one) for one in dict.fromkeys(wanted)]
    jobs, wrong = 0, {"lost": 0, "early": 0, "doubled": 0, "unknown": 0, "left behind": 0}
    with connect(stage.url) as client, ProcessPoolExecutor(1, mp_context=SPAWN) as bare:
        for size in found:
            with Stage.on(stage.url, sizes, stage.loop) as own:  # what waited at the size before is gone
                play_jobs, play_wrong = _measure(own, size, client, bare)
            jobs += play_jobs
            wrong = {name: count + play_wrong[name] for name, count in wrong.items()}
    figures = [figure for size in found for figure in size.figures()]
    return Outcome("growth", figures, jobs, wrong, [size.point() for size in found])


def _measure(stage: Stage, size: Size, client: redis.Redis, bare: ProcessPoolExecutor) -> tuple[int, dict[str, int]]:
    """Measure all rounds at one size; returns how many jobs there were, and how many went wrong, by kind."""
    name, seconds = f"growth-{size.waiting}-{size.topics}", stage.sizes.growth_s
    with Play(stage, name, [f"{name}-{n}" for n in range(1, size.topics)]) as play:
        _fill(play, size.waiting)
        play.warm_up()
        for _ in range(stage.sizes.rounds):
            size.added_per_s.append(_add(play))
            bare_us = bare_us_at(client, bare, stage.url, seconds, STEADY_RATE)
            size.costs.append(one_round(play, seconds, STEADY_RATE, bare_us))
        play.wait()
        size.peak_mb = play.scheduler.peak_mb()
        resting = size.waiting + ADDED * stage.sizes.rounds
        return len(play.promised) + resting, play.wrong(play.finish(), resting)


def _fill(play: Play, count: int) -> None:
    """Schedule jobs that wait throughout, evenly over the topics and a day."""
    each, over = divmod(count, len(play.topics))
    for number, topic in enumerate(play.topics):
        jobs = each + (number < over)
        for first in range(0, jobs, CHUNK):
            numbers = range(first, min(first + CHUNK, jobs))
            specs = [
                JobSpec(payload, HOUR_S + DAY_S * n / jobs)
                for n, payload in zip(numbers, payloads(len(numbers)), strict=True)
            ]
            play.client.schedule_many(topic, specs)


def _add(play: Play) -> float:
    """Jobs a second that `schedule_many` adds, to one topic."""
    specs = waiting(ADDED, HOUR_S)
    start = time.perf_counter()
    play.client.schedule_many(play.topic, specs)
    return ADDED / (time.perf_counter() - start)
