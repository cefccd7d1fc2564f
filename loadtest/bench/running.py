"""The scenarios in which jobs run: burst, steady, short delays, drain, read.

Lateness is from the due time to the start of the handler, by the server's clock as the worker estimates it. Every job
is followed by its id.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain

from loadtest.bench import floor
from loadtest.bench.figures import Figure, Outcome, Target, distribution, middle, percentile
from loadtest.bench.parts import SPAWN
from loadtest.bench.stage import CLOCK_ERROR_MS, Play, Stage, due_apart, payloads, waiting
from wheelq import Client, Receipt, Settings

AHEAD_MS = 3_000  # jobs of burst and steady are scheduled at least this long before the first is due
STEADY_RATE, SHORT_RATE = 1_300, 2_000
SHORT_DELAY_S = 0.05
GREAT_FLOOR, GREAT_DRAIN = 160_000, 40_000  # a machine with this floor should drain this many jobs a second


def burst(stage: Stage) -> Outcome:
    """Thousands of jobs due at one instant, in rounds."""
    with Play(stage, "burst") as play:
        play.warm_up()
        rounds = []
        for _ in range(stage.sizes.rounds):
            rounds.append(play.schedule(due_apart(play.now_ms() + AHEAD_MS, stage.sizes.burst, every_ms=0)))
            play.wait()
        runs = play.finish()
        found = [runs.lateness_ms(ids) for ids in rounds]
        figures = [
            Figure.of("start, p99", [percentile(one, 0.99) for one in found], "ms", Target(at_most=120)),
            Figure.of("last start", [percentile(one, 1.0) for one in found], "ms", Target(at_most=150)),
        ]
        return Outcome("burst", figures, len(play.promised), play.wrong(runs), _pooled(found))


def steady(stage: Stage) -> Outcome:
    """A constant stream of due times, each at its own millisecond, scheduled ahead; in rounds."""
    count, every_ms = STEADY_RATE * stage.sizes.steady_s, 1000 / STEADY_RATE
    with Play(stage, "steady") as play:
        play.warm_up()
        rounds = []
        for _ in range(stage.sizes.rounds):
            rounds.append(play.schedule(due_apart(play.now_ms() + AHEAD_MS, count, every_ms)))
            play.wait()
        runs = play.finish()
        found = [runs.lateness_ms(ids) for ids in rounds]
        figures = lateness(found, p50_ms=4, p99_ms=15)
        return Outcome("steady", figures, len(play.promised), play.wrong(runs), _pooled(found))


def short(stage: Stage) -> Outcome:
    """Jobs scheduled one by one, by another process, a moment before they are due: the leader needs a hint for each."""
    with Play(stage, "short") as play, ProcessPoolExecutor(1, mp_context=SPAWN) as processes:
        processes.submit(int).result()  # the process is there now
        play.warm_up()
        count = SHORT_RATE * stage.sizes.short_s
        rounds, sent = [], []
        for _ in range(stage.sizes.rounds):
            sent.append(processes.submit(produce, stage.url, stage.settings, play.topic, count).result())
            rounds.append(play.promise(sent[-1].receipts))
            play.wait()
        runs = play.finish()
        found = [runs.lateness_ms(ids) for ids in rounds]
        figures = [
            *lateness(found, p50_ms=None, p99_ms=25),
            Figure.of("scheduled", [one.rate for one in sent], "jobs/s"),
            Figure.of("producer behind its pace, p99", [one.behind_p99_ms for one in sent], "ms"),
        ]
        return Outcome("short", figures, len(play.promised), play.wrong(runs), _pooled(found))


def drain(stage: Stage) -> Outcome:
    """Jobs that are all overdue when the scheduler and the worker are started, in rounds.

    The rate counts from the start of the first handler to that of the last, so it includes promoting, reading, running
    and acknowledging at the same time. The total counts from the start of both processes, with all that Python loads.
    """
    return _drained(stage, "drain", 0.32, lambda play: time.sleep(2 * SHORT_DELAY_S))


def read(stage: Stage) -> Outcome:
    """As `drain`, but every job was promoted before the two start: measures the worker alone."""
    return _drained(stage, "read", 0.45, Play.promote)


def _drained(stage: Stage, name: str, share: float, prepare: Callable[[Play], None]) -> Outcome:
    drained, jobs, wrong = [], 0, Counter[str]()
    for number in range(stage.sizes.rounds):
        bare = floor.read_rate(stage.url)
        with Play(stage, f"{name}-{number}") as play:
            ids = play.schedule(waiting(stage.sizes.drain, SHORT_DELAY_S))
            prepare(play)
            drained.append(drain_once(play, ids, bare, wrong))
            jobs += len(ids)
    pairs = [(one.rate, one.bare) for one in drained]
    target = Target(share=share, at_least=GREAT_DRAIN if middle(pairs)[1] >= GREAT_FLOOR else None)
    figures = [
        Figure.beside("first start to last (c)", pairs, "jobs/s", target),
        Figure.of("with the start of both processes", [one.total_rate for one in drained], "jobs/s"),
        Figure.of("worker's processor time a job", [one.worker_us for one in drained], "µs"),
        Figure.of("scheduler's processor time a job", [one.scheduler_us for one in drained], "µs"),
        Figure.of("server's processor time a job", [one.server_us for one in drained], "µs"),
    ]
    return Outcome(name, figures, jobs, wrong)


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
    """Start both and wait until all jobs have run; adds the jobs that went wrong to `wrong`."""
    began_ms, server_s = play.now_ms(), play.server_cpu_s()
    play.start()
    play.wait()
    cpu_s = (sum(worker.cpu_s() for worker in play.workers), play.scheduler.cpu_s(), play.server_cpu_s() - server_s)
    runs = play.finish()
    wrong.update(play.wrong(runs))
    starts_ms = runs.starts_ms(ids) or [0.0]
    total_s = max(1.0, starts_ms[-1] - began_ms) / 1000
    rate = len(starts_ms) / max(1.0, starts_ms[-1] - starts_ms[0]) * 1000
    return Drained(rate, bare, len(starts_ms) / total_s, *(seconds / len(ids) * 1e6 for seconds in cpu_s))


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of the producer's process."""

    receipts: list[Receipt]
    rate: float
    """Jobs a second, by the wall clock."""
    behind_p99_ms: float
    """How long after its moment a call began."""


def produce(url: str, settings: Settings, topic: str, count: int) -> Sent:
    """Schedule `SHORT_RATE` jobs a second one by one, each call at its own moment, or at once if that has passed."""
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


def lateness(rounds: Sequence[Sequence[float]], p50_ms: float | None, p99_ms: float | None) -> list[Figure]:
    """Returns figures of these rounds, each the sorted lateness of its jobs; `p50_ms` and `p99_ms` are the targets."""

    def at(share: float) -> list[float]:
        return [percentile(one, share) for one in rounds]

    return [
        Figure.of("lateness, p50", at(0.5), "ms", Target(at_most=p50_ms)),
        Figure.of("lateness, p99", at(0.99), "ms", Target(at_most=p99_ms)),
        Figure.of("lateness, most", at(1.0), "ms"),
        Figure.of("lateness, least", at(0.0), "ms", Target(at_least=-CLOCK_ERROR_MS)),
    ]


def _pooled(rounds: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    return distribution(sorted(chain.from_iterable(rounds)))
