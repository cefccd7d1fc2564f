"""New jobs of a client with an outbox: they go to the server, and are kept while it is away.

While any wait in the outbox, later ones queue behind them; one that is asked for is delivered first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

from wheelq.clock import Clock
from wheelq.errors import AWAY
from wheelq.job import JobSpec, OnDuplicate, Receipt
from wheelq.operations.operation import Do, Operation
from wheelq.outbox import AsyncCourier, Courier
from wheelq.protocol.batches import Order, accepted
from wheelq.protocol.calls.producer import NewJob
from wheelq.settings import Durability

log = logging.getLogger(__name__)

T = TypeVar("T")


class Sender(Protocol):
    """Sends jobs to the server: a carrier. It answers with their receipts; on asyncio they are awaited."""

    def schedule(
        self, topic: str, spec: JobSpec, job: NewJob, on_duplicate: OnDuplicate, durability: Durability | None
    ) -> Any: ...

    def schedule_many(
        self, topic: str, order: Order, on_duplicate: OnDuplicate, durability: Durability | None
    ) -> Any: ...


class Fallback:
    """The server, else the outbox. `asked_ms` is this machine's time when the caller asked."""

    def __init__(self, sender: Sender, outbox: Courier | AsyncCourier, clock: Clock) -> None:
        self._sender = sender
        self._outbox = outbox
        self._clock = clock

    def one(
        self,
        topic: str,
        spec: JobSpec,
        job: NewJob,
        on_duplicate: OnDuplicate,
        durability: Durability | None,
        asked_ms: int,
    ) -> Operation[Receipt]:
        """Schedule a job, or keep it."""
        self._outbox.start()
        if self._outbox.is_empty:
            try:
                receipt: Receipt = yield Do(partial(self._sender.schedule, topic, spec, job, on_duplicate, durability))
            except AWAY as error:
                log.debug("a job of topic %s goes to the outbox: %s", topic, error)
            else:
                self._outbox.observe(job[1], asked_ms, receipt.due_ms)
                return receipt
        kept = yield from self._keep(topic, [(job, spec.partition_key)], on_duplicate, asked_ms)
        return kept[0]

    def many(
        self,
        topic: str,
        jobs: Iterable[JobSpec],
        order: Order,
        on_duplicate: OnDuplicate,
        durability: Durability | None,
        asked_ms: int,
    ) -> Operation[list[Receipt]]:
        """Schedule the jobs of an order, or keep what the server has not answered for."""
        self._outbox.start()
        if self._outbox.is_empty:
            try:
                receipts: list[Receipt] = yield Do(
                    partial(self._sender.schedule_many, topic, order, on_duplicate, durability)
                )
                return receipts
            except AWAY as error:
                if not isinstance(error.__cause__ or error, AWAY):  # the server refused them, and is not away
                    raise
                log.debug("jobs of topic %s go to the outbox: %s", topic, error)
        left, bad = order.remaining()
        if not isinstance(jobs, Collection):  # what comes one by one may have been asked for just now
            asked_ms = self._clock.wall_ms()
        kept = yield from self._keep(topic, list(left.values()), on_duplicate, asked_ms)
        told = order.receipts_so_far() | dict(zip(left, kept, strict=True))
        if bad is not None:
            bad.receipts = told
            raise bad
        return accepted(topic, (told[place] for place in sorted(told)), on_duplicate)

    def aside(self, topic: str, order: Order, on_duplicate: OnDuplicate, asked_ms: int) -> Operation[list[Receipt]]:
        """Keep the jobs of an order without asking the server. Raises: InvalidJob, and none is kept."""
        left, bad = order.remaining()
        if bad is not None:
            raise bad
        self._outbox.start()
        return (yield from self._keep(topic, list(left.values()), on_duplicate, asked_ms))

    def about(self, topic: str, id: str, operation: Operation[T]) -> Operation[T]:
        """An operation on one job, which is delivered first if it is kept: then its answer is definite.

        Raises: Unavailable, if it cannot be delivered, and what the operation does.
        """
        yield Do(partial(self._outbox.deliver_first, topic, id))
        return (yield from operation)

    def _keep(
        self, topic: str, jobs: list[tuple[NewJob, str | None]], on_duplicate: OnDuplicate, asked_ms: int
    ) -> Operation[list[Receipt]]:
        receipts: list[Receipt] = yield Do(partial(self._outbox.keep, topic, jobs, on_duplicate, asked_ms))
        return receipts
