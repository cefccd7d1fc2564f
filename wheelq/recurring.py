"""`Recurring` and `AsyncRecurring`: recurring jobs, as `client.recurring`. Twins: same methods, same outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from wheelq.carriers import AsyncCarrier, Carrier
from wheelq.job import Payload, Priority, Receipt
from wheelq.operations import Recurrences
from wheelq.recurrence import Missed, RecurringInfo, RecurringOutcome, RecurringReceipt, Rule


class Recurring:
    """Jobs that occur again and again, each with a name that is unique in its topic.

        client.recurring.put("reports", "nightly", {"kind": "sales"}, cron="0 2 * * *", tz="Europe/Berlin")

    Each occurrence is an ordinary job with the id `name@moment` (`nightly@2026-11-22T01:00:00Z`), made by a scheduler
    about ten seconds ahead, once, however many there are. Raises as the client's own methods do.
    """

    def __init__(self, carrier: Carrier, recurrences: Recurrences) -> None:
        self._carrier = carrier
        self._recurrences = recurrences

    def put(
        self,
        topic: str,
        name: str,
        payload: Payload = None,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: float | timedelta = 0,
        missed: Missed = "coalesce",
        grace: float | timedelta | None = None,
        headers: Mapping[str, str] | None = None,
        priority: Priority = "normal",
        expires: float | timedelta | None = None,
    ) -> RecurringReceipt:
        """Let a job occur as said: CREATED, UPDATED, or UNCHANGED when it was said before, so say it at every start.

        Either `cron`, five fields (six with seconds first) or a name like "@daily", in the zone `tz`; or `every` so
        many seconds (at least 1) or a timedelta, counted from `start`, else from 1970 in UTC. When clocks change, an
        hour that is skipped or repeated does not make an occurrence be left out or run twice (see `recurrence.cron`).

        Nothing occurs before `start` or after `end`. Each is delayed by up to `jitter`, always the same for the same
        occurrence. When no scheduler was there, `missed` says what runs of what was missed: the last ("coalesce"), the
        last if it is less than a minute late ("skip"), or each of the last hundred ("all"); none that is more than
        `grace` late. A paused one is updated and stays paused.

        `priority` and `expires` (so long after its due time) are those of each job, as in `schedule`.

        Raises: InvalidInput (names the field), ConfigurationError where cron needs cronsim and it is not installed.
        """
        rule = Rule.of(cron=cron, every=every, tz=tz, start=start, end=end, jitter=jitter, missed=missed, grace=grace)
        return self._carrier.run(self._recurrences.put(topic, name, payload, headers, priority, expires, rule))

    def get(self, topic: str, name: str) -> RecurringInfo | None:
        """How a recurring job stands; None when the topic has none of this name."""
        return self._carrier.run(self._recurrences.get(topic, name))

    def list(self, topic: str | None = None) -> list[RecurringInfo]:
        """All recurring jobs of a topic, or of all topics, by topic and name."""
        return self._carrier.run(self._recurrences.list(topic))

    def pause(self, topic: str, name: str) -> RecurringOutcome:
        """Let it occur no more until resumed: PAUSED, UNCHANGED (it was before) or NOT_FOUND."""
        return self._carrier.run(self._recurrences.pause(topic, name))

    def resume(self, topic: str, name: str) -> RecurringOutcome:
        """Let it occur again from now on: RESUMED, UNCHANGED (it was not paused) or NOT_FOUND."""
        return self._carrier.run(self._recurrences.resume(topic, name))

    def trigger(self, topic: str, name: str) -> Receipt | None:
        """Run its job once, now, besides its occurrences, also while paused; None when there is none of this name."""
        return self._carrier.run(self._recurrences.trigger(topic, name))

    def remove(self, topic: str, name: str) -> RecurringOutcome:
        """Forget it, and an occurrence that waits: REMOVED or NOT_FOUND."""
        return self._carrier.run(self._recurrences.remove(topic, name))


class AsyncRecurring:
    """Jobs that occur again and again, each with a name that is unique in its topic.

        await client.recurring.put("reports", "nightly", {"kind": "sales"}, cron="0 2 * * *", tz="Europe/Berlin")

    Each occurrence is an ordinary job with the id `name@moment` (`nightly@2026-11-22T01:00:00Z`), made by a scheduler
    about ten seconds ahead, once, however many there are. Raises as the client's own methods do.
    """

    def __init__(self, carrier: AsyncCarrier, recurrences: Recurrences) -> None:
        self._carrier = carrier
        self._recurrences = recurrences

    async def put(
        self,
        topic: str,
        name: str,
        payload: Payload = None,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: float | timedelta = 0,
        missed: Missed = "coalesce",
        grace: float | timedelta | None = None,
        headers: Mapping[str, str] | None = None,
        priority: Priority = "normal",
        expires: float | timedelta | None = None,
    ) -> RecurringReceipt:
        """Let a job occur as said: CREATED, UPDATED, or UNCHANGED when it was said before, so say it at every start.

        Either `cron`, five fields (six with seconds first) or a name like "@daily", in the zone `tz`; or `every` so
        many seconds (at least 1) or a timedelta, counted from `start`, else from 1970 in UTC. When clocks change, an
        hour that is skipped or repeated does not make an occurrence be left out or run twice (see `recurrence.cron`).

        Nothing occurs before `start` or after `end`. Each is delayed by up to `jitter`, always the same for the same
        occurrence. When no scheduler was there, `missed` says what runs of what was missed: the last ("coalesce"), the
        last if it is less than a minute late ("skip"), or each of the last hundred ("all"); none that is more than
        `grace` late. A paused one is updated and stays paused.

        `priority` and `expires` (so long after its due time) are those of each job, as in `schedule`.

        Raises: InvalidInput (names the field), ConfigurationError where cron needs cronsim and it is not installed.
        """
        rule = Rule.of(cron=cron, every=every, tz=tz, start=start, end=end, jitter=jitter, missed=missed, grace=grace)
        return await self._carrier.run(self._recurrences.put(topic, name, payload, headers, priority, expires, rule))

    async def get(self, topic: str, name: str) -> RecurringInfo | None:
        """How a recurring job stands; None when the topic has none of this name."""
        return await self._carrier.run(self._recurrences.get(topic, name))

    async def list(self, topic: str | None = None) -> list[RecurringInfo]:
        """All recurring jobs of a topic, or of all topics, by topic and name."""
        return await self._carrier.run(self._recurrences.list(topic))

    async def pause(self, topic: str, name: str) -> RecurringOutcome:
        """Let it occur no more until resumed: PAUSED, UNCHANGED (it was before) or NOT_FOUND."""
        return await self._carrier.run(self._recurrences.pause(topic, name))

    async def resume(self, topic: str, name: str) -> RecurringOutcome:
        """Let it occur again from now on: RESUMED, UNCHANGED (it was not paused) or NOT_FOUND."""
        return await self._carrier.run(self._recurrences.resume(topic, name))

    async def trigger(self, topic: str, name: str) -> Receipt | None:
        """Run its job once, now, besides its occurrences, also while paused; None when there is none of this name."""
        return await self._carrier.run(self._recurrences.trigger(topic, name))

    async def remove(self, topic: str, name: str) -> RecurringOutcome:
        """Forget it, and an occurrence that waits: REMOVED or NOT_FOUND."""
        return await self._carrier.run(self._recurrences.remove(topic, name))
