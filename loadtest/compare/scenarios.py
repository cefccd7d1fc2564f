"""The scenarios of the comparison. Each takes a queue that was just started on an empty server.

Judged is only what a handler can see: when it started, compared with the due time that the producer asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from loadtest.bench.figures import percentile
from loadtest.compare.play import Play, now_ms

HOUR_MS = 3_600_000
PRODUCED_PER_MS = 2
"""Jobs that every queue schedules in a millisecond, so that the last is scheduled before the first is due."""
AHEAD_MS = 2_000
EARLY_MS = 1.0
"""A start that is more than this before the due time is early."""
WARM_UP_JOBS = 200
PER_S = 1_300
HANDLER_S = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of all scenarios."""

    rounds: int = 3
    bulk: int = 100_000
    paced_s: int = 10
    drain: int = 50_000
    burst: int = 3_500
    kill: int = 200
    patience_s: float = 120.0
    """How long the last job may take."""


QUICK = Sizes(rounds=1, bulk=5_000, paced_s=2, drain=5_000, burst=500, kill=50, patience_s=90.0)


@dataclass(slots=True)
class Shown:
    """The result of one round: figures by name (`inf` if it did not end in time), and the jobs that went wrong."""

    figures: dict[str, float]
    wrong: dict[str, int] = field(default_factory=dict)


def bulk(play: Play, sizes: Sizes) -> Shown:
    """Schedules many jobs for the next hour."""
    seconds, _ = play.produce(0, sizes.bulk, HOUR_MS, 0)
    return Shown({"bulk, jobs/s": sizes.bulk / seconds})


def paced(play: Play, sizes: Sizes) -> Shown:
    """1,300 jobs a second, each at its own moment. The processor time begins when all of them are scheduled."""
    count = PER_S * sizes.paced_s
    late_ms, wrong, processor_s = _late(play, sizes, count, 1000 / PER_S)
    figures = {
        "paced, p50 ms": percentile(late_ms, 0.5),
        "paced, p99 ms": percentile(late_ms, 0.99),
        "paced, processor time, µs a job": processor_s / count * 1e6,
    }
    return Shown(figures, wrong)


def burst(play: Play, sizes: Sizes) -> Shown:
    """Thousands of jobs at one instant."""
    late_ms, wrong, _ = _late(play, sizes, sizes.burst, 0)
    return Shown({"burst, p99 ms": percentile(late_ms, 0.99), "burst, last ms": percentile(late_ms, 1.0)}, wrong)


def drain(play: Play, sizes: Sizes) -> Shown:
    """Jobs that are overdue when the worker is started: the rate from the first start to the last."""
    _, due_ms = play.produce(0, sizes.drain, AHEAD_MS + sizes.drain // PRODUCED_PER_MS, 0)
    time.sleep(max(0.0, due_ms - now_ms()) / 1000)
    play.work()
    finished = play.wait(sizes.drain, sizes.patience_s)
    starts = sorted(times[0] for times in play.starts.values())
    rate = len(starts) / max(1.0, starts[-1] - starts[0]) * 1000 if finished else 0.0
    return Shown({"drain, jobs/s": rate}, _wrong(play, dict.fromkeys(range(sizes.drain), due_ms)))


def kill(play: Play, sizes: Sizes) -> Shown:
    """The worker is killed while it runs jobs of a second, and another is started: the seconds until all are done."""
    play.produce(0, sizes.kill, AHEAD_MS, 0)
    play.work(HANDLER_S)
    play.wait(1, sizes.patience_s)
    time.sleep(HANDLER_S / 2)
    killed_ms = play.kill()
    play.work(HANDLER_S)
    finished = play.wait_for_ends(sizes.kill, sizes.patience_s)
    seconds = (max(play.ends.values()) - killed_ms) / 1000 if finished else inf
    return Shown({"kill, s until all are done": seconds}, {"lost": sizes.kill - len(play.ends)})


SCENARIOS: Mapping[str, Callable[[Play, Sizes], Shown]] = {
    "bulk": bulk,
    "paced": paced,
    "drain": drain,
    "burst": burst,
    "kill": kill,
}


def _late(play: Play, sizes: Sizes, count: int, every_ms: float) -> tuple[list[float], dict[str, int], float]:
    """Schedule `count` jobs, and wait until they have run.

    Returns their lateness in ms, sorted (`inf` for jobs that did not start), what went wrong, and the processor time in
    seconds from when they were scheduled.
    """
    play.work()
    play.produce(count, WARM_UP_JOBS, 0, 0)
    if not play.wait(WARM_UP_JOBS, sizes.patience_s):
        raise TimeoutError("the first jobs do not run")
    ahead_ms = AHEAD_MS + count // PRODUCED_PER_MS
    seconds, first_ms = play.produce(0, count, ahead_ms, every_ms)
    if seconds * 1000 > ahead_ms:
        raise TimeoutError("the jobs were not scheduled in time")
    due_ms = {n: first_ms + int(n * every_ms) for n in range(count)}
    before_s = play.processor_s()
    play.wait(WARM_UP_JOBS + count, count * every_ms / 1000 + sizes.patience_s)
    processor_s = play.processor_s() - before_s
    late_ms = sorted(play.starts[n][0] - due_ms[n] if n in play.starts else inf for n in due_ms)
    return late_ms, _wrong(play, due_ms), processor_s


def _wrong(play: Play, due_ms: Mapping[int, int]) -> dict[str, int]:
    """How many of these jobs did not run, started early, or ran more than once."""
    starts = {n: play.starts[n] for n in due_ms if n in play.starts}
    return {
        "lost": len(due_ms) - len(starts),
        "early": sum(times[0] < due_ms[n] - EARLY_MS for n, times in starts.items()),
        "doubled": sum(len(times) > 1 for times in starts.values()),
    }
