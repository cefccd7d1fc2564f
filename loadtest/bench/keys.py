"""Limits per key: what they cost a topic in which no key is at its limit, and what a key with a backlog costs others.

    cost     1,300 jobs a second of 10,000 keys, with `key_concurrency=1` and without limits, in turns
    crowd    5,000 jobs a second of 10,000 keys beside one key that has 100,000 jobs waiting, with `key_concurrency=1`

The pauses of the key with the backlog are those between the starts of two of its jobs, whose handlers do nothing.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise

from loadtest.bench.bare import connect
from loadtest.bench.figures import Figure, Outcome, Target, percentile
from loadtest.bench.parts import SPAWN
from loadtest.bench.rate import AHEAD_MS, SCHEDULED_PER_MS, Cost, bare_us_at, one_round
from loadtest.bench.running import STEADY_RATE
from loadtest.bench.stage import Play, Stage, due_apart
from loadtest.judge import Promise
from wheelq import JobSpec
from wheelq.settings import TopicSettings

KEYS = 10_000
CROWD_RATE = 5_000
ONE_AT_A_TIME = TopicSettings(key_concurrency=1)


def keys(stage: Stage) -> Outcome:
    """The cost, then the crowd, each in rounds."""
    sizes = stage.sizes
    costs: dict[TopicSettings, list[Cost]] = {TopicSettings(): [], ONE_AT_A_TIME: []}
    jobs, wrong = 0, {"lost": 0, "early": 0, "doubled": 0, "unknown": 0, "left behind": 0}

    def judged(play: Play) -> None:
        nonlocal jobs, wrong
        its = play.wrong(play.finish())
        jobs += len(play.promised)
        wrong = {name: number + its[name] for name, number in wrong.items()}

    with connect(stage.url) as client, ProcessPoolExecutor(1, mp_context=SPAWN) as bare:
        for number in range(sizes.rounds):
            for settings, found in costs.items():
                own = replace(stage, settings=replace(stage.settings, topic=settings))
                with Play(own, f"keys-{number}-{settings.key_concurrency}") as play:
                    play.warm_up()
                    bare_us = bare_us_at(client, bare, stage.url, sizes.rate_s, STEADY_RATE)
                    found.append(one_round(play, client, sizes.rate_s, STEADY_RATE, bare_us, of_keys))
                    judged(play)
    crowded = [_crowd(stage, number) for number in range(sizes.rounds)]
    without, limited = costs.values()
    pairs = [(one.all_us, other.all_us) for one, other in zip(limited, without, strict=True)]
    figures = [
        Figure.beside("no key at its limit: processor time a job", pairs, "µs", Target(times=1.15)),
        Figure.of("no key at its limit: start, p99", [one.p99_ms for one in limited], "ms"),
        Figure.of("beside a backlog of one key: start, p99", [one[0] for one in crowded], "ms", Target(at_most=25.0)),
        Figure.of("the key with the backlog: pause, p50", [one[1] for one in crowded], "ms"),
        Figure.of("the key with the backlog: pause, p99", [one[2] for one in crowded], "ms", Target(at_most=8.0)),
    ]
    return Outcome("keys", figures, jobs, wrong)


def of_keys(specs: list[JobSpec]) -> list[JobSpec]:
    """The same jobs, with partition keys in turns."""
    return [replace(spec, partition_key=f"k{n % KEYS}") for n, spec in enumerate(specs)]


def _crowd(stage: Stage, number: int) -> tuple[float, float, float]:
    """The lateness of other keys, p99, and the pauses of the key with a backlog, p50 and p99, in ms."""
    sizes = stage.sizes
    with Play(replace(stage, settings=replace(stage.settings, topic=ONE_AT_A_TIME)), f"crowd-{number}") as play:
        play.warm_up()
        first_ms = play.now_ms() + AHEAD_MS + (sizes.drain + CROWD_RATE * sizes.rate_s) // SCHEDULED_PER_MS
        backlog = [replace(spec, partition_key="busy") for spec in due_apart(first_ms, sizes.drain, 0)]
        receipts = play.client.schedule_many(play.topic, backlog)
        others = play.schedule(of_keys(due_apart(first_ms + 1_000, CROWD_RATE * sizes.rate_s, 1000 / CROWD_RATE)))
        play.wait()
        play.client.cancel_due(play.topic, since=receipts[0].due)
        play.promised |= {one.id: Promise(one.due_ms, must_run=False) for one in receipts}
        runs = play.stop()
        starts = runs.starts_ms({one.id for one in receipts})
        pauses = sorted(second - first for first, second in pairwise(starts))
        return percentile(runs.lateness_ms(others), 0.99), percentile(pauses, 0.5), percentile(pauses, 0.99)
