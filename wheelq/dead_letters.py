"""`client.dead`: the jobs that were given up, to be looked at, called back, or removed; in two twins.

    page = client.dead.list("orders", group="billing", limit=50)
    client.dead.replay_one("orders", page.jobs[0].dead_id)
    client.dead.replay("orders", reason="failed", rate=20)          twenty a second
    client.dead.purge("orders", until=datetime.now(UTC) - timedelta(days=30))

What is done is written once, in `operations.dead`; here each twin carries it out in its own way.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Protocol, TypeVar

from wheelq.dead import DeadFilter, DeadJob, DeadPage, Replayed, ReplayOutcome
from wheelq.operations import Dead, Operation

T = TypeVar("T")


class _Run(Protocol):
    def __call__(self, operation: Operation[T]) -> T: ...


class _AsyncRun(Protocol):
    def __call__(self, operation: Operation[T]) -> Awaitable[T]: ...


class DeadLetters:
    """The dead jobs of a server. A job that two groups gave up is dead twice: each entry concerns one group."""

    def __init__(self, dead: Dead, run: _Run) -> None:
        self._dead = dead
        self._run = run

    def list(
        self,
        topic: str,
        *,
        group: str | None = None,
        reason: str | None = None,
        id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        newest_first: bool = True,
    ) -> DeadPage:
        """Up to `limit` (500 at most) dead jobs of a topic, in the order of their burial over all shards.

        Those that match everything that is given: who gave it up, why (a `Reason`), the job's id, and when it was
        buried, from `since` to before `until`. For the next page give the same again, and the page's `cursor`.
        Raises: TopicNotFound, InvalidInput.
        """
        where = DeadFilter.of(group, reason, id, since, until)
        return self._run(self._dead.list(topic, where, limit, cursor, newest_first))

    def show(self, topic: str, dead_id: str) -> DeadJob | None:
        """One dead job; None when it is not among the dead any more. Raises: TopicNotFound, InvalidInput."""
        return self._run(self._dead.show(topic, dead_id))

    def replay_one(self, topic: str, dead_id: str) -> ReplayOutcome:
        """Let one run again, in its group alone: with the same id, payload and headers, from attempt 1.

        Once for each burial: repeated after a lost reply this answers NOT_FOUND. Raises: TopicNotFound, InvalidInput.
        """
        return self._run(self._dead.replay_one(topic, dead_id))

    def replay(
        self,
        topic: str,
        *,
        group: str | None = None,
        reason: str | None = None,
        id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all: bool = False,
        rate: float | None = None,
        limit: int | None = None,
    ) -> Replayed:
        """Let all that match (see `list`), or `all`, run again, each in its group alone, oldest first.

        With a `rate` they fall due at so many a second, and this returns at once all the same: until then they wait
        like any other job. `limit` is how many at most. What dies meanwhile is left alone. Repeating the call after
        an error is safe: it goes on with those that are still dead.

        Raises: TopicNotFound, InvalidInput, also without a filter unless `all=True` says that every one is meant.
        """
        where = DeadFilter.of(group, reason, id, since, until)
        return self._run(self._dead.replay(topic, where, all, rate, limit))

    def purge_one(self, topic: str, dead_id: str) -> bool:
        """Remove one for good; False when it is not among the dead. Raises: TopicNotFound, InvalidInput."""
        return self._run(self._dead.purge_one(topic, dead_id))

    def purge(
        self,
        topic: str,
        *,
        group: str | None = None,
        reason: str | None = None,
        id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all: bool = False,
    ) -> int:
        """Remove all that match (see `list`), or `all`, for good; how many. What dies meanwhile stays.

        Raises: TopicNotFound, InvalidInput, also without a filter unless `all=True` says that every one is meant.
        """
        return self._run(self._dead.purge(topic, DeadFilter.of(group, reason, id, since, until), all))


class AsyncDeadLetters:
    """The dead jobs of a server. A job that two groups gave up is dead twice: each entry concerns one group."""

    def __init__(self, dead: Dead, run: _AsyncRun) -> None:
        self._dead = dead
        self._run = run

    async def list(
        self,
        topic: str,
        *,
        group: str | None = None,
        reason: str | None = None,
        id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        newest_first: bool = True,
    ) -> DeadPage:
        """Up to `limit` (500 at most) dead jobs of a topic, in the order of their burial over all shards.

        Those that match everything that is given: who gave it up, why (a `Reason`), the job's id, and when it was
        buried, from `since` to before `until`. For the next page give the same again, and the page's `cursor`.
        Raises: TopicNotFound, InvalidInput.
        """
        where = DeadFilter.of(group, reason, id, since, until)
        return await self._run(self._dead.list(topic, where, limit, cursor, newest_first))

    async def show(self, topic: str, dead_id: str) -> DeadJob | None:
        """One dead job; None when it is not among the dead any more. Raises: TopicNotFound, InvalidInput."""
        return await self._run(self._dead.show(topic, dead_id))

    async def replay_one(self, topic: str, dead_id: str) -> ReplayOutcome:
        """Let one run again, in its group alone: with the same id, payload and headers, from attempt 1.

        Once for each burial: repeated after a lost reply this answers NOT_FOUND. Raises: TopicNotFound, InvalidInput.
        """
        return await self._run(self._dead.replay_one(topic, dead_id))

    async def replay(
        self,
        topic: str,
        *,
        group: str | None = None,
        reason: str | None = None,
        id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all: bool = False,
        rate: float | None = None,
        limit: int | None = None,
    ) -> Replayed:
        """Let all that match (see `list`), or `all`, run again, each in its group alone, oldest first.

        With a `rate` they fall due at so many a second, and this returns at once all the same: until then they wait
        like any other job. `limit` is how many at most. What dies meanwhile is left alone. Repeating the call after
        an error is safe: it goes on with those that are still dead.

        Raises: TopicNotFound, InvalidInput, also without a filter unless `all=True` says that every one is meant.
        """
        where = DeadFilter.of(group, reason, id, since, until)
        return await self._run(self._dead.replay(topic, where, all, rate, limit))

    async def purge_one(self, topic: str, dead_id: str) -> bool:
        """Remove one for good; False when it is not among the dead. Raises: TopicNotFound, InvalidInput."""
        return await self._run(self._dead.purge_one(topic, dead_id))

    async def purge(
        self,
        topic: str,
        *,
        group: str | None = None,
        reason: str | None = None,
        id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        all: bool = False,
    ) -> int:
        """Remove all that match (see `list`), or `all`, for good; how many. What dies meanwhile stays.

        Raises: TopicNotFound, InvalidInput, also without a filter unless `all=True` says that every one is meant.
        """
        return await self._run(self._dead.purge(topic, DeadFilter.of(group, reason, id, since, until), all))
