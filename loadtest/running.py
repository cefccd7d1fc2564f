"""The scenarios in which jobs run: burst, steady, short delays, drain.

Lateness is taken where it counts, at the start of the handler, against the due time, by the server's clock as the
worker knows it. Every job is followed by its id.
"""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median

from loadtest import floor
from loadtest.figures import Figure, Outcome, Target, middle, percentile
from loadtest.parts import SPAWN
from loadtest.stage import CLOCK_ERROR_MS, Play, Stage, payloads, waiting
from wheelq import Client, JobSpec, Receipt, Settings
from wheelq.job import from_ms

AHEAD_MS = 3_000  # jobs of burst and steady are scheduled at least this long before the first is due
STEADY_RATE, SHORT_RATE = 1_300, 2_000
SHORT_DELAY_S = 0.05
GREAT_FLOOR, GREAT_DRAIN = 160_000, 40_000  # a machine that reads so many bare should drain so many


def burst(stage: Stage) -> Outcome:
    """Thousands of jobs due at one instant, in rounds."""
    p99s, lasts = [], []
    with Play(stage, "burst") as play:
        play.warm_up()
        rounds = []
        for _ in range(stage.sizes.rounds):
            rounds.append(play.schedule(_at(play.now_ms() + AHEAD_MS, stage.sizes.burst, every_ms=0)))
            play.wait()
        runs = play.finish()
        for ids in rounds:
            lateness_ms = runs.lateness_ms(ids)
            p99s.append(percentile(lateness_ms, 0.99))
            lasts.append(percentile(lateness_ms, 1.0))
        figures = [
            Figure("start, p99", median(p99s), "ms", Target(at_most=120)),
            Figure("last start", median(lasts), "ms", Target(at_most=150)),
            Figure("last start of the worst round", max(lasts), "ms"),
        ]
        return Outcome("burst", figures, len(play.promised), play.wrong(runs))


def steady(stage: Stage) -> Outcome:
    """A constant stream of due times, each at its own millisecond, scheduled ahead."""
    with Play(stage, "steady") as play:
        play.warm_up()
        ids = play.schedule(_at(play.now_ms() + AHEAD_MS, STEADY_RATE * stage.sizes.steady_s, 1000 / STEADY_RATE))
        runs = play.finish()
        figures = _lateness(runs.lateness_ms(ids), p50_ms=4, p99_ms=15)
        return Outcome("steady", figures, len(play.promised), play.wrong(runs))


def short(stage: Stage) -> Outcome:
    """Jobs scheduled one by one, by another process, a moment before they are due: the leader has to be rung."""
    with Play(stage, "short") as play, ProcessPoolExecutor(1, mp_context=SPAWN) as processes:
        processes.submit(int).result()  # the process is there now
        play.warm_up()
        count = SHORT_RATE * stage.sizes.short_s
        sent = processes.submit(produce, stage.url, stage.settings, play.topic, count).result()
        ids = play.promise(sent.receipts)
        runs = play.finish()
        figures = [
            *_lateness(runs.lateness_ms(ids), p50_ms=None, p99_ms=25),
            Figure("scheduled", sent.rate, "jobs/s"),
            Figure("producer behind its pace, p99", sent.behind_p99_ms, "ms"),
        ]
        return Outcome("short", figures, len(play.promised), play.wrong(runs))


def drain(stage: Stage) -> Outcome:
    """Jobs that are all overdue when the scheduler and the worker are started, in rounds.

    The rate counts from the start of the first handler to that of the last, so promoting, reading, running and
    acknowledging go on at once in it. The total counts from the start of both processes, with all that Python loads.
    """
    drained, jobs, wrong = [], 0, Counter[str]()
    for number in range(stage.sizes.rounds):
        bare = floor.read_rate(stage.url)
        with Play(stage, f"drain-{number}") as play:
            ids = play.schedule(waiting(stage.sizes.drain, SHORT_DELAY_S))
            time.sleep(2 * SHORT_DELAY_S)
            drained.append(drain_once(play, ids, bare, wrong))
            jobs += len(ids)
    rate, bare = middle([(one.rate, one.bare) for one in drained])
    target = Target(share=0.25, at_least=GREAT_DRAIN if bare >= GREAT_FLOOR else None)
    figures = [
        Figure("first start to last (c)", rate, "jobs/s", target, bare),
        Figure("with the start of both processes", median(one.total_rate for one in drained), "jobs/s"),
        Figure("worker's processor time a job", median(one.worker_us for one in drained), "µs"),
        Figure("scheduler's processor time a job", median(one.scheduler_us for one in drained), "µs"),
        Figure("server's processor time a job", median(one.server_us for one in drained), "µs"),
    ]
    return Outcome("drain", figures, jobs, wrong)


@dataclass(frozen=True, slots=True)
class Drained:
    """One round: rates in jobs/s, processor time in µs a job."""

    rate: float
    bare: float
    total_rate: float
    worker_us: float
    scheduler_us: float
    server_us: float


def drain_once(play: Play, ids: set[str], bare: float, wrong: Counter[str]) -> Drained:
    """Start both and let them work it off; counts in `wrong` what went wrong."""
    began_ms, server_s = play.now_ms(), play.server_cpu_s()
    play.start()
    play.wait()
    cpu_s = (play.worker.cpu_s(), play.scheduler.cpu_s(), play.server_cpu_s() - server_s)
    runs = play.finish()
    wrong.update(play.wrong(runs))
    starts_ms = runs.starts_ms(ids) or [0.0]
    total_s = max(1.0, starts_ms[-1] - began_ms) / 1000
    rate = len(starts_ms) / max(1.0, starts_ms[-1] - starts_ms[0]) * 1000
    return Drained(rate, bare, len(starts_ms) / total_s, *(seconds / len(ids) * 1e6 for seconds in cpu_s))


@dataclass(frozen=True, slots=True)
class Sent:
    """What the producer's process did."""

    receipts: list[Receipt]
    rate: float
    """Jobs a second, by the wall clock."""
    behind_p99_ms: float
    """How long after its moment a call began."""


def produce(url: str, settings: Settings, topic: str, count: int) -> Sent:
    """Schedule `SHORT_RATE` jobs a second one by one, each call at its own moment or at once when that has passed."""
    receipts, behind = [], []
    with Client.connect(url, settings) as client:
        client.topics()  # connected, before the clock starts
        start = time.perf_counter()
        for number, payload in enumerate(payloads(count)):
            moment = start + number / SHORT_RATE
            if (pause := moment - time.perf_counter()) > 0:
                time.sleep(pause)
            behind.append(time.perf_counter() - moment)
            receipts.append(client.schedule(topic, payload, delay=SHORT_DELAY_S))
        elapsed = time.perf_counter() - start
    return Sent(receipts, count / elapsed, percentile(sorted(behind), 0.99) * 1000)


def _at(first_ms: int, count: int, every_ms: float) -> list[JobSpec]:
    return [
        JobSpec(payload, at=from_ms(first_ms + int(number * every_ms)))
        for number, payload in enumerate(payloads(count))
    ]


def _lateness(lateness_ms: Sequence[float], p50_ms: float | None, p99_ms: float) -> list[Figure]:
    return [
        Figure("lateness, p50", percentile(lateness_ms, 0.5), "ms", Target(at_most=p50_ms) if p50_ms else None),
        Figure("lateness, p99", percentile(lateness_ms, 0.99), "ms", Target(at_most=p99_ms)),
        Figure("lateness, most", percentile(lateness_ms, 1.0), "ms"),
        Figure("lateness, least", percentile(lateness_ms, 0.0), "ms", Target(at_least=-CLOCK_ERROR_MS)),
    ]
