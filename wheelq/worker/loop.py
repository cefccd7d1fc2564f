"""`Worker`: reads ready jobs of its topics in one consumer group and runs their handlers.

    reader ──▶ pool ──▶ handler ──▶ outcome ──▶ settler
                                       ▲
    recovery ── renews what is held ───┘ claims what is abandoned

A job is read only when it could start at once, so that none waits here while another worker is free. Effects are
at-least-once: a worker may die between the effect and the ack.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Self, TypeVar

from wheelq.clock import Clock, ServerClock, SystemClock, until_stopped
from wheelq.errors import ConfigurationError, ServerError
from wheelq.job import Job
from wheelq.metrics import Histogram
from wheelq.protocol import codec
from wheelq.protocol.calls import registry
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.keys import Keys
from wheelq.retry import Retry
from wheelq.settings import Settings, WorkerSettings, resolve_url
from wheelq.transport import Address, AsyncTransport
from wheelq.worker.handlers import Function, Handlers, Run
from wheelq.worker.outcome import Buried, Reason, of_failure
from wheelq.worker.pool import Pool
from wheelq.worker.reader import Reading
from wheelq.worker.recovery import Recovery
from wheelq.worker.settling import Delivery, Held, Line, Settler

logger = logging.getLogger("wheelq.worker")

F = TypeVar("F", bound=Function)

UNKNOWN_TOPIC_MS = 500
"""How often topics are asked for while one of this worker's does not exist yet."""
TOPICS_MS = 5_000
"""How often they are asked for otherwise: their number of shards may change."""
HAND_BACK_IDLE_MS = 86_400_000
"""Idle time shown for a delivery that is handed back, so that any worker's next look claims it."""


class Worker:
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
    ) -> None:
        self.group = group
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.lateness = Histogram()
        """Milliseconds from due time to start of the handler, of every delivery."""
        self.handled = 0
        """Jobs finished by this worker."""
        self.failed = 0
        """Runs that raised."""
        self._transport = transport
        self._keys = keys or Keys()
        self._settings = settings or WorkerSettings()
        self._clock = clock or SystemClock()
        self._server = ServerClock(self._clock)
        self._handlers = Handlers()
        self._runs: dict[str, Run] = {}
        self._lines: list[Line] = []
        self._held = Held()
        self._settler = Settler(transport, group, self.name, self._settings, self._held, self._clock)
        self._recovery = Recovery(
            transport, group, self.name, self._settings, self._held, self._settler, self._clock, self._server
        )
        self._pool: Pool[Delivery] = Pool(self._settings.concurrency, self._handle)
        self._stopping = asyncio.Event()
        self._reading = Reading(
            transport, group, self.name, self._settings, self._pool, self._start, self._clock, self._server
        )

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        *,
        group: str = "default",
        concurrency: int | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """A worker on the server at `url` (else WHEELQ_URL). Connects when run. Raises: ConfigurationError."""
        settings = settings or Settings()
        own = settings.worker if concurrency is None else replace(settings.worker, concurrency=concurrency)
        transport = AsyncTransport(Address(resolve_url(url, settings), settings.connection))
        return cls(transport, group, Keys(settings.prefix), own)

    def handler(self, topic: str, *, retry: Retry | None = None, timeout: float | None = None) -> Callable[[F], F]:
        """Decorate the function that runs the jobs of `topic`: `async def`, or a plain one, which runs in a thread.

        When it returns the job is done; when it raises, or takes more than `timeout` seconds, it is tried again as
        `retry` says (by default 5 attempts with growing pauses), and then buried.
        """

        def register(function: F) -> F:
            self._handlers.add(topic, function, retry or Retry(), timeout)
            return function

        return register

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler."""
        return self._handlers.topics

    def stop(self) -> None:
        """Let `run` end: read no more, let handlers finish within `grace_ms`, hand the rest back."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until stopped. Survives restarts of the server.

        Raises: ConfigurationError without handlers; Unavailable or Refused if the server cannot be used at the start.
        """
        if not self.topics:
            raise ConfigurationError("this worker has no handlers: decorate functions with @worker.handler(topic)")
        threads = ThreadPoolExecutor(self._settings.threads, thread_name_prefix="wheelq")
        self._runs = {topic: self._handlers[topic].bind(threads) for topic in self.topics}
        await self._find_lines()
        background = [
            asyncio.create_task(self._reading.run(), name="wheelq reading"),
            asyncio.create_task(self._settler.run(), name="wheelq acks"),
            asyncio.create_task(
                self._recovery.run(lambda: self._lines, lambda: self._pool.free, self._start), name="wheelq recovery"
            ),
            asyncio.create_task(self._watch(), name="wheelq topics"),
        ]
        try:
            await until_stopped(self._stopping, background)
            await self._reading.stop()
            await self._finish()
        finally:  # also when this is cancelled: nothing goes on behind the caller's back
            for task in background:
                task.cancel()
            await asyncio.gather(*background, self._pool.abandon(), return_exceptions=True)
            threads.shutdown(wait=False, cancel_futures=True)
            await self._leave()

    # --- topics ----------------------------------------------------------------------------------------------------

    async def _find_lines(self) -> None:
        """Learn the shards of this worker's topics, and make its group on each."""
        asked_at = self._clock.monotonic()
        self._server.observe(asked_at, await self._transport.send(registry.server_time_us()))
        known = {line.keys.ready for line in self._lines}
        for topic in self.topics:
            settings = await self._transport.send(registry.topic(self._keys, topic))
            if settings is None:
                continue
            for shard in range(settings.all_shards):
                line = Line(self._keys.shard(topic, shard), settings)
                if line.keys.ready not in known:
                    await self._transport.send(calls.make_group(line.keys, self.group))
                    self._lines = [*self._lines, line]
        self._reading.follow(self._lines, self._settings.block_ms if self._knows_all_topics else UNKNOWN_TOPIC_MS)

    @property
    def _knows_all_topics(self) -> bool:
        return len({line.keys.topic for line in self._lines}) == len(self.topics)

    async def _watch(self) -> None:
        """Look for new shards, and tell that this worker lives."""
        while True:
            await self._clock.sleep((TOPICS_MS if self._knows_all_topics else UNKNOWN_TOPIC_MS) / 1000)
            try:
                await self._find_lines()
                what = {
                    "seen_ms": int(self._server.now_ms()),
                    "group": self.group,
                    "topics": self.topics,
                    "running": self._settings.concurrency - self._pool.free,
                    "handled": self.handled,
                    "failed": self.failed,
                    "lateness_p99_ms": self.lateness.percentile(0.99),
                }
                await self._transport.send(registry.beat_worker(self._keys, self.name, what))
            except ServerError as error:
                logger.warning("topics are not watched until the server is back: %s", error)

    def _start(self, deliveries: Iterable[Delivery]) -> None:
        deliveries = list(deliveries)
        for delivery in deliveries:
            self._held.add(delivery)
        self._pool.add(deliveries)

    # --- one delivery ----------------------------------------------------------------------------------------------

    async def _handle(self, delivery: Delivery) -> None:
        entry, topic = delivery.entry, delivery.line.keys.topic
        if entry.group is not None and entry.group != self.group:  # a retry that concerns another group
            self._settler.done(delivery)
            return
        try:
            record = codec.decode(entry.record)
        except codec.UnreadableRecord as error:
            await self._settler.settle(delivery, Buried(Reason.UNREADABLE, str(error)))
            return
        job = Job(
            entry.id,
            topic,
            record.payload,
            entry.due_ms,
            entry.attempt,
            entry.entry_id,
            max(self._server.now_ms(), entry.due_ms),  # only estimated here, and by the server's clock it was due
            record.headers,
            delivery.is_redelivered,
        )
        self.lateness.add(job.started_ms - entry.due_ms)
        try:
            await self._runs[topic](job)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # this worker is stopping: the delivery stays held, and is handed back
            await self._fail(delivery, error)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises is the outcome of its job
            await self._fail(delivery, error)
        else:
            self.handled += 1
            self._settler.done(delivery)

    async def _fail(self, delivery: Delivery, error: BaseException) -> None:
        self.failed += 1
        entry, topic = delivery.entry, delivery.line.keys.topic
        outcome = of_failure(error, entry.attempt, self._handlers[topic].retry, random.random())
        if isinstance(outcome, Buried):
            logger.error("job %s of %s is buried after attempt %d", entry.id, topic, entry.attempt, exc_info=error)
        else:
            pause = outcome.pause_ms / 1000
            logger.warning("job %s of %s failed, again in %.1f s: %r", entry.id, topic, pause, error)
        await self._settler.settle(delivery, outcome)

    # --- stopping --------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        try:
            async with asyncio.timeout(self._settings.grace_ms / 1000):
                await self._pool.idle()
        except TimeoutError:
            await self._pool.abandon()

    async def _leave(self) -> None:
        """Send the last acks, hand back what did not finish, and take this consumer off the lists."""
        farewells = [self._settler.flush(), *(self._hand_back(line) for line in self._lines)]
        farewells.append(self._transport.send(registry.gone(self._keys.workers, self.name)))
        for farewell in farewells:
            try:
                await farewell
            except ServerError as error:
                logger.warning("left without a word, what it held will be found abandoned: %s", error)
        await self._reading.close()
        await self._transport.close()

    async def _hand_back(self, line: Line) -> None:
        held = list(self._held.of(line))
        for start in range(0, len(held), 500):
            part = held[start : start + 500]
            await self._transport.send(calls.hand_back(line.keys, self.group, self.name, HAND_BACK_IDLE_MS, part))
        await self._transport.send(calls.leave(line.keys, self.group, self.name))
