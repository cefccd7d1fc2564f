"""Sends jobs that are scheduled at the same time to Redis together.

    request ─┐                       ┌─▶ its receipt
    request ─┼─▶ one schedule call ──┼─▶ its receipt         while one call is under way, the next fills
    request ─┘                       └─▶ its error

A single job is sent at once; it never waits for others. Each job has its own outcome: a bad job does not affect the
others.

When a call has no answer for `STALLED_S` (Redis or the network is frozen), the jobs queued behind it stop waiting. They
were not sent, so they go to the outbox, or fail with an error that says so. After such a call the jobs behind the next
one wait only `LOOK_S`, until a call succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wheelq.base.clock import Clock
from wheelq.errors import (
    AWAY,
    DuplicateJob,
    InvalidInput,
    InvalidJob,
    NotReplicated,
    OutcomeUnknown,
    PartlyScheduled,
    Refused,
    TopicFull,
    Unavailable,
    WheelqError,
)
from wheelq.model.job import JobSpec, OnDuplicate, Receipt
from wheelq.producer.outbox.kept import Asked
from wheelq.producer.preparation import Preparation
from wheelq.server.client import ServerClient
from wheelq.settings import ClientSettings
from wheelq.telemetry import is_traced

BATCH = 500
STALLED_S = 1.0
"""How long a call may have no answer before the jobs behind it stop waiting."""
LOOK_S = 0.2
"""How often stalled calls are checked, and how long the jobs behind a call wait after one that stalled."""
TOGETHER_S = 0.1
"""Jobs that came within this time are kept together, with the delay of each counted from the last request."""

Outcome = Receipt | WheelqError


class Unsent(NamedTuple):
    """A job that waits to be sent."""

    spec: JobSpec
    answer: asyncio.Future[Receipt]
    asked: Asked


@dataclass(slots=True, eq=False)
class _Queue:
    """The jobs of one topic that wait to be sent, and the task that sends them."""

    waiting: list[Unsent] = field(default_factory=list)
    sending: asyncio.Task[None] | None = None
    is_stalled: bool = False
    """Whether the current call has stalled."""
    letting_go: asyncio.Task[None] | None = None


class Coalescing:
    """Schedules jobs, each with its own outcome."""

    def __init__(self, client: ServerClient, settings: ClientSettings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._queues: dict[tuple[str, OnDuplicate], _Queue] = {}
        self._is_away = False

    async def schedule(self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate) -> Receipt:
        """Schedule one job, together with others. Raises as `AsyncClient.schedule` does."""
        if on_duplicate == "raise":  # its error would concern all jobs of the call
            return await self._client.schedule_spec(topic, spec, on_duplicate)
        if is_traced():
            return await self._client.within_span(topic, spec, lambda spec: self._coalesce(topic, spec, on_duplicate))
        return await self._coalesce(topic, spec, on_duplicate)

    async def _coalesce(self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate) -> Receipt:
        queue = self._queues.get((topic, on_duplicate))
        if queue is None:
            queue = self._queues[topic, on_duplicate] = _Queue()
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        queue.waiting.append(Unsent(spec, answer, Asked.now(self._clock)))
        if queue.sending is None:
            queue.sending = asyncio.create_task(self._send(topic, on_duplicate, queue))
        return await answer

    async def schedule_each(
        self, topic: str, specs: Sequence[JobSpec], on_duplicate: OnDuplicate, has_span: bool = False
    ) -> list[Outcome]:
        """Schedule many jobs, within one span or one each. Returns a receipt or an error for each, in order."""
        outcomes = await self._schedule_each(topic, specs, on_duplicate, has_span)
        if on_duplicate == "raise":  # errors about other jobs carry receipts of duplicates, too
            for place, outcome in enumerate(outcomes):
                if isinstance(outcome, Receipt) and not outcome.created:
                    outcomes[place] = DuplicateJob(topic, [outcome.id], {})
        return outcomes

    async def _schedule_each(
        self, topic: str, specs: Sequence[JobSpec], on_duplicate: OnDuplicate, has_span: bool
    ) -> list[Outcome]:
        try:
            if len(specs) == 1:
                return [await self._client.schedule_spec(topic, specs[0], on_duplicate, has_span)]
            return [*await self._client.schedule_specs(topic, specs, on_duplicate, has_span)]
        except InvalidJob as error:
            known = error.receipts
        except WheelqError as error:
            return [_outcome(error, place, specs) for place in range(len(specs))]
        return await self._without_the_bad(topic, specs, on_duplicate, known, has_span)

    async def _without_the_bad(
        self,
        topic: str,
        specs: Sequence[JobSpec],
        on_duplicate: OnDuplicate,
        known: Mapping[int, Receipt],
        has_span: bool,
    ) -> list[Outcome]:
        """Check each job that was not sent, and schedule the valid ones."""
        outcomes: dict[int, Outcome] = {**known}
        check = Preparation(topic, self._settings, self._clock.wall_ms(), on_duplicate).job
        good: list[int] = []
        for place, spec in enumerate(specs):
            if place not in outcomes:
                try:
                    check(spec)
                except InvalidInput as error:
                    outcomes[place] = error
                else:
                    good.append(place)
        left = [specs[place] for place in good]
        made = await self._schedule_each(topic, left, on_duplicate, has_span) if left else []
        outcomes.update(zip(good, made, strict=True))
        return [outcomes[place] for place in range(len(specs))]

    async def _send(self, topic: str, on_duplicate: OnDuplicate, queue: _Queue) -> None:
        batch = queue.waiting
        try:
            while queue.waiting:
                batch, queue.waiting = queue.waiting[:BATCH], queue.waiting[BATCH:]
                patience = LOOK_S if self._is_away else STALLED_S
                stalled = asyncio.get_running_loop().call_later(patience, self._stalled, topic, on_duplicate, queue)
                try:
                    outcomes = await self.schedule_each(topic, [one.spec for one in batch], on_duplicate, True)
                finally:
                    stalled.cancel()
                    queue.is_stalled = False
                self._is_away = any(isinstance(outcome, AWAY) for outcome in outcomes)
                _tell(batch, outcomes)
        finally:
            del self._queues[topic, on_duplicate]
            for spec, answer, _ in (*batch, *queue.waiting):  # none, unless this task was cancelled or failed
                if not answer.done():
                    answer.set_exception(OutcomeUnknown("the server stopped while it scheduled", _ids(spec)))

    def _stalled(self, topic: str, on_duplicate: OnDuplicate, queue: _Queue) -> None:
        queue.is_stalled = True
        queue.letting_go = asyncio.create_task(self._let_go(topic, on_duplicate, queue))

    async def _let_go(self, topic: str, on_duplicate: OnDuplicate, queue: _Queue) -> None:
        """Stop the jobs behind a stalled call from waiting for it."""
        while queue.is_stalled:
            while queue.is_stalled and queue.waiting:
                until = queue.waiting[0].asked.uptime + TOGETHER_S
                part = [one for one in queue.waiting if one.asked.uptime <= until]
                del queue.waiting[: len(part)]
                specs = [one.spec for one in part]
                _tell(part, await self._keep_each(topic, specs, on_duplicate, part[-1].asked))
            await asyncio.sleep(LOOK_S)

    async def _keep_each(
        self, topic: str, specs: Sequence[JobSpec], on_duplicate: OnDuplicate, asked: Asked
    ) -> list[Outcome]:
        """Like `schedule_each`, but only through the outbox; `asked`: when the last of the requests came."""
        try:
            return [*await self._client.keep_aside(topic, specs, on_duplicate, asked)]
        except InvalidJob as error:
            if len(specs) == 1:
                return [InvalidInput(error.field.removeprefix("jobs[0]."), error.problem)]
        except WheelqError as error:
            return [error] * len(specs)
        return [(await self._keep_each(topic, [spec], on_duplicate, asked))[0] for spec in specs]


def _tell(waiting: Sequence[Unsent], outcomes: Sequence[Outcome]) -> None:
    for (_, answer, _), outcome in zip(waiting, outcomes, strict=True):
        if not answer.done():  # otherwise its caller has gone
            if isinstance(outcome, WheelqError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)


def _ids(spec: JobSpec) -> tuple[str, ...]:
    return (spec.key,) if spec.key is not None else ()


def _outcome(error: WheelqError, place: int, specs: Sequence[JobSpec]) -> Outcome:
    """Returns the outcome of one job after an error about all of them."""
    partly = (TopicFull, DuplicateJob, PartlyScheduled)
    receipts: Mapping[int, Receipt] = error.receipts if isinstance(error, partly) else {}
    if place in receipts:
        return receipts[place]
    match error:
        case TopicFull():
            return TopicFull(error.topic, {0: error.refused[place]}, {})
        case DuplicateJob():
            return DuplicateJob(error.topic, [*_ids(specs[place])], {})
        case PartlyScheduled():
            if place in error.unknown:
                return OutcomeUnknown(str(error), (error.unknown[place],))
            if isinstance(error.__cause__, Refused):  # this job, or one before it
                return error.__cause__
            return Unavailable("the call broke off before this job was sent: nothing was done")
        case NotReplicated():
            return NotReplicated(error.receipts[place : place + 1], error.confirmed, error.wanted, error.reason)
        case OutcomeUnknown():
            has_each = len(error.ids) == len(specs)
            return OutcomeUnknown(str(error), error.ids[place : place + 1] if has_each else _ids(specs[place]))
    return error
