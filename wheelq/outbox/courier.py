"""Delivers what an outbox keeps: `Courier` in a thread, `AsyncCourier` in a task. What a round does is written once.

    round   for each topic, the one that waits longest first: deliver a parcel of up to 500, forget what the server has
    then    the next round at once while parcels get through; else after `retry_ms`, or when a job is kept

A topic whose jobs the server refuses for now (it is full) does not hold up the others. Of several clients and
processes with the same file one delivers; the others look now and then whether it still does. There too one round is
made at a time: a parcel that is still under way when its jobs were delivered and forgotten would bring back what was
cancelled since.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from wheelq.clock import Clock
from wheelq.errors import AWAY, NotReplicated, ServerError, Unavailable, WheelqError
from wheelq.job import OnDuplicate, Receipt
from wheelq.outbox.store import Outbox, OutboxInfo, PackedJob, Parcel

log = logging.getLogger(__name__)

CLOSING_S = 5.0  # how long a delivery under way may take when its client is closed


def delivery_round(outbox: Outbox) -> Generator[Parcel, Any, int]:
    """One round: yields parcels, is sent their receipts or thrown the error; returns how many jobs got through.

    Raises: an error of `AWAY`, when the server is.
    """
    if outbox.is_empty or not outbox.try_to_deliver():
        return 0
    delivered = 0
    for parcel in outbox.parcels():
        try:
            receipts = yield parcel
        except AWAY:
            raise
        except NotReplicated as error:  # the server has them; who scheduled them was told that they are kept here
            log.warning("jobs from the outbox %s: %s", outbox.path, error)
            receipts = error.receipts
        except WheelqError as error:
            log.warning("jobs for topic %s stay in the outbox %s: %s", parcel.topic, outbox.path, error)
            continue
        _settle(outbox, parcel, receipts)
        delivered += len(parcel.jobs)
    return delivered


def _settle(outbox: Outbox, parcel: Parcel, receipts: list[Receipt]) -> None:
    refused = []
    if parcel.on_duplicate == "raise":
        refused = [job for job, receipt in zip(parcel.jobs, receipts, strict=True) if not receipt.created]
    for job in refused:
        log.warning("job %s of topic %s was put aside: a live job has its id", job.id, job.topic)
        outbox.reject(job, "a live job had this id when it was delivered")
    outbox.delivered([job for job in parcel.jobs if job not in refused])


class Courier:
    """Delivers in a thread of its own."""

    def __init__(self, outbox: Outbox, deliver: Callable[[Parcel], list[Receipt]], retry_ms: int) -> None:
        self._outbox = outbox
        self._deliver = deliver
        self._retry = retry_ms / 1000
        self._kept = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._starting = threading.Lock()

    def start(self) -> None:
        """Begin, unless it has; also in a fork, which has no threads of its parent."""
        if self._thread is not None and self._pid == os.getpid():
            return
        with self._starting:
            if self._thread is None or self._pid != os.getpid():
                self._kept, self._stopping, self._pid = threading.Event(), threading.Event(), os.getpid()
                self._thread = threading.Thread(target=self._run, name="wheelq-outbox", daemon=True)
                self._thread.start()

    def resume(self) -> None:
        """Begin, if a former producer has left jobs here."""
        if not self._outbox.is_empty:
            self.start()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits in the outbox."""
        return self._outbox.is_empty

    def observe(self, due: str, asked_ms: int, due_ms: int) -> None:
        """Learn the server's clock from a job that got through: see `Outbox.observe`."""
        self._outbox.observe(due, asked_ms, due_ms)

    def keep(
        self, topic: str, jobs: Sequence[tuple[PackedJob, str | None]], how: OnDuplicate, asked_ms: int
    ) -> list[Receipt]:
        """Keep jobs until they are delivered: see `Outbox.keep`."""
        receipts = self._outbox.keep(topic, jobs, how, asked_ms)
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
            self.deliver_all()
            if self._outbox.holds(topic, id):
                raise Unavailable(f"job {id!r} waits in the outbox and could not be delivered yet: nothing was changed")

    def step(self) -> int:
        """One round; how many jobs got through. Raises: an error of `AWAY`."""
        with self._outbox.round_lock:
            return self._round()

    def _round(self) -> int:
        steps = delivery_round(self._outbox)
        go_on: Callable[[Any], Parcel] = steps.send
        answer: Any = None
        while True:
            try:
                parcel = go_on(answer)
            except StopIteration as end:
                return int(end.value)
            try:
                go_on, answer = steps.send, self._deliver(parcel)
            except WheelqError as error:
                go_on, answer = steps.throw, error

    def close(self) -> None:
        """Stop, once the round under way has ended."""
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
            except (ServerError, sqlite3.Error) as error:
                log.info("the outbox %s keeps its jobs: %s", self._outbox.path, error)
                stopping.wait(self._retry)  # new jobs change nothing while the server is away
                continue
            kept.wait(self._retry)


class AsyncCourier:
    """Delivers in a task of the running event loop; the file is read and written in threads."""

    def __init__(
        self, outbox: Outbox, deliver: Callable[[Parcel], Awaitable[list[Receipt]]], retry_ms: int, clock: Clock
    ) -> None:
        self._outbox = outbox
        self._deliver = deliver
        self._retry = retry_ms / 1000
        self._clock = clock
        self._kept = asyncio.Event()
        self._rounds = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="wheelq-outbox")

    def resume(self) -> None:
        """Begin, if a former producer has left jobs here."""
        if not self._outbox.is_empty:
            self.start()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits in the outbox."""
        return self._outbox.is_empty

    def observe(self, due: str, asked_ms: int, due_ms: int) -> None:
        """Learn the server's clock from a job that got through: see `Outbox.observe`."""
        self._outbox.observe(due, asked_ms, due_ms)

    async def keep(
        self, topic: str, jobs: Sequence[tuple[PackedJob, str | None]], how: OnDuplicate, asked_ms: int
    ) -> list[Receipt]:
        """Keep jobs until they are delivered: see `Outbox.keep`."""
        receipts = await asyncio.to_thread(self._outbox.keep, topic, jobs, how, asked_ms)
        self._kept.set()
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
            await self.deliver_all()
            if self._outbox.holds(topic, id):
                raise Unavailable(f"job {id!r} waits in the outbox and could not be delivered yet: nothing was changed")

    async def step(self) -> int:
        """One round; how many jobs got through. Raises: an error of `AWAY`."""
        async with self._rounds:
            return await self._round()

    async def _round(self) -> int:
        steps = delivery_round(self._outbox)
        go_on: Callable[[Any], Parcel] = steps.send
        answer: Any = None
        while True:
            parcel, delivered = await asyncio.to_thread(_one_step, go_on, answer)
            if parcel is None:
                return delivered
            try:
                go_on, answer = steps.send, await self._deliver(parcel)
            except WheelqError as error:
                go_on, answer = steps.throw, error

    async def close(self) -> None:
        """Stop; what was under way stays kept, and is delivered later."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await asyncio.to_thread(self._outbox.close)

    async def _run(self) -> None:
        while True:
            self._kept.clear()
            try:
                if await self.step():
                    continue
            except (ServerError, sqlite3.Error) as error:
                log.info("the outbox %s keeps its jobs: %s", self._outbox.path, error)
                await self._clock.sleep(self._retry)
                continue
            wake = asyncio.ensure_future(self._kept.wait())
            await asyncio.wait([wake], timeout=self._retry)
            wake.cancel()


def _one_step(go_on: Callable[[Any], Parcel], answer: Any) -> tuple[Parcel | None, int]:
    """`StopIteration` cannot leave a thread: the end of the round is told by a value."""
    try:
        return go_on(answer), 0
    except StopIteration as end:
        return None, int(end.value)
