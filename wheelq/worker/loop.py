"""`Worker`: reads ready jobs of its topics in one consumer group and runs their handlers.

    lane (reader ──▶ pool or batcher) ──▶ handler ──▶ outcome ──▶ settler
      ▲
    recovery: renews held deliveries, claims abandoned ones

A job is read only if it could start at once, so that none waits here while another worker is free. Effects happen at
least once: a worker may die between the effect and the ack.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self, get_args

from wheelq import logs, reminders
from wheelq.base.clock import Clock, SystemClock, until_stopped
from wheelq.base.metrics import Histogram
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.checks import check_id
from wheelq.protocol.calls.worker import GroupStart
from wheelq.protocol.keys import Keys
from wheelq.reminders import Loop
from wheelq.settings import ClientSettings, Settings, TopicSettings, WorkerSettings, settings_in_force
from wheelq.transport import AsyncTransport, server_address
from wheelq.transport.startup import StartupPolicy, check_server, until_usable
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.progress import ProgressWriter
from wheelq.worker.delivery.running import Running
from wheelq.worker.handlers.decorators import WorkerDecorators
from wheelq.worker.handlers.handler import Handler, Run
from wheelq.worker.handlers.threads import Threads
from wheelq.worker.lanes.lane import Lanes
from wheelq.worker.upkeep.heartbeat import Heartbeat
from wheelq.worker.upkeep.hints import HintListener
from wheelq.worker.upkeep.janitor import Janitor
from wheelq.worker.upkeep.overdue import OverdueWarning
from wheelq.worker.upkeep.shards import ServedShards

logger = logging.getLogger("wheelq.worker")

UNKNOWN_TOPIC_MS = 500
"""Milliseconds between reads of the topics while a topic of this worker is missing and changes are not heard."""
TOPICS_MS = 5_000
"""Milliseconds between reads otherwise, because the number of shards may change."""
HEARD_TOPICS_MS = 10_000
"""Milliseconds between reads while changes are heard, in case the notice of one was lost."""
CARRY_S = 1.0
"""Seconds that a worker which stops still carries followers; afterwards the nodes that serve their shards do."""


class Worker(WorkerDecorators):
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
        report: Callable[[], Mapping[str, Any]] = dict,
        client: ClientSettings | None = None,
        new_topics: TopicSettings | None = None,
    ) -> None:
        """`report()` is called every few seconds, and returns more fields for the worker's report.

        Followers of jobs are checked and confirmed by `client`; topics that they create have the settings `new_topics`.

        Raises: InvalidInput.
        """
        super().__init__()
        if start not in get_args(GroupStart):
            raise InvalidInput("start", f"must be 'beginning' or 'now', not {start!r}")
        self.group = check_id(group, "group")
        """The worker's group."""
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        """Its name in Redis: host, process and a random part."""
        self._transport = transport
        self._settings = settings = settings or WorkerSettings()
        self._clock = clock = clock or SystemClock()
        self._threads: Threads | None = None
        self._stopping = asyncio.Event()
        self._was_run = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._noticed = asyncio.Event()
        self._grace = settings.grace_ms / 1000
        keys = keys or Keys()
        ours = client or ClientSettings(), new_topics or TopicSettings()
        parts = self._parts = WorkerParts(transport, keys, group, self.name, settings, clock, *ours)
        self._shards = ServedShards(parts, self._handlers, self._bind, start)
        self._progress = ProgressWriter(parts)
        self._running = Running(parts, self._handlers, self._progress)
        self._overdue = OverdueWarning(parts)
        self._janitor = Janitor(parts, self._overdue.suspect)
        self._lanes = Lanes(parts, self._handlers, self._running, self._shards.regroup)
        self._heartbeat = Heartbeat(
            parts, self._handlers, self._running, self._lanes.pool, lambda: self._hints.is_listening, report
        )
        self._hints = HintListener(
            parts, self._shards.concerns, self._noticed.set, self._heartbeat.look_soon, self._running.cancel
        )

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
        """A worker on the server at `url` (else WHEELQ_URL). Connects when run.

        `start` is where a new group of a topic starts: at the "beginning" of the entries that the topic keeps (for its
        `retention_ms`, or because other groups have not finished them), or with jobs promoted from "now" on. The first
        group of a topic always gets everything.

        Raises: ConfigurationError, InvalidInput.
        """
        given, settings = settings, settings or settings_in_force()
        own = settings.worker if concurrency is None else replace(settings.worker, concurrency=concurrency)
        transport = AsyncTransport(server_address(url, given))
        keys = Keys(settings.prefix)
        return cls(transport, group, keys, own, start=start, client=settings.client, new_topics=settings.topic)

    @property
    def lateness(self) -> Histogram:
        """Milliseconds from due time to start of the handler, of every delivery."""
        return self._running.durations.lateness

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
        """Jobs that were cancelled while this worker had them, running or not yet, and buried."""
        return self._parts.settler.cancelled

    @property
    def skipped(self) -> int:
        """Jobs that were too late, and dropped or buried instead."""
        return self._running.skipped

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler."""
        return self._handlers.topics

    def stop(self, grace: float | None = None) -> None:
        """Make `run` end: read no more, wait up to `grace` seconds for handlers to finish, hand the rest back.

        The default for `grace` is the setting `grace_ms`.
        """
        if grace is not None:
            self._grace = grace
        if self._loop is None:
            self._stopping.set()
        else:  # a plain handler may call it in its thread
            with suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self, *, patiently: bool = False) -> None:
        """Work until stopped. Survives restarts of the server.

        While it starts, it waits out refusals of the server, and with `patiently` also a server that is away.
        Raises: ConfigurationError without handlers; RuntimeError, if it ran before. While it starts:
        AuthenticationFailed, TlsFailed, WrongDatabase and ServerTooOld, which waiting does not cure; Unavailable,
        OutcomeUnknown and NotPrimary, unless `patiently`.
        """
        await self._run(StartupPolicy.OUTAGES if patiently else StartupPolicy.REFUSALS)

    async def run_within(self) -> None:
        """Work until stopped, within a running process: never raises because of the server."""
        await self._run(StartupPolicy.EVERYTHING)

    async def _run(self, policy: StartupPolicy) -> None:
        if self._was_run:
            raise RuntimeError("this worker has been run before: make another one")
        if self._handlers.is_empty:
            raise ConfigurationError("this worker has no handlers: decorate functions with @worker.handler(topic)")
        self._was_run, self._loop = True, asyncio.get_running_loop()
        with logs.serving(self.group, self.name), reminders.kept(self._clock):
            async with self._hooks.alive():
                await self._start_and_work(policy)

    async def _start_and_work(self, policy: StartupPolicy) -> None:
        threads = self._threads = Threads(self._settings.threads, on_kept=self._lanes.lack)
        try:
            if await until_usable(self._begin, self._stopping, self._clock, logger, policy):
                await self._work()
        finally:
            threads.close()
            await self._close()

    async def _work(self) -> None:
        parts, lanes = self._parts, self._lanes
        parts.ending.follow(asyncio.current_task())
        background = [
            asyncio.create_task(lanes.run(), name="wheelq lanes"),
            asyncio.create_task(parts.settler.run(), name="wheelq acks"),
            asyncio.create_task(
                parts.recovery.run(self._shards.served, lanes.turn, lanes.start), name="wheelq recovery"
            ),
            asyncio.create_task(self._progress.run(), name="wheelq progress"),
            asyncio.create_task(self._heartbeat.run(), name="wheelq heartbeat"),
            asyncio.create_task(self._watch(), name="wheelq topics"),
            asyncio.create_task(self._hints.run(), name="wheelq notices"),
            asyncio.create_task(self._janitor.run(lambda: self._shards.shards), name="wheelq janitor"),
            asyncio.create_task(self._overdue.run(lambda: self._shards.shards), name="wheelq overdue"),
        ]
        try:
            await until_stopped(self._stopping, background)
            await self._lanes.stop()
            await self._finish()
        finally:  # also if this is cancelled: no task outlives `run`
            parts.ending.begin()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, self._lanes.abandon(), return_exceptions=True)
            await self._heartbeat.leave(self._shards.shards)
            if (carrier := self._parts.carrier_in_use) is not None:
                await carrier.idle(CARRY_S)

    def _bind(self) -> None:
        self._lanes.bind(self._bound)

    def _bound(self, handler: Handler) -> Run:
        """Returns the call of a handler. A plain one for batches gets threads besides those of the others."""
        assert self._threads is not None
        if handler.batch is not None and handler.has_thread:
            self._threads.add(handler.batch.concurrency)
        return self._hooks.around(handler, self._threads)

    async def _begin(self) -> None:
        await check_server(self._transport)
        await self._follow()

    # --- topics ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read the present topics and serve their shards; also find out what watches the runs."""
        self._running.look()
        await self._shards.find()
        block_ms = self._settings.block_ms if self._shards.knows_all else UNKNOWN_TOPIC_MS
        await self._lanes.follow(self._shards.served(), block_ms)

    async def _watch(self) -> None:
        """Look for new shards, and for changes of known ones."""

        async def step() -> None:
            await self._clock.wait(self._noticed, self._topics_ms / 1000)
            self._noticed.clear()
            await self._follow()

        pause = UNKNOWN_TOPIC_MS / 1000
        what = "topics are not watched"
        await Loop(self._clock, logger, what, pause, pause).run(step)

    @property
    def _topics_ms(self) -> int:
        if self._hints.is_listening:
            return HEARD_TOPICS_MS
        return TOPICS_MS if self._shards.knows_all else UNKNOWN_TOPIC_MS

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self._grace):
                await self._lanes.idle()
        except TimeoutError:
            await self._lanes.abandon()

    async def _close(self) -> None:
        await self._lanes.close()
        if (carrier := self._parts.carrier_in_use) is not None:
            await carrier.close()
        await self._transport.close()
