"""Assertions for tests; a failing assertion lists the actual jobs or runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta

from wheelq.base.plural import counted
from wheelq.model.checks import to_ms
from wheelq.model.job import Payload
from wheelq.testing.observed import ANYTHING, Run, Waiting, as_sent

MOST_SHOWN = 30


class Asserts(ABC):
    """The assertions of a wheelq under test."""

    runs: list[Run]
    """Every run of a handler so far, in the order they began."""

    @abstractmethod
    def waiting(self, topic: str | None = None) -> list[Waiting]:
        """Returns the jobs that wait for their due time, including retries, ordered by due time."""

    @abstractmethod
    def unread(self, topic: str | None = None) -> dict[str, int]:
        """Returns, by topic, how many ready jobs are not finished by every group."""

    def assert_scheduled(
        self,
        topic: str,
        key: str | None = None,
        *,
        payload: Payload = ANYTHING,
        due_in: float | timedelta | None = None,
        due_at: datetime | None = None,
        within: float = 1.0,
    ) -> Waiting:
        """Assert that a job with this key, payload and due time (± `within` seconds) waits; returns the first match.

        The payload may be given as it was scheduled: a model, or a task's `close_order.job(42)`.

        Raises: AssertionError, which lists the waiting jobs.
        """
        seconds = due_in.total_seconds() if isinstance(due_in, timedelta) else due_in
        sent = as_sent(payload)
        for job in self.waiting(topic):
            if (
                key in (None, job.id)
                and sent == job.payload
                and (seconds is None or abs(job.due_in - seconds) <= within)
                and (due_at is None or abs(job.due_ms - to_ms(due_at)) <= within * 1000)
            ):
                return job
        wanted = _described(key, payload, **{"due in": due_in, "due at": due_at})
        raise AssertionError(f"no such job waits in {topic!r}{wanted}\n{_listed('waiting', self.waiting())}")

    def assert_not_scheduled(self, topic: str, key: str | None = None, *, payload: Payload = ANYTHING) -> None:
        """Assert that no such job waits. Raises: AssertionError, which lists the matches."""
        sent = as_sent(payload)
        found = [job for job in self.waiting(topic) if key in (None, job.id) and sent == job.payload]
        _expect_none(f"waiting in {topic!r}", found)

    def assert_ran(
        self,
        topic: str,
        key: str | None = None,
        *,
        payload: Payload = ANYTHING,
        times: int | None = None,
        group: str | None = None,
    ) -> list[Run]:
        """Assert that such a job ran, exactly `times` times if given (retries count); returns the runs.

        Raises: AssertionError, which lists all runs.
        """
        found = self._ran(topic, key, payload, group)
        if found and times in (None, len(found)):
            return found
        often = "never" if not found else f"{counted(len(found), 'time')}, not {times}"
        wanted = _described(key, payload, group=group)
        raise AssertionError(f"{topic!r}{wanted} ran {often}\n{_listed('runs', self.runs)}")

    def assert_not_ran(
        self, topic: str, key: str | None = None, *, payload: Payload = ANYTHING, group: str | None = None
    ) -> None:
        """Assert that no such job ran. Raises: AssertionError, which lists the matches."""
        found = self._ran(topic, key, payload, group)
        _expect_none(f"runs of {topic!r}", found)

    def assert_nothing_waits(self, topic: str | None = None) -> None:
        """Assert that no job waits for its due time or a retry, and that every group has finished every ready job.

        Raises: AssertionError, which lists the jobs.
        """
        _expect_none("waiting", self.waiting(topic))
        unread = {name: count for name, count in self.unread(topic).items() if count}
        if unread:
            raise AssertionError(f"ready, and not finished by every group (is the worker added?): {unread}")

    def _ran(self, topic: str, key: str | None, payload: Payload, group: str | None) -> list[Run]:
        sent = as_sent(payload)
        return [
            run
            for run in self.runs
            if run.job.topic == topic
            and key in (None, run.job.id)
            and sent == run.job.payload
            and group in (None, run.group)
        ]


def _described(key: str | None, payload: Payload, **more: object) -> str:
    given = {"key": key, **({} if payload is ANYTHING else {"payload": payload}), **more}
    return "".join(f", {name} {value!r}" for name, value in given.items() if value is not None)


def _expect_none(what: str, found: Sequence[object]) -> None:
    # Raised explicitly: pytest rewrites the message of an assert statement, and python -O removes it.
    if found:
        raise AssertionError(_listed(what, found))


def _listed(what: str, items: Sequence[object]) -> str:
    if not items:
        return f"{what}: nothing"
    more = [f"… and {len(items) - MOST_SHOWN:,} more"] if len(items) > MOST_SHOWN else []
    return f"{what}:" + "".join(f"\n  {item}" for item in [*items[:MOST_SHOWN], *more])
