"""One server beside a cluster of three masters on the same machine, with the same jobs: the cost of spreading a topic.

    python -m loadtest.bench --on cluster

A topic of six shards, or a hundred topics, on the server and then on the cluster, with one scheduler and one worker
process. "Floor" is the one server here. On one machine the three masters share the processors with each other and with
everything else, so this shows the cost of a cluster, not its gain, which comes from more machines.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from loadtest.bench import running
from loadtest.bench.figures import Figure, Outcome
from loadtest.bench.rate import one_round
from loadtest.bench.running import STEADY_RATE
from loadtest.bench.stage import Play, Sizes, Stage, waiting
from loadtest.servers.cluster import Cluster
from loadtest.servers.measured import binary_of, server_at
from wheelq.settings import TopicSettings

SHARDS, TOPICS = 6, 100
HOUR_S = 3_600.0


def bulk(stage: Stage) -> Outcome:
    """`schedule_many`, blocking client."""
    rates, jobs, lost = [], 0, 0
    with Play(stage, "bulk") as play:
        play.warm_up()
        for number in range(stage.sizes.rounds):
            specs = waiting(stage.sizes.bulk, HOUR_S)
            start = time.perf_counter()
            play.client.schedule_many(f"bulk-{number}", specs)
            rates.append(len(specs) / (time.perf_counter() - start))
            jobs += len(specs)
            lost += len(specs) - stage.waiting(f"bulk-{number}")
    return Outcome("bulk", [Figure.of("schedule_many", rates, "jobs/s")], jobs, {"lost": lost})


def drain(stage: Stage) -> Outcome:
    """Jobs that are all overdue when the scheduler and the worker are started."""
    rates, jobs, wrong = [], 0, Counter[str]()
    for number in range(stage.sizes.rounds):
        with Play(stage, f"drain-{number}") as play:
            ids = play.schedule(waiting(stage.sizes.drain, running.SHORT_DELAY_S))
            rates.append(running.drain_once(play, ids, bare=1.0, wrong=wrong).rate)
            jobs += len(ids)
    return Outcome("drain", [Figure.of("first start to last", rates, "jobs/s")], jobs, wrong)


def topics(stage: Stage) -> Outcome:
    """1,300 jobs a second in many topics of one shard each: lateness, and what a job costs in all processes."""
    own = replace(stage, settings=replace(stage.settings, topic=TopicSettings(shards=1)))
    with Play(own, "topics", [f"topics-{n}" for n in range(1, TOPICS)]) as play:
        play.warm_up()
        costs = [one_round(play, stage.sizes.growth_s, STEADY_RATE, bare_us=1.0) for _ in range(stage.sizes.rounds)]
        wrong = play.wrong(play.finish())
    figures = [
        Figure.of(f"{TOPICS} topics: processor time a job", [one.all_us for one in costs], "µs"),
        Figure.of(f"{TOPICS} topics: start, p50", [one.p50_ms for one in costs], "ms"),
        Figure.of(f"{TOPICS} topics: start, p99", [one.p99_ms for one in costs], "ms"),
    ]
    return Outcome("topics", figures, len(play.promised), wrong)


SCENARIOS: dict[str, Callable[[Stage], Outcome]] = {
    "bulk": bulk,
    "burst": running.burst,
    "steady": running.steady,
    "short": running.short,
    "drain": drain,
    "topics": topics,
}


def compare(server: str, aof: str, sizes: Sizes, loop: str, tell: Callable[[str], None]) -> list[Outcome]:
    """Run every scenario on one server and on a cluster; the figures of the server are the floor."""
    found = []
    with server_at(None, server, aof) as one, _cluster(binary_of(server), aof) as three:
        for name, scenario in SCENARIOS.items():
            tell(name)
            with Stage.on(one, sizes, loop, SHARDS) as stage:
                floor = scenario(stage)
            with Stage.on(three, sizes, loop, SHARDS) as stage:
                found.append(_beside(scenario(stage), floor))
    return found


@contextmanager
def _cluster(binary: Path, aof: str) -> Iterator[str]:
    with Cluster(binary, appendonly=aof != "off") as cluster:
        if aof == "always":
            for node in cluster.nodes:
                node.ask("CONFIG", "SET", "appendfsync", "always")
        yield cluster.urls


def _beside(outcome: Outcome, floor: Outcome) -> Outcome:
    pairs = zip(outcome.figures, floor.figures, strict=True)
    figures = [replace(figure, target=None, floor=bare.value, floors=bare.rounds) for figure, bare in pairs]
    wrong = Counter(outcome.wrong)
    wrong.update(floor.wrong)
    return Outcome(outcome.scenario, figures, outcome.jobs + floor.jobs, wrong)
