# Generated from wheelq/aio/recurring.py by .ci/unasync.py: edit that file.
"""`Recurring`, as `client.recurring`: manages recurring jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Unpack, overload

from wheelq.model.job import Payload, Priority, Receipt
from wheelq.model.recurring import Missed, RecurringInfo, RecurringOptions, RecurringOutcome, RecurringReceipt, Rule
from wheelq.model.task import TaskJob
from wheelq.producer.confirmation import Confirmer
from wheelq.producer.driver import Driver
from wheelq.producer.recurring import Recurrences


class Recurring:
    """Manages recurring jobs. Each has a name that is unique in its topic.

        client.recurring.put("reports", "nightly", {"kind": "sales"}, cron="0 2 * * *", tz="Europe/Berlin")

    Each occurrence is an ordinary job with the id `name@moment` (`nightly@2026-11-22T01:00:00Z`). A scheduler makes it
    about ten seconds ahead, exactly once for any number of schedulers. Raises as the client's own methods do.
    """

    def __init__(self, driver: Driver, recurrences: Recurrences, confirmer: Confirmer) -> None:
        self._driver = driver
        self._recurrences = recurrences
        self._changing = confirmer.changing

    @overload
    def put(self, topic: TaskJob[Any], name: str, **options: Unpack[RecurringOptions]) -> RecurringReceipt: ...

    @overload
    def put(
        self, topic: str, name: str, payload: Payload = None, **options: Unpack[RecurringOptions]
    ) -> RecurringReceipt: ...

    def put(
        self,
        topic: str | TaskJob[Any],
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
        attempts: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> RecurringReceipt:
        """Create or change a recurring job; returns CREATED, UPDATED or UNCHANGED, so call it at every start.

        The job is a topic and a payload, or a task's: `put(report.job("sales"), "nightly", cron="@daily")`.

        Give either `cron`, five fields (six with seconds first) or a name like "@daily", in the zone `tz`; or `every`,
        in seconds (at least 1) or as a timedelta, counted from `start`, else from 1970 in UTC. When clocks change, a
        skipped or repeated hour makes no occurrence drop out or run twice.

        Nothing occurs before `start` or after `end`. Each occurrence is delayed by up to `jitter`, always the same for
        the same occurrence. If no scheduler ran in time, `missed` says which missed occurrences run: the last
        ("coalesce"), the last if it is less than a minute late ("skip"), or each of the last hundred ("all"); none that
        is more than `grace` late. A paused job is updated and stays paused. A changed rule counts from now on: overdue
        occurrences that no scheduler has made yet are dropped.

        `priority`, `expires` (a time after the due time), `attempts` and `timeout` apply to each occurrence, as in
        `schedule`.

        Raises: InvalidInput (names the field), ConfigurationError (cron needs cronsim, which is not installed).
        """
        rule = Rule.of(cron=cron, every=every, tz=tz, start=start, end=end, jitter=jitter, missed=missed, grace=grace)
        if isinstance(topic, TaskJob):
            payload, topic = topic.arguments, topic.without(payload)
        operation = self._recurrences.put(topic, name, payload, headers, priority, expires, attempts, timeout, rule)
        return self._driver.run(self._changing(operation))

    def get(self, topic: str, name: str) -> RecurringInfo | None:
        """Returns a recurring job; None if the topic has none with this name."""
        return self._driver.run(self._recurrences.get(topic, name))

    def list(self, topic: str | None = None) -> list[RecurringInfo]:
        """Returns the recurring jobs of a topic, or of all topics, by topic and name."""
        return self._driver.run(self._recurrences.list(topic))

    def pause(self, topic: str, name: str) -> RecurringOutcome:
        """Pause a recurring job until `resume`; returns PAUSED, UNCHANGED (it was paused already) or NOT_FOUND."""
        return self._driver.run(self._changing(self._recurrences.pause(topic, name)))

    def resume(self, topic: str, name: str) -> RecurringOutcome:
        """Resume a recurring job from now on; returns RESUMED, UNCHANGED (it was not paused) or NOT_FOUND."""
        return self._driver.run(self._changing(self._recurrences.resume(topic, name)))

    def trigger(self, topic: str, name: str) -> Receipt | None:
        """Run a recurring job once now, besides its occurrences, even while paused; None if there is no such job."""
        return self._driver.run(self._changing(self._recurrences.trigger(topic, name)))

    def remove(self, topic: str, name: str) -> RecurringOutcome:
        """Remove a recurring job and its waiting occurrence; returns REMOVED or NOT_FOUND."""
        return self._driver.run(self._changing(self._recurrences.remove(topic, name)))
