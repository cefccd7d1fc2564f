"""Jobs that are made at the same time go to Redis together.

    request ─┐                       ┌─▶ its receipt
    request ─┼─▶ one schedule call ──┼─▶ its receipt         while one call is under way, the next fills
    request ─┘                       └─▶ its error

A job that comes alone is sent at once; nobody waits for others to come. Each job has its own outcome: one that is bad
does not touch the others.

While a call has no answer for long (Redis is frozen, or the way to it is), those behind it are not kept waiting:
nothing was sent for them, so they go to the outbox, or are told that nothing was done. Once a call has failed in that
way the next one is given less time before those behind it are let go, until one succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from wheelq.aio import AsyncClient
from wheelq.clock import Clock
from wheelq.errors import (
    AWAY,
    InvalidInput,
    InvalidJob,
    NotReplicated,
    OutcomeUnknown,
    PartlyScheduled,
    Unavailable,
    WheelqError,
)
from wheelq.job import JobSpec, OnDuplicate, Receipt
from wheelq.protocol.batches import Preparation
from wheelq.settings import ClientSettings

BATCH = 500
STALLED_S = 1.0
"""How long a call is without an answer before those behind it wait no longer."""
LOOK_S = 0.2
"""How often they are looked after then; and how long such a call is given after one that failed."""

_SPEC = tuple(item.name for item in fields(JobSpec) if item.name != "nonce")
Outcome = Receipt | WheelqError
Waiting = list[tuple[JobSpec, asyncio.Future[Receipt]]]


@dataclass(slots=True, eq=False)
class _Line:
    """The jobs of one topic that wait to be sent, and what sends them."""

    waiting: Waiting = field(default_factory=list)
    sending: asyncio.Task[None] | None = None
    is_stalled: bool = False
    """Whether the call under way has had no answer for long."""
    letting_go: asyncio.Task[None] | None = None


class Gathering:
    """Schedules jobs, each with an outcome of its own."""

    def __init__(self, client: AsyncClient, settings: ClientSettings, clock: Clock) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._lines: dict[tuple[str, OnDuplicate], _Line] = {}
        self._is_away = False

    async def schedule(self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate) -> Receipt:
        """One job, in company. Raises as `AsyncClient.schedule` does."""
        if on_duplicate == "raise":  # its error would concern all that are sent with it
            return await self._schedule_alone(topic, spec, on_duplicate)
        line = self._lines.get((topic, on_duplicate))
        if line is None:
            line = self._lines[topic, on_duplicate] = _Line()
        answer: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        line.waiting.append((spec, answer))
        if line.sending is None:
            line.sending = asyncio.create_task(self._send(topic, on_duplicate, line))
        return await answer

    async def schedule_each(self, topic: str, specs: Sequence[JobSpec], on_duplicate: OnDuplicate) -> list[Outcome]:
        """Many jobs: a receipt or an error for each, in order."""
        try:
            if len(specs) == 1:
                return [await self._schedule_alone(topic, specs[0], on_duplicate)]
            return [*await self._client.schedule_many(topic, specs, on_duplicate=on_duplicate)]
        except InvalidJob as error:
            known = error.receipts
        except WheelqError as error:
            return [_outcome(error, place, spec) for place, spec in enumerate(specs)]
        return await self._without_the_bad(topic, specs, on_duplicate, known)

    async def _schedule_alone(self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate) -> Receipt:
        """The client's shorter way, half as dear for a single job; it takes no nonce."""
        if spec.nonce is not None:
            try:
                return (await self._client.schedule_many(topic, [spec], on_duplicate=on_duplicate))[0]
            except InvalidJob as error:
                raise _of_one(error) from error
        said = {name: getattr(spec, name) for name in _SPEC}
        return await self._client.schedule(topic, **said, on_duplicate=on_duplicate)

    async def _without_the_bad(
        self, topic: str, specs: Sequence[JobSpec], on_duplicate: OnDuplicate, known: Mapping[int, Receipt]
    ) -> list[Outcome]:
        """Look at each job that was not sent, and schedule those that are good."""
        outcomes: dict[int, Outcome] = {**known}
        check = Preparation(self._settings, self._clock.wall_ms()).job
        good: list[int] = []
        for place, spec in enumerate(specs):
            if place not in outcomes:
                try:
                    check(spec)
                except InvalidInput as error:
                    outcomes[place] = error
                else:
                    good.append(place)
        made = await self.schedule_each(topic, [specs[place] for place in good], on_duplicate) if good else []
        outcomes.update(zip(good, made, strict=True))
        return [outcomes[place] for place in range(len(specs))]

    async def _send(self, topic: str, on_duplicate: OnDuplicate, line: _Line) -> None:
        batch = line.waiting
        try:
            while line.waiting:
                batch, line.waiting = line.waiting[:BATCH], line.waiting[BATCH:]
                patience = LOOK_S if self._is_away else STALLED_S
                stalled = asyncio.get_running_loop().call_later(patience, self._stalled, topic, on_duplicate, line)
                try:
                    outcomes = await self.schedule_each(topic, [spec for spec, _ in batch], on_duplicate)
                finally:
                    stalled.cancel()
                    line.is_stalled = False
                self._is_away = any(isinstance(outcome, AWAY) for outcome in outcomes)
                _tell(batch, outcomes)
        finally:
            del self._lines[topic, on_duplicate]
            for spec, answer in (*batch, *line.waiting):  # none, unless this task was cancelled or is at fault
                if not answer.done():
                    answer.set_exception(OutcomeUnknown("the server stopped while it scheduled", _ids(spec)))

    def _stalled(self, topic: str, on_duplicate: OnDuplicate, line: _Line) -> None:
        line.is_stalled = True
        line.letting_go = asyncio.create_task(self._let_go(topic, on_duplicate, line))

    async def _let_go(self, topic: str, on_duplicate: OnDuplicate, line: _Line) -> None:
        """Those who come while a call has no answer do not wait for it."""
        while line.is_stalled:
            waiting, line.waiting = line.waiting, []
            if waiting:
                _tell(waiting, await self._keep_each(topic, [spec for spec, _ in waiting], on_duplicate))
            await asyncio.sleep(LOOK_S)

    async def _keep_each(self, topic: str, specs: Sequence[JobSpec], on_duplicate: OnDuplicate) -> list[Outcome]:
        """As `schedule_each`, without asking Redis."""
        try:
            return [*await self._client.keep_aside(topic, specs, on_duplicate=on_duplicate)]
        except InvalidJob as error:
            if len(specs) == 1:
                return [_of_one(error)]
        except WheelqError as error:
            return [error] * len(specs)
        return [(await self._keep_each(topic, [spec], on_duplicate))[0] for spec in specs]


def _tell(waiting: Waiting, outcomes: Sequence[Outcome]) -> None:
    for (_, answer), outcome in zip(waiting, outcomes, strict=True):
        if not answer.done():  # else its caller has gone
            if isinstance(outcome, WheelqError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)


def _ids(spec: JobSpec) -> tuple[str, ...]:
    return (spec.key,) if spec.key is not None else ()


def _of_one(error: InvalidJob) -> InvalidInput:
    """What is wrong with the only job of a call."""
    return InvalidInput(error.field.removeprefix("jobs[0]."), error.problem)


def _outcome(error: WheelqError, place: int, spec: JobSpec) -> Outcome:
    """What an error about many jobs means for one of them."""
    match error:
        case PartlyScheduled():
            if place in error.receipts:
                found: Receipt = error.receipts[place]
                return found
            if place in error.unknown:
                return OutcomeUnknown(str(error), (error.unknown[place],))
            return Unavailable(str(error))
        case NotReplicated():
            return NotReplicated(error.receipts[place : place + 1], error.confirmed, error.wanted, str(error))
        case OutcomeUnknown():
            return OutcomeUnknown(str(error), error.ids or _ids(spec))
    return error
