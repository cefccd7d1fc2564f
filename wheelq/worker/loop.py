"""`Worker`: reads ready jobs of its topics in one consumer group and runs their handlers.

    lane (reader ──▶ pool or batcher) ──▶ handler ──▶ outcome ──▶ settler
      ▲
    recovery: renews what is held, claims what is abandoned

A job is read only when it could start at once, so that none waits here while another worker is free. Effects are
at-least-once: a worker may die between the effect and the ack.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Self

from wheelq import logs
from wheelq.clock import Clock, ServerClock, SystemClock, until_stopped
from wheelq.errors import ConfigurationError, ServerError
from wheelq.metrics import Histogram
from wheelq.patience import until_usable
from wheelq.protocol.calls.worker import GroupStart
from wheelq.protocol.keys import Keys
from wheelq.settings import Settings, WorkerSettings, resolve_url
from wheelq.transport import Address, AsyncTransport
from wheelq.worker.decorators import Decorators
from wheelq.worker.following import Following
from wheelq.worker.ground import Ground
from wheelq.worker.held import Delivery, Held
from wheelq.worker.hooks import Middleware
from wheelq.worker.janitor import Janitor
from wheelq.worker.notes import Notes
from wheelq.worker.notices import Notices
from wheelq.worker.pool import Pool
from wheelq.worker.presence import Presence
from wheelq.worker.recovery import Recovery
from wheelq.worker.running import Running
from wheelq.worker.settling import Settler
from wheelq.worker.threads import Threads
from wheelq.worker.wiring import Wiring

logger = logging.getLogger("wheelq.worker")

UNKNOWN_TOPIC_MS = 500
"""How often topics are asked for while one of this worker's does not exist yet, and changes are not heard of."""
TOPICS_MS = 5_000
"""How often they are asked for otherwise: their number of shards may change."""


class Worker(Decorators):
    """Runs handlers for the jobs of its topics.

        worker = Worker.connect("redis://localhost:6379", group="billing")

        @worker.handler("orders")
        async def close_order(job: Job) -> None: ...

        asyncio.run(worker.run())

    Workers of the same group share the jobs; each group gets every job.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        group: str = "default",
        keys: Keys | None = None,
        settings: WorkerSettings | None = None,
        clock: Clock | None = None,
        start: GroupStart = "beginning",
    ) -> None:
        super().__init__()
        self.group = group
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._transport = transport
        self._settings = settings = settings or WorkerSettings()
        self._clock = clock = clock or SystemClock()
        self._threads: Threads | None = None
        self._stopping = asyncio.Event()
        self._noticed = asyncio.Event()
        self._grace = settings.grace_ms / 1000
        keys, held, server = keys or Keys(), Held(), ServerClock(clock)
        self._following = Following(transport, keys, group, self._handlers, self._bind, clock, server, start)
        self._settler = Settler(transport, group, self.name, settings, held, clock)
        self._recovery = Recovery(transport, group, self.name, settings, held, self._settler, clock, server)
        self._notes = Notes(transport, group, self.name, clock, server)
        self._running = Running(group, self._handlers, held, self._settler, self._notes, server)
        self._janitor = Janitor(transport, keys, group, clock, server)
        concerns, cancel = self._following.concerns, self._running.cancel
        asks = keys.asks + self.name
        self._notices = Notices(transport, keys.changes, asks, concerns, self._noticed.set, cancel, clock)
        ground = Ground(transport, group, self.name, settings, held, self._settler, self._recovery, clock, server)
        pool: Pool[Delivery] = Pool(settings.concurrency, self._running.handle)
        self._presence = Presence(ground, keys, self._handlers, self._running, pool)
        self._wiring = Wiring(ground, self._handlers, self._running, pool)
        self._lanes = self._wiring.lanes

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        *,
        group: str = "default",
        concurrency: int | None = None,
        start: GroupStart = "beginning",
        settings: Settings | None = None,
    ) -> Self:
        """A worker on the server at `url` (else WHEELQ_URL). Connects when run. Raises: ConfigurationError.

        `start` is where a group starts that is new to a topic: at the "beginning" of what the topic keeps, its
        `retention_ms` and whatever other groups have not finished, or with what is promoted from "now" on. The first
        group of all gets everything that has been waiting for one.
        """
        settings = settings or Settings()
        own = settings.worker if concurrency is None else replace(settings.worker, concurrency=concurrency)
        transport = AsyncTransport(Address(resolve_url(url, settings), settings.connection))
        return cls(transport, group, Keys(settings.prefix), own, start=start)

    @property
    def lateness(self) -> Histogram:
        """Milliseconds from due time to start of the handler, of every delivery."""
        return self._running.lateness

    @property
    def handled(self) -> int:
        """Jobs finished by this worker."""
        return self._running.handled

    @property
    def failed(self) -> int:
        """Runs that raised."""
        return self._running.failed

    @property
    def cancelled(self) -> int:
        """Jobs that were cancelled while they ran."""
        return self._running.cancelled

    @property
    def skipped(self) -> int:
        """Jobs that were too late, and dropped or buried instead."""
        return self._running.skipped

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler."""
        return self._handlers.topics

    def stop(self, grace: float | None = None) -> None:
        """Let `run` end: read no more, let handlers finish within `grace` seconds, hand the rest back.

        Without `grace` it is the settings' `grace_ms`.
        """
        if grace is not None:
            self._grace = grace
        self._stopping.set()

    async def run(self, *, patiently: bool = False) -> None:
        """Work until stopped. Survives restarts of the server.

        At the start a server that is busy, or loads its data, is waited for; `patiently` also one that is away.
        Raises: ConfigurationError without handlers; Unavailable (unless patient) or Refused if the server cannot be
        used at the start.
        """
        if self._handlers.is_empty:
            raise ConfigurationError("this worker has no handlers: decorate functions with @worker.handler(topic)")
        with logs.serving(self.group, self.name):
            async with self._alive():
                await self._start_and_work(patiently=patiently)

    def elsewhere(self, transport: AsyncTransport, keys: Keys, clock: Clock, *around: Middleware) -> Self:
        """A worker with the same handlers, hooks, group and settings on another server; `around` goes outermost."""
        other = type(self)(transport, self.group, keys, self._settings, clock)
        other._handlers.share(self._handlers)
        other._lifespans = self._lifespans
        other._middleware = [*around, *self._middleware]
        return other

    @asynccontextmanager
    async def stepping(self, executor: Executor | None) -> AsyncIterator[Callable[[], Awaitable[int]]]:
        """For tests, in place of `run`: a function that runs and settles what is ready, and tells how much that was.

        Nothing goes on beside it: what needs renewing, claiming or a heartbeat does not come up. `executor` runs plain
        handlers, in place of threads.
        """
        with logs.serving(self.group, self.name):
            async with self._alive():
                threads = self._threads = Threads(self._settings.threads, executor)
                try:
                    yield self._step
                finally:
                    await self._lanes.abandon()
                    threads.close()
                    await self._presence.leave(self._following.lines)
                    await self._close()

    def next_ms(self) -> int | None:
        """For tests, while `stepping`: when a job that keeps its place in an ordered topic runs again."""
        return self._lanes.next_ms()

    async def _step(self) -> int:
        await self._follow()
        started = await self._lanes.once()
        await self._settler.flush()
        return started

    async def _start_and_work(self, *, patiently: bool) -> None:
        threads = self._threads = Threads(self._settings.threads)
        try:
            if await until_usable(self._follow, self._stopping, self._clock, logger, patiently=patiently):
                await self._work()
        finally:
            threads.close()
            await self._close()

    async def _work(self) -> None:
        background = [
            *self._lanes.tasks(),
            asyncio.create_task(self._settler.run(), name="wheelq acks"),
            asyncio.create_task(
                self._recovery.run(self._following.served, self._lanes.turn, self._lanes.start), name="wheelq recovery"
            ),
            asyncio.create_task(self._notes.run(), name="wheelq progress"),
            asyncio.create_task(self._watch(), name="wheelq topics"),
            asyncio.create_task(self._notices.run(), name="wheelq notices"),
            asyncio.create_task(self._janitor.run(lambda: self._following.lines), name="wheelq janitor"),
        ]
        try:
            await until_stopped(self._stopping, background)
            await self._lanes.stop()
            await self._finish()
        finally:  # also when this is cancelled: nothing goes on behind the caller's back
            for task in background:
                task.cancel()
            await asyncio.gather(*background, self._lanes.abandon(), return_exceptions=True)
            await self._presence.leave(self._following.lines)

    def _bind(self) -> None:
        assert self._threads is not None
        self._wiring.bind(self._threads, self._around)

    # --- topics ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Learn what the topics are now, and read their shards."""
        await self._following.find()
        block_ms = self._settings.block_ms if self._following.knows_all else UNKNOWN_TOPIC_MS
        await self._lanes.follow(self._following.served(), block_ms)

    async def _watch(self) -> None:
        """Tell that this worker lives, and look for new shards."""
        while True:
            try:
                await self._presence.beat()
                is_calm = self._following.knows_all or self._notices.is_listening
                pause = (TOPICS_MS if is_calm else UNKNOWN_TOPIC_MS) / 1000
                cancel = self._clock.call_at(self._clock.monotonic() + pause, self._noticed.set)
                await self._noticed.wait()
                self._noticed.clear()
                cancel()
                await self._follow()
            except ServerError as error:
                logger.warning("topics are not watched until the server is back: %s", error)
                await self._clock.sleep(UNKNOWN_TOPIC_MS / 1000)

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self._grace):
                await self._lanes.idle()
        except TimeoutError:
            await self._lanes.abandon()

    async def _close(self) -> None:
        await self._lanes.close()
        await self._transport.close()
