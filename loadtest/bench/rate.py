"""The cost of a job at a constant rate: processor time of the server, the scheduler and the worker, and their calls.

Each job has a due time of its own, and is scheduled before the measurement begins. The floor is one EVALSHA that does
nothing, awaited by redis-py on uvloop at the same rate, each at its own moment; its processor time is that of client
and server. The floor of a start is an entry that one process writes and another waits for: see `soonest`. Jobs and
floor are measured in turns, because on a machine that others use both take more time: only their ratio can be compared
between machines.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Self

import redis
import uvloop

from loadtest.bench.bare import Keys, connect, connect_async, cpu_s
from loadtest.bench.figures import Figure, Outcome, Target, percentile
from loadtest.bench.floor import NOTHING, NOTHING_ARGV
from loadtest.bench.parts import SPAWN
from loadtest.bench.soonest import soonest
from loadtest.bench.stage import Play, Stage, due_apart
from wheelq import JobSpec

AHEAD_MS = 2_000
"""Jobs are scheduled at least this long before the first is due."""
SCHEDULED_PER_MS = 15
"""How many jobs can be scheduled in a millisecond, even on a slow machine."""
TOPIC_MS = 2
"""How long the calls for the jobs of one topic take, even on a slow machine."""
QUIET_S = 0.1
"""Measured before the first job, and after the last."""
TARGETS = {10: (None, 1.0, None), 1_300: (1.2, 3.0, 8.0)}
"""By jobs a second: the most processor time, as a multiple of the floor; the most ms of lateness, p50 and p99."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One round at one rate: processor time in µs a job, calls a job, lateness in ms."""

    server_us: float
    scheduler_us: float
    worker_us: float
    calls: float
    """EVALSHA and XREADGROUP, as the server counts them."""
    p50_ms: float
    p99_ms: float
    bare_us: float
    """Of one bare call, client and server."""

    @property
    def all_us(self) -> float:
        """Of a job, in the three processes."""
        return self.server_us + self.scheduler_us + self.worker_us

    @property
    def of_floor(self) -> float:
        """As a multiple of one bare call."""
        return self.all_us / self.bare_us

    def as_dict(self) -> dict[str, float]:
        """Everything by name, with the sum of the three processes."""
        return asdict(self) | {"all_us": self.all_us}

    @classmethod
    def middle(cls, rounds: list[Self]) -> Self:
        """The round with the median multiple of its floor."""
        return sorted(rounds, key=lambda one: one.of_floor)[(len(rounds) - 1) // 2]


def rate(stage: Stage) -> Outcome:
    """Jobs at each of the rates, in rounds."""
    costs: dict[int, list[Cost]] = {}
    soonest_ms: dict[int, list[float]] = {}
    with (
        Play(stage, "rate") as play,
        connect(stage.url) as client,
        ProcessPoolExecutor(1, mp_context=SPAWN) as bare,
        soonest(stage.url) as bare_starts,
    ):
        play.warm_up()
        for per_s in stage.sizes.rates:
            for _ in range(stage.sizes.rounds):
                soonest_ms.setdefault(per_s, []).append(bare_starts.p50_ms(stage.sizes.rate_s, per_s))
                bare_us = bare_us_at(client, bare, stage.url, stage.sizes.rate_s, per_s)
                costs.setdefault(per_s, []).append(one_round(play, stage.sizes.rate_s, per_s, bare_us))
        runs = play.finish()
        figures = [figure for per_s, rounds in costs.items() for figure in _figures(per_s, rounds, soonest_ms[per_s])]
        points = [{"per_s": per_s, **Cost.middle(rounds).as_dict()} for per_s, rounds in costs.items()]
        return Outcome("rate", figures, len(play.promised), play.wrong(runs), points)


def one_round(
    play: Play,
    seconds: int,
    per_s: int,
    bare_us: float,
    change: Callable[[list[JobSpec]], list[JobSpec]] = lambda specs: specs,
) -> Cost:
    """Run jobs, as `change` returns them, at this rate for some seconds; returns the cost of a job."""
    count = per_s * seconds
    first_ms = play.now_ms() + AHEAD_MS + count // SCHEDULED_PER_MS + TOPIC_MS * len(play.topics)
    started = play.worker.started()
    play.schedule(change(due_apart(first_ms, count, 1000 / per_s)))
    _sleep_until(play, first_ms - QUIET_S * 1000)
    before = _used(play)
    _sleep_until(play, first_ms + (seconds + QUIET_S) * 1000)
    play.wait()
    server_s, scheduler_s, worker_s, calls = (
        (now - then) / count for now, then in zip(_used(play), before, strict=True)
    )
    lateness_ms = sorted(play.worker.lateness_since(started))
    p50_ms, p99_ms = percentile(lateness_ms, 0.5), percentile(lateness_ms, 0.99)
    return Cost(server_s * 1e6, scheduler_s * 1e6, worker_s * 1e6, calls, p50_ms, p99_ms, bare_us)


def _sleep_until(play: Play, server_ms: float) -> None:
    time.sleep(max(0.0, server_ms - play.now_ms()) / 1000)


def _used(play: Play) -> tuple[float, float, float, int]:
    """Seconds of processor time of server, scheduler and worker so far, and their calls."""
    return play.server_cpu_s(), play.scheduler.cpu_s(), play.worker.cpu_s(), play.server_calls()


def _figures(per_s: int, rounds: list[Cost], soonest_ms: list[float]) -> list[Figure]:
    at = f"{per_s:,}/s"
    times, p50_ms, p99_ms = TARGETS.get(per_s, (None, None, None))
    return [
        Figure.beside(
            f"{at}: processor time a job", [(one.all_us, one.bare_us) for one in rounds], "µs", Target(times=times)
        ),
        Figure.of(f"{at}: server", [one.server_us for one in rounds], "µs"),
        Figure.of(f"{at}: scheduler", [one.scheduler_us for one in rounds], "µs"),
        Figure.of(f"{at}: worker", [one.worker_us for one in rounds], "µs"),
        Figure.of(f"{at}: calls a job", [one.calls for one in rounds], "×"),
        Figure.beside(
            f"{at}: start, p50",
            [(one.p50_ms, floor_ms) for one, floor_ms in zip(rounds, soonest_ms, strict=True)],
            "ms",
            Target(at_most=p50_ms),
        ),
        Figure.of(f"{at}: start, p99", [one.p99_ms for one in rounds], "ms", Target(at_most=p99_ms)),
    ]


# --- the floor ---------------------------------------------------------------------------------------------------


def bare_us_at(client: redis.Redis, process: Executor, url: str, seconds: int, per_s: int) -> float:
    """Processor time of one bare call, client and server, in µs."""
    count = per_s * seconds
    before = cpu_s(client)
    client_s = process.submit(_pace, url, count, per_s).result()
    return (client_s + cpu_s(client) - before) / count * 1e6


def _pace(url: str, count: int, per_s: int) -> float:
    """Seconds of processor time for `count` calls, each at its own moment, or at once if that has passed."""
    return uvloop.run(_calls(url, count, per_s))


async def _calls(url: str, count: int, per_s: int) -> float:
    async with connect_async(url) as client:
        script, keys = await client.script_load(NOTHING), Keys.random()[:3]
        began, start = time.process_time(), time.monotonic()
        for number in range(count):
            pause = start + number / per_s - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            await client.evalsha(script, 3, *keys, *NOTHING_ARGV)
        return time.process_time() - began
