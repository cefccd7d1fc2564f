"""`ServerClient`: a client with the additional methods that the HTTP server needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from wheelq.aio import AsyncClient
from wheelq.model.job import JobSpec, OnDuplicate, Payload, Receipt
from wheelq.model.recurring import RecurringOutcome, Rule
from wheelq.model.topic import Topic
from wheelq.producer.dead import Dead
from wheelq.producer.operation import Do, Operation
from wheelq.producer.outbox.kept import Asked
from wheelq.producer.recurring import KEEP
from wheelq.protocol.calls.dead import DeadSummary


class ServerClient(AsyncClient):
    """An `AsyncClient` for callers that have jobs as specs, and that know when Redis does not answer."""

    async def schedule_spec(
        self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate, has_span: bool = False
    ) -> Receipt:
        """Like `schedule`, for a job given as a spec. Raises as `schedule` does."""
        return await self._driver.run(self._scheduling.one(topic, spec, on_duplicate, None, has_span))

    async def schedule_specs(
        self, topic: str, specs: Sequence[JobSpec], on_duplicate: OnDuplicate, has_span: bool = False
    ) -> list[Receipt]:
        """Like `schedule_many`, for jobs that may each have a span. Raises as `schedule_many` does."""
        return await self._driver.run(self._scheduling.many(topic, specs, on_duplicate, None, has_span))

    async def within_span(
        self, topic: str, spec: JobSpec, schedule: Callable[[JobSpec], Awaitable[Receipt]]
    ) -> Receipt:
        """Schedule a job by `schedule` within a span, whose context the job carries."""
        from wheelq.producer import tracing

        def make(spec: JobSpec) -> Operation[Receipt]:
            receipt: Receipt = yield Do(partial(schedule, spec))
            return receipt

        return await self._driver.run(tracing.one(topic, spec, make, partial(self._scheduling.shard_of, topic)))

    async def settings_of(self, topic: str, within_s: float = 0.0) -> Topic:
        """Returns a topic's settings, as they were read within these seconds. Raises: TopicNotFound."""
        recent = self._topics.recent(topic, within_s)
        return recent if recent is not None else await self._driver.run(self._topics.read_existing(topic))

    async def newest_dead(self, topic: str, most: int) -> list[DeadSummary]:
        """The newest dead jobs without payloads, for grouping them by error. Raises: TopicNotFound."""
        return await self._driver.run(Dead(self._topics).newest(topic, most))

    async def revise_recurring(self, topic: str, name: str, rule: Rule, payload: Payload = KEEP) -> RecurringOutcome:
        """Change only a recurring job's rule, and its payload if given."""
        operation = self._recurrences.revise(topic, name, rule, payload)
        return await self._driver.run(self._confirmer.changing(operation))

    async def keep_aside(
        self, topic: str, specs: Sequence[JobSpec], on_duplicate: OnDuplicate, asked: Asked
    ) -> list[Receipt]:
        """Put jobs into the outbox without asking the server, for callers that already know that it is down.

        Their delays count from `asked`. One receipt each, in order. Raises: InvalidJob (none is kept), OutboxFull, and
        Unavailable without an outbox.
        """
        return await self._driver.run(self._scheduling.aside(topic, specs, on_duplicate, asked))
