"""Questions of a test; an answer that disappoints shows what there is instead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta

from wheelq.arguments import to_ms
from wheelq.job import Payload
from wheelq.testing.observed import ANYTHING, Run, Waiting
from wheelq.words import counted

MOST_SHOWN = 30


class Asserts(ABC):
    """The asserts of a wheelq under test."""

    runs: list[Run]
    """Every run of a handler so far, in the order they began."""

    @abstractmethod
    def waiting(self, topic: str | None = None) -> list[Waiting]:
        """The jobs that wait for their due time, retries among them, the first due first."""

    @abstractmethod
    def unread(self, topic: str | None = None) -> dict[str, int]:
        """By topic, how many jobs are ready and not finished by every group there is."""

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
        """A job waits in `topic`, with this key, payload and due time (give or take `within` seconds); the first such.

        Raises: AssertionError, with the jobs that wait instead.
        """
        seconds = due_in.total_seconds() if isinstance(due_in, timedelta) else due_in
        for job in self.waiting(topic):
            if (
                key in (None, job.id)
                and payload == job.payload
                and (seconds is None or abs(job.due_in - seconds) <= within)
                and (due_at is None or abs(job.due_ms - to_ms(due_at)) <= within * 1000)
            ):
                return job
        wanted = _described(key, payload, **{"due in": due_in, "due at": due_at})
        raise AssertionError(f"no such job waits in {topic!r}{wanted}\n{_listed('waiting', self.waiting())}")

    def assert_not_scheduled(self, topic: str, key: str | None = None, *, payload: Payload = ANYTHING) -> None:
        """No such job waits. Raises: AssertionError, with the jobs that do."""
        found = [job for job in self.waiting(topic) if key in (None, job.id) and payload == job.payload]
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
        """Such a job was run, `times` times if that is given (retries count); those runs.

        Raises: AssertionError, with the runs there were instead.
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
        """No such job was run. Raises: AssertionError, with the runs there were."""
        found = self._ran(topic, key, payload, group)
        _expect_none(f"runs of {topic!r}", found)

    def assert_nothing_waits(self, topic: str | None = None) -> None:
        """No job waits for its time or its retry, and none is ready without having been finished by every group.

        Raises: AssertionError, with those that do.
        """
        _expect_none("waiting", self.waiting(topic))
        unread = {name: count for name, count in self.unread(topic).items() if count}
        if unread:
            raise AssertionError(f"ready, and not finished by every group (is the worker added?): {unread}")

    def _ran(self, topic: str, key: str | None, payload: Payload, group: str | None) -> list[Run]:
        return [
            run
            for run in self.runs
            if run.job.topic == topic
            and key in (None, run.job.id)
            and payload == run.job.payload
            and group in (None, run.group)
        ]


def _described(key: str | None, payload: Payload, **more: object) -> str:
    given = {"key": key, **({} if payload is ANYTHING else {"payload": payload}), **more}
    return "".join(f", {name} {value!r}" for name, value in given.items() if value is not None)


def _expect_none(what: str, found: Sequence[object]) -> None:
    # Raised by hand: an assert statement's words are altered by pytest, and gone under python -O.
    if found:
        raise AssertionError(_listed(what, found))


def _listed(what: str, items: Sequence[object]) -> str:
    if not items:
        return f"{what}: nothing"
    more = [f"… and {len(items) - MOST_SHOWN:,} more"] if len(items) > MOST_SHOWN else []
    return f"{what}:" + "".join(f"\n  {item}" for item in [*items[:MOST_SHOWN], *more])
