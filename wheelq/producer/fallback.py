"""Schedules the jobs of a client with an outbox: sends them to the server, or keeps them while it is away.

While jobs wait in the outbox, later jobs queue behind them. Before a job in the outbox is looked up or changed, it is
delivered. If the outbox or its disk is full and the server answers, new jobs overtake the waiting ones, but never an
earlier job with the same id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

from wheelq.base.clock import Clock, ServerClock
from wheelq.errors import AWAY, OutcomeUnknown, PartlyScheduled, ServerError, Unavailable, is_away
from wheelq.model.job import JobSpec, OnDuplicate, Receipt
from wheelq.producer.operation import Do, Operation
from wheelq.producer.outbox.courier import AsyncCourier, Courier
from wheelq.producer.outbox.kept import Asked, ToKeep
from wheelq.producer.preparation import accepted
from wheelq.producer.scheduling import Scheduling
from wheelq.producer.submission import Submission
from wheelq.producer.topics import Topics
from wheelq.protocol.calls.producer import Fixed, NewJob, Tagging
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, Durability

T = TypeVar("T")


class Fallback(Scheduling):
    """Schedules on the server, or in the outbox; there, delays count from the start of the operation."""

    def __init__(
        self,
        topics: Topics,
        keys: Keys,
        settings: ClientSettings,
        clock: Clock,
        tagging: Tagging,
        server_clock: ServerClock | None,
        outbox: Courier | AsyncCourier,
    ) -> None:
        super().__init__(topics, keys, settings, clock, tagging, server_clock)
        self._outbox = outbox

    def _one(
        self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate, durability: Durability | None
    ) -> Operation[Receipt]:
        asked = Asked.now(self._clock)
        job = self._prepare(topic, spec, on_duplicate)
        self._outbox.start()
        away = None
        tried: list[Submission] = []
        if self._outbox.is_empty:
            try:
                return (yield from self._prepared(topic, spec, job, on_duplicate, durability, tried))
            except AWAY as error:
                away = error
        sent = tried[0].sent() if tried else {}
        try:
            kept = yield from self._keep(topic, [(job, spec.partition_key, sent.get(0))], on_duplicate, asked)
            return kept[0]
        except Unavailable as error:
            if away is not None:
                raise _neither(away, error) from away
            sending = self._prepared(topic, spec, job, on_duplicate, durability)
            return (yield from self._pass_by(topic, [job[0]], sending, error))

    def _many(
        self, topic: str, specs: Iterable[JobSpec], on_duplicate: OnDuplicate, durability: Durability | None
    ) -> Operation[list[Receipt]]:
        asked = Asked.now(self._clock)
        submission = self._checked(topic, specs, on_duplicate)
        self._outbox.start()
        away = None
        if self._outbox.is_empty:
            try:
                return (yield from self._submitted(submission, durability))
            except AWAY as error:
                if not is_away(error):
                    raise
                away = error
        left, bad = submission.remaining()
        if not isinstance(specs, Collection):  # jobs of an iterator count from when they are taken
            asked = Asked.now(self._clock)
        try:
            kept = yield from self._keep(topic, _with(left, submission.sent()), on_duplicate, asked)
        except Unavailable as error:
            if away is not None:
                raise _neither(away, error) from away
            ids = [job[0] for job, _ in left.values()]
            return (yield from self._pass_by(topic, ids, self._submitted(submission, durability), error))
        receipts = submission.receipts_so_far() | dict(zip(left, kept, strict=True))
        if bad is not None:
            bad.receipts = receipts
            raise bad
        return accepted(topic, (receipts[place] for place in sorted(receipts)), on_duplicate)

    def members(
        self,
        topic: str,
        specs: Iterable[JobSpec],
        bundle: str,
        on_duplicate: OnDuplicate,
        durability: Durability | None,
    ) -> Operation[list[Receipt]]:
        """As there; kept jobs with the same ids are delivered first. Raises also: Unavailable."""
        self._outbox.start()
        if not self._outbox.is_empty:
            specs = list(specs)
            for spec in specs:
                if isinstance(spec, JobSpec) and spec.key is not None:
                    yield Do(partial(self._outbox.deliver_first, topic, spec.key))
        return (yield from super().members(topic, specs, bundle, on_duplicate, durability))

    def aside(
        self, topic: str, specs: Iterable[JobSpec], on_duplicate: OnDuplicate, asked: Asked
    ) -> Operation[list[Receipt]]:
        left, bad = self._checked(topic, specs, on_duplicate).remaining()
        if bad is not None:
            raise bad
        self._outbox.start()
        return (yield from self._keep(topic, _with(left, {}), on_duplicate, asked))

    def about(self, topic: str, id: str, operation: Operation[T]) -> Operation[T]:
        yield Do(partial(self._outbox.deliver_first, topic, id))
        return (yield from operation)

    def _pass_by(self, topic: str, ids: Iterable[str], sending: Operation[T], error: Unavailable) -> Operation[T]:
        """Send jobs that could not be kept (`error`), overtaking the waiting ones except those with the same id."""
        try:
            for id in ids:
                yield Do(partial(self._outbox.deliver_first, topic, id))
        except AWAY as failure:
            raise type(error)(f"{error}; and {failure}") from failure
        try:
            return (yield from sending)
        except AWAY as away:
            if not is_away(away):
                raise
            raise _neither(away, error) from away

    def _keep(
        self, topic: str, jobs: list[ToKeep], on_duplicate: OnDuplicate, asked: Asked
    ) -> Operation[list[Receipt]]:
        receipts: list[Receipt] = yield Do(partial(self._outbox.keep, topic, jobs, on_duplicate, asked))
        return receipts


def _with(left: Mapping[int, tuple[NewJob, str | None]], sent: Mapping[int, Fixed]) -> list[ToKeep]:
    """Returns jobs, by place, with the calls that took them to the server."""
    return [(job, partition_key, sent.get(place)) for place, (job, partition_key) in left.items()]


def _neither(away: ServerError, error: Unavailable) -> ServerError:
    """Returns the error for a caller whose jobs could not be kept either, with what is known of them."""
    message = f"the server is away, and {error}"
    match away:
        case PartlyScheduled():
            return PartlyScheduled(message, away.unknown, away.receipts)
        case OutcomeUnknown():
            return OutcomeUnknown(message, away.ids)
        case _:
            return type(error)(message)
