"""`Jobs`: operations on one scheduled job."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from wheelq.base.clock import Clock
from wheelq.model.checks import due_argument
from wheelq.model.job import CancelOutcome, RescheduleOutcome, RunNowOutcome
from wheelq.model.state import JobInfo
from wheelq.producer.operation import Operation
from wheelq.producer.topics import Topics
from wheelq.protocol.calls import producer, state


class Jobs:
    """Operations on a job by topic and id; `partition_key` is the one it was scheduled with, if any."""

    def __init__(self, topics: Topics, max_delay_ms: int, clock: Clock) -> None:
        self._topics = topics
        self._max_delay_ms = max_delay_ms
        self._clock = clock

    def reschedule(
        self,
        topic: str,
        id: str,
        delay: float | timedelta | None,
        at: datetime | None,
        partition_key: str | None,
        if_due_ms: int | None,
    ) -> Operation[RescheduleOutcome]:
        """RESCHEDULED, RUNNING, CHANGED or NOT_FOUND."""
        due = due_argument(delay, at, self._clock.wall_ms(), self._max_delay_ms)
        call = partial(producer.reschedule, id=id, due=due, if_due_ms=if_due_ms)
        return self._topics.find(topic, id, partition_key, call, RescheduleOutcome.NOT_FOUND)

    def cancel(self, topic: str, id: str, partition_key: str | None, running: bool) -> Operation[CancelOutcome]:
        """CANCELLED, CANCELLING, RUNNING or NOT_FOUND."""
        call = partial(producer.cancel, id=id)
        outcome = yield from self._topics.find(topic, id, partition_key, call, CancelOutcome.NOT_FOUND)
        if outcome is CancelOutcome.RUNNING and running:
            ask = partial(producer.ask_to_cancel, channels=self._topics.asks, id=id)
            if (yield from self._topics.find(topic, id, partition_key, ask, 0)):
                return CancelOutcome.CANCELLING
        return outcome

    def run_now(self, topic: str, id: str, partition_key: str | None) -> Operation[RunNowOutcome]:
        """PROMOTED, RUNNING or NOT_FOUND."""
        call = partial(producer.run_now, id=id)
        return self._topics.find(topic, id, partition_key, call, RunNowOutcome.NOT_FOUND)

    def get(self, topic: str, id: str, partition_key: str | None) -> Operation[JobInfo | None]:
        """Returns the state of a job; None if it is not known."""
        return self._topics.find(topic, id, partition_key, partial(state.get, id=id), None)
