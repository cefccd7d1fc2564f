"""Limits per key: what they cost a topic in which no key is at its limit, and what a key with a backlog costs others.

    cost     1,300 jobs a second of 10,000 keys, with `key_concurrency=1` and without limits, in turns
    crowd    100,000 jobs of one key fall due at one instant, with `key_concurrency=1`; when 95 % are held back,
             5,000 jobs a second of 10,000 other keys beside them

The pauses of the key with the backlog are those between the starts of two of its jobs, whose handlers do nothing, while
the others run. A job of another key that falls due while the backlog is being set aside waits for that.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from loadtest.bench.bare import connect
from loadtest.bench.figures import Figure, Outcome, Target, percentile
from loadtest.bench.parts import SPAWN
from loadtest.bench.rate import AHEAD_MS, SCHEDULED_PER_MS, Cost, bare_us_at, one_round
from loadtest.bench.running import STEADY_RATE
from loadtest.bench.stage import PATIENCE_S, Play, Stage, due_apart
from loadtest.judge import Promise
from wheelq import JobSpec
from wheelq.model.topic import TopicInfo
from wheelq.settings import TopicSettings

KEYS = 10_000
CROWD_RATE = 5_000
ONE_AT_A_TIME = TopicSettings(key_concurrency=1)
HELD_BACK = 0.95
"""A backlog is set aside when this share of it is held back; some of its jobs run meanwhile."""
LOOK_S = 0.02


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
                    found.append(one_round(play, sizes.rate_s, STEADY_RATE, bare_us, of_keys))
                    judged(play)
    crowds = [_crowd(stage, number) for number in range(sizes.rounds)]
    without, limited = costs.values()
    pairs = [(one.all_us, other.all_us) for one, other in zip(limited, without, strict=True)]
    figures = [
        Figure.beside("no key at its limit: processor time a job", pairs, "µs", Target(times=1.15)),
        Figure.of("no key at its limit: start, p99", [one.p99_ms for one in limited], "ms"),
        Figure.of("a backlog of one key, due at once: set aside in", [one.aside_ms for one in crowds], "ms"),
        Figure.of("beside it: start, p99", [one.others_p99_ms for one in crowds], "ms", Target(at_most=25.0)),
        Figure.of("the key with the backlog: pause, p50", [percentile(one.pauses_ms, 0.5) for one in crowds], "ms"),
        Figure.of(
            "the key with the backlog: pause, p99",
            [percentile(one.pauses_ms, 0.99) for one in crowds],
            "ms",
            Target(at_most=8.0),
        ),
    ]
    return Outcome("keys", figures, jobs, wrong)


def of_keys(specs: list[JobSpec]) -> list[JobSpec]:
    """The same jobs, with partition keys in turns."""
    return [replace(spec, partition_key=f"k{n % KEYS}") for n, spec in enumerate(specs)]


class _Crowd(NamedTuple):
    aside_ms: float
    """From the due time of the backlog until the share `HELD_BACK` of it is held back."""
    others_p99_ms: float
    """The lateness of the other keys."""
    pauses_ms: Sequence[float]
    """Between the starts of two jobs of the key with the backlog, sorted."""


def _crowd(stage: Stage, number: int) -> _Crowd:
    sizes = stage.sizes

    def until(is_so: Callable[[TopicInfo], bool]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not is_so(info := play.client.topic(play.topic)):
            if time.monotonic() > give_up:
                raise TimeoutError(f"{info.waiting:,} jobs wait, {info.held_back:,} of them are held back")
            time.sleep(LOOK_S)

    with Play(replace(stage, settings=replace(stage.settings, topic=ONE_AT_A_TIME)), f"crowd-{number}") as play:
        play.warm_up()
        due_ms = play.now_ms() + AHEAD_MS + sizes.drain // SCHEDULED_PER_MS
        backlog = [replace(spec, partition_key="busy") for spec in due_apart(due_ms, sizes.drain, 0)]
        receipts = play.client.schedule_many(play.topic, backlog)
        until(lambda info: info.held_back >= sizes.drain * HELD_BACK)
        aside_ms = play.now_ms() - due_ms
        count = CROWD_RATE * sizes.rate_s
        first_ms = play.now_ms() + AHEAD_MS + count // SCHEDULED_PER_MS
        others = play.schedule(of_keys(due_apart(first_ms, count, 1000 / CROWD_RATE)))
        until(lambda info: info.waiting == info.held_back)
        play.client.cancel_due(play.topic, since=receipts[0].due)
        play.promised |= {one.id: Promise(one.due_ms, must_run=False) for one in receipts}
        runs = play.stop()
        last_ms = first_ms + count * 1000 / CROWD_RATE
        starts = [at for at in runs.starts_ms({one.id for one in receipts}) if first_ms <= at <= last_ms]
        pauses = sorted(second - first for first, second in pairwise(starts))
        return _Crowd(aside_ms, percentile(runs.lateness_ms(others), 0.99), pauses)
