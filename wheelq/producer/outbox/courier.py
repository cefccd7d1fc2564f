"""Delivers the jobs of an outbox: `Courier` in a thread, `AsyncCourier` in a task of each event loop.

After a round that delivered jobs, the next follows at once; otherwise after `retry_ms`, or when a job is kept. Of the
clients and processes that share the file, one delivers, and the others check now and then whether it still does. It
makes one round at a time: a second parcel in flight could bring back a job that was delivered and then cancelled.

    a round     for each topic, the longest waiting first: fix parcels of up to 500 jobs, one for each shard, send them,
                settle what the server took

**Fixed** means that the file says which jobs are in which parcel, with its tag and its shard, before it is sent. If its
answer is lost, or the process dies, the very same call is made again, and the server gives its first answer.

A round is an operation, so a thread and an event loop can both run it. A topic whose jobs the server refuses for now
(it is full) does not delay the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from wheelq.base.per_loop import PerLoop
from wheelq.errors import (
    AWAY,
    NotReplicated,
    OutcomeUnknown,
    ServerError,
    TopicFull,
    Unavailable,
    WheelqError,
    holds_up_all,
)
from wheelq.model.job import OnDuplicate, Receipt
from wheelq.model.topic import Topic
from wheelq.producer.operation import Do, Operation
from wheelq.producer.outbox.kept import Asked, Sending, Settled, ToKeep
from wheelq.producer.outbox.store import Outbox, OutboxInfo

log = logging.getLogger(__name__)

LOOK_S = 0.02  # how often to check whether another event loop has ended its round
TURN_S = 5.0  # and how long to keep checking
CLOSING_S = 5.0  # how long a delivery in progress may take when its client is closed


class Courier:
    """Delivers in a separate thread."""

    def __init__(self, outbox: Outbox, server: Sender, operate: Callable[[Operation[int]], int], retry_ms: int) -> None:
        """`operate` runs an operation."""
        self._outbox = outbox
        self._server = server
        self._operate = operate
        self._retry = retry_ms / 1000
        self._kept = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start unless running; also in a fork, which does not inherit threads."""
        if self._thread is not None and self._pid == os.getpid():
            return
        with self._starting:
            if self._thread is None or self._pid != os.getpid():
                self._kept, self._stopping, self._pid = threading.Event(), threading.Event(), os.getpid()
                thread = threading.Thread(target=self._run, name="wheelq-outbox", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the system has no more threads: the next call tries again
                    log.warning("the outbox %s cannot deliver for now: %s", self._outbox.path, error)
                else:
                    self._thread = thread

    def resume(self) -> None:
        """Start if a former producer has left jobs here."""
        if not self._outbox.is_empty:
            self.start()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits in the outbox."""
        return self._outbox.is_empty

    def keep(self, topic: str, jobs: Sequence[ToKeep], how: OnDuplicate, asked: Asked) -> list[Receipt]:
        """Keep jobs until they are delivered: see `Outbox.keep`."""
        receipts = self._outbox.keep(topic, jobs, how, asked)
        self._kept.set()
        return receipts

    def info(self) -> OutboxInfo:
        """How much waits."""
        return self._outbox.info()

    def deliver_all(self) -> int:
        """Make rounds until nothing gets through any more; how many jobs did. Raises: an error of `AWAY`."""
        delivered = 0
        while step := self.step():
            delivered += step
        return delivered

    def deliver_first(self, topic: str, id: str) -> None:
        """Deliver this job if it is kept, so that an answer about it is definite. Raises: Unavailable, if it cannot."""
        if self._outbox.holds(topic, id):
            self.start()  # whoever begins to deliver goes on: nobody else does meanwhile
            failure = None
            try:
                self.deliver_all()
            except AWAY as error:  # perhaps about other jobs
                failure = error
            if self._outbox.holds(topic, id):
                raise _still_here(id, failure) from failure

    def step(self) -> int:
        """One round; how many jobs got through. Raises: an error of `AWAY`."""
        with self._outbox.round_lock:
            return self._round()

    def _round(self) -> int:
        return self._operate(delivery_round(self._outbox, self._server, Do))

    def close(self) -> None:
        """Stop after the current round."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._stopping.set()
            self._kept.set()
            thread.join(CLOSING_S)
        self._outbox.close()

    def _run(self) -> None:
        kept, stopping = self._kept, self._stopping
        while not stopping.is_set():
            kept.clear()
            try:
                if self.step():
                    continue
            except Exception as error:  # noqa: BLE001  # nobody would deliver any more
                log_failure(self._outbox, error)
                stopping.wait(self._retry)  # a new job is no reason to retry while the server is away
                continue
            kept.wait(self._retry)


@dataclass(slots=True)
class _InLoop:
    """The state of a courier in one event loop."""

    kept: asyncio.Event = field(default_factory=asyncio.Event)
    rounds: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None


class AsyncCourier:
    """Delivers in a task of each event loop that uses it; threads read and write the file."""

    def __init__(
        self, outbox: Outbox, server: Sender, operate: Callable[[Operation[int]], Awaitable[int]], retry_ms: int
    ) -> None:
        """`operate` runs an operation."""
        self._outbox = outbox
        self._server = server
        self._operate = operate
        self._retry = retry_ms / 1000
        self._loops = PerLoop(_InLoop)

    def start(self) -> None:
        """Start unless running."""
        here = self._loops.here()
        if here.task is None or here.task.done():
            here.task = asyncio.create_task(self._run(here.kept), name="wheelq-outbox")

    def resume(self) -> None:
        """Start if a former producer has left jobs here; later, if no event loop runs yet."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            if not self._outbox.is_empty:
                self.start()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits in the outbox."""
        return self._outbox.is_empty

    async def keep(self, topic: str, jobs: Sequence[ToKeep], how: OnDuplicate, asked: Asked) -> list[Receipt]:
        """Keep jobs until they are delivered: see `Outbox.keep`."""
        try:
            receipts = await asyncio.to_thread(self._outbox.keep, topic, jobs, how, asked)
        except RuntimeError as error:  # no thread could be started; a running one may still do it
            raise OutcomeUnknown(f"jobs could not be kept: {error}", tuple(job[0] for job, *_ in jobs)) from error
        self._loops.here().kept.set()
        return receipts

    async def info(self) -> OutboxInfo:
        """How much waits."""
        return await asyncio.to_thread(self._outbox.info)

    async def deliver_all(self) -> int:
        """Make rounds until nothing gets through any more; how many jobs did. Raises: an error of `AWAY`."""
        delivered = 0
        while step := await self.step():
            delivered += step
        return delivered

    async def deliver_first(self, topic: str, id: str) -> None:
        """Deliver this job if it is kept, so that an answer about it is definite. Raises: Unavailable, if it cannot."""
        if self._outbox.holds(topic, id):
            self.start()  # whoever begins to deliver goes on: nobody else does meanwhile
            failure = None
            try:
                await self.deliver_all()
            except AWAY as error:  # perhaps about other jobs
                failure = error
            if self._outbox.holds(topic, id):
                raise _still_here(id, failure) from failure

    async def step(self) -> int:
        """One round; how many jobs got through. Raises: an error of `AWAY`."""
        async with self._loops.here().rounds:
            turn = self._outbox.round_lock
            for _ in range(round(TURN_S / LOOK_S)):
                if turn.acquire(blocking=False):
                    break
                await asyncio.sleep(LOOK_S)
            else:
                return 0
            try:
                return await self._round()
            finally:
                turn.release()

    async def _round(self) -> int:
        def do(work: Callable[[], Any]) -> Do:
            return Do(partial(_in_thread, work))

        return await self._operate(delivery_round(self._outbox, self._server, do))

    async def close(self) -> None:
        """Stop. Jobs in flight stay kept, and are delivered later."""
        here = self._loops.here()
        task, here.task = here.task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await asyncio.to_thread(self._outbox.close)

    async def _run(self, kept: asyncio.Event) -> None:
        while True:
            kept.clear()
            try:
                if await self.step():
                    continue
            except Exception as error:  # noqa: BLE001  # nobody would deliver any more
                log_failure(self._outbox, error)
                await asyncio.sleep(self._retry)
                continue
            wake = asyncio.ensure_future(kept.wait())
            await asyncio.wait([wake], timeout=self._retry)
            wake.cancel()


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Do this in a thread. A task that is cancelled meanwhile ends when the thread is done with it.

    Else the thread might take delivery over after the file was closed.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


class Sender(Protocol):
    """What a courier needs to send parcels."""

    def placement(self, topic: str) -> Operation[Topic]:
        """Returns the topic that places new jobs. Raises: BeingRemoved."""
        ...

    def parcels(self, sending: Sending) -> Operation[None]:
        """Sends parcels, and puts the answers into `sending`.

        Raises the error of a parcel without one; NotReplicated.
        """
        ...


def delivery_round(outbox: Outbox, server: Sender, do: Callable[[Callable[[], Any]], Do]) -> Operation[int]:
    """Makes one round; returns how many jobs were delivered. `do` makes a step of work on the file.

    Raises: an error of `AWAY`, if the server is away.
    """
    if not (yield do(partial(_is_ours_to_deliver, outbox))):
        return 0
    delivered = 0
    for topic in (yield do(outbox.topics)):
        try:
            while True:
                settled = yield from _deliver(outbox, topic, server, do)
                delivered += settled.delivered
                if settled.full:
                    _say_that_they_stay(outbox, topic, TopicFull(topic, settled.full, {}))
                elif not settled.is_moved:
                    outbox.takes(topic)
                if settled.full or not settled.is_moved:
                    break
        except NotReplicated as error:  # the callers were told that their jobs are kept here
            log.warning("jobs from the outbox %s: %s", outbox.path, error)
            delivered += len(error.receipts)
        except WheelqError as error:
            if holds_up_all(error):
                raise
            _say_that_they_stay(outbox, topic, error)
    return delivered


def _is_ours_to_deliver(outbox: Outbox) -> bool:
    outbox.write()
    return not outbox.is_empty and outbox.try_to_deliver()


def _deliver(outbox: Outbox, topic: str, server: Sender, do: Callable[[Callable[[], Any]], Do]) -> Operation[Settled]:
    """Sends the next parcels of a topic, and settles those that were answered, whatever happened to the others."""
    placed = yield from server.placement(topic)
    sending = Sending(placed, (yield do(partial(outbox.fix, topic, placed))))
    if not sending.parcels:  # the server has them already, or another process delivers now
        return Settled(0, {}, is_moved=False)
    try:
        yield from server.parcels(sending)
    except WheelqError:
        yield do(partial(outbox.take_answers, sending))
        raise
    settled: Settled = yield do(partial(outbox.take_answers, sending))
    return settled


def _still_here(id: str, failure: WheelqError | None) -> Unavailable:
    """Returns the error of a call about a job that could not be delivered, whatever became of other jobs' delivery."""
    why = f" ({failure})" if failure is not None and str(failure) else ""
    return Unavailable(f"job {id!r} waits in the outbox and could not be delivered yet{why}: nothing was changed")


def _say_that_they_stay(outbox: Outbox, topic: str, error: WheelqError) -> None:
    level = logging.WARNING if outbox.has_to_say(topic) else logging.DEBUG
    log.log(level, "jobs for topic %s stay in the outbox %s: %s", topic, outbox.path, error)


def log_failure(outbox: Outbox, error: Exception) -> None:
    """Log why a round ended; the next is made in any case."""
    is_usual = isinstance(error, ServerError | sqlite3.Error)
    level = logging.INFO if is_usual else logging.WARNING
    log.log(level, "the outbox %s keeps its jobs: %s", outbox.path, error or type(error).__name__)
