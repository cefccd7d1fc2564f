"""bench: measures a server and this machine together, in half a minute.

Producer, scheduler and worker share one process here, so the figures are a lower bound: in production each has its own
processor. `python -m loadtest.bench` in the repository measures the parts against the server's limits.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer

from wheelq.aio import AsyncClient
from wheelq.base.clock import SystemClock
from wheelq.base.metrics import Histogram
from wheelq.cli.options import Config, Json, Url, settings_of
from wheelq.cli.output import say_json, stdout, table
from wheelq.cli.traces import remove_keys
from wheelq.embedded import EmbeddedServer
from wheelq.model.job import Job, JobSpec
from wheelq.protocol.keys import Keys
from wheelq.scheduler import Scheduler
from wheelq.settings import Settings, resolve_url
from wheelq.transport import AsyncTransport, server_address
from wheelq.transport.address import login_of
from wheelq.worker import Worker

TOPIC = "bench"
STEADY_S = 5.0
PATIENCE_S = 60.0
AHEAD_S = 1.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of a measurement."""

    scheduled_per_s: int
    """Jobs scheduled in bulk by `schedule_many`."""
    steady_per_s: int
    steady_p50_ms: int
    steady_p99_ms: int
    """How late handlers start if jobs fall due one after the other."""
    burst_jobs: int
    burst_p99_ms: int
    """How late handlers start if all jobs fall due at the same instant."""
    drained_per_s: int
    """How many overdue jobs run per second."""


def bench(
    jobs: Annotated[int, typer.Option("--jobs", min=1_000, help="How many jobs to schedule, and to drain.")] = 20_000,
    rate: Annotated[int, typer.Option("--rate", min=1, help="Jobs a second that fall due in the steady part.")] = 500,
    embedded: Annotated[bool, typer.Option("--embedded", help="Start a server for the measurement.")] = False,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Measure a server: jobs scheduled per second, how late they start, jobs drained per second.

    The keys have a separate prefix and are removed at the end.
    """
    settings = settings_of(config)
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer()).url if embedded else resolve_url(url, settings)
        own = Settings(url=server, prefix=f"wheelq-bench-{secrets.token_hex(4)}", connection=settings.connection)
        if not embedded:
            login = login_of(settings)
            own = replace(own, username=login.username, password=login.password)
        figures = asyncio.run(_measure(own, jobs, rate))
    if json:
        say_json(asdict(figures))
        return
    steady = f"p50 {figures.steady_p50_ms}, p99 {figures.steady_p99_ms} ms late"
    rows = [
        ("scheduled in bulk", f"{figures.scheduled_per_s:,} jobs/s", ""),
        ("steady", f"{figures.steady_per_s:,} jobs/s", steady),
        ("burst", f"{figures.burst_jobs:,} jobs at once", f"p99 {figures.burst_p99_ms} ms late"),
        ("drained", f"{figures.drained_per_s:,} jobs/s", ""),
    ]
    stdout().print(table("part", "load", "lateness", rows=rows))


class _Counting:
    """A worker whose handler only counts."""

    def __init__(self, settings: Settings) -> None:
        self.worker = Worker.connect(settings=settings, group="bench")
        self.lateness = Histogram()
        self._wanted = 0
        self._reached = asyncio.Event()
        self.worker.handler(TOPIC)(self._count)

    async def _count(self, job: Job) -> None:
        self.lateness.add(job.lateness * 1000)
        if self.lateness.count >= self._wanted:
            self._reached.set()

    async def until(self, count: int) -> Histogram:
        """Wait until `count` handlers have started; returns how late they were, and resets the counts."""
        self._wanted = count
        if self.lateness.count < count:
            self._reached.clear()
            async with asyncio.timeout(PATIENCE_S):
                await self._reached.wait()
        counted, self.lateness = self.lateness, Histogram()
        return counted


async def _measure(settings: Settings, jobs: int, rate: int) -> Figures:
    clock = SystemClock()
    burst = min(jobs, 2_000)
    async with _house(settings) as (client, counting):
        steady = int(rate * STEADY_S)
        specs = [JobSpec(n, delay=AHEAD_S + n / rate) for n in range(steady)]
        await client.schedule_many(TOPIC, specs)
        even = await counting.until(steady)
        await client.schedule_many(TOPIC, [JobSpec(n, delay=AHEAD_S) for n in range(burst)])
        at_once = await counting.until(burst)
        started = clock.monotonic()
        await client.schedule_many(TOPIC, (JobSpec(n, delay=3_600) for n in range(jobs)))
        scheduled = jobs / (clock.monotonic() - started)
        started = clock.monotonic()
        await client.schedule_many(TOPIC, (JobSpec(n, delay=0) for n in range(jobs)))
        await counting.until(jobs)
        drained = jobs / (clock.monotonic() - started)
    return Figures(
        scheduled_per_s=round(scheduled),
        steady_per_s=rate,
        steady_p50_ms=even.percentile(0.5),
        steady_p99_ms=even.percentile(0.99),
        burst_jobs=burst,
        burst_p99_ms=at_once.percentile(0.99),
        drained_per_s=round(drained),
    )


@asynccontextmanager
async def _house(settings: Settings) -> AsyncIterator[tuple[AsyncClient, _Counting]]:
    """Run a scheduler and a worker, and yield a client; removes all keys at the end."""
    async with AsyncExitStack() as stack:
        transport = AsyncTransport(server_address(None, settings))
        stack.push_async_callback(transport.close)
        stack.push_async_callback(remove_keys, transport, Keys(settings.prefix), [TOPIC])
        counting, scheduler = _Counting(settings), Scheduler.connect(settings=settings)
        client = await stack.enter_async_context(AsyncClient.connect(settings=settings))
        await client.schedule(TOPIC, delay=0)  # makes the topic known
        parts = [asyncio.create_task(part.run()) for part in (scheduler, counting.worker)]

        async def stop() -> None:
            scheduler.stop()
            counting.worker.stop()
            await asyncio.gather(*parts)

        stack.push_async_callback(stop)
        await counting.until(1)
        yield client, counting
