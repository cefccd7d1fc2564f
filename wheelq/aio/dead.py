"""`AsyncDeadLetters`, as `client.dead`: lists, replays and purges dead jobs.

    page = await client.dead.list("orders", group="billing", limit=50)
    await client.dead.replay_one("orders", page.jobs[0].dead_id)
    await client.dead.replay("orders", reason="failed", rate=20)      # twenty a second
    await client.dead.purge("orders", until=datetime.now(UTC) - timedelta(days=30))

`producer.dead` describes how each method works.
"""

from __future__ import annotations

from datetime import datetime

from wheelq.model.dead import DeadFilter, DeadJob, DeadPage, Replayed, ReplayOutcome
from wheelq.producer.confirmation import Confirmer
from wheelq.producer.dead import Dead
from wheelq.producer.driver import AsyncDriver


class AsyncDeadLetters:
    """Manages the dead jobs of a server. Each entry is for one group: a job that two groups gave up has two."""

    def __init__(self, driver: AsyncDriver, dead: Dead, confirmer: Confirmer) -> None:
        self._driver = driver
        self._dead = dead
        self._changing = confirmer.changing

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
        """Returns up to `limit` (at most 500) dead jobs of a topic, in the order of their burial over all shards.

        Only jobs that match every given filter are listed: the group, the `reason` (a `Reason`), the job's id, and the
        time of burial, from `since` to before `until`. For the next page pass the same arguments and the page's
        `cursor`. Raises: TopicNotFound, InvalidInput.
        """
        where = DeadFilter.of(group, reason, id, since, until)
        return await self._driver.run(self._dead.list(topic, where, limit, cursor, newest_first))

    async def show(self, topic: str, dead_id: str) -> DeadJob | None:
        """Returns a dead job; None if it is no longer among the dead. Raises: TopicNotFound, InvalidInput."""
        return await self._driver.run(self._dead.show(topic, dead_id))

    async def replay_one(self, topic: str, dead_id: str) -> ReplayOutcome:
        """Run a dead job again, in its group only: with the same id, payload and headers, from attempt 1.

        This works once per burial: repeated after a lost reply, it returns NOT_FOUND. Raises: TopicNotFound,
        InvalidInput.
        """
        return await self._driver.run(self._changing(self._dead.replay_one(topic, dead_id)), ("replay", topic, None))

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
        """Run the dead jobs that match (see `list`), or `all`, again, each in its group only, oldest first.

        With a `rate`, that many fall due per second; the call still returns at once, and the jobs wait like any other.
        `limit` is the most jobs to replay. Jobs that die meanwhile are not replayed. Repeating the call after an error
        is safe: it continues with the jobs that are still dead.

        Raises: TopicNotFound, InvalidInput (also if there is neither a filter nor `all=True`).
        """
        where = DeadFilter.of(group, reason, id, since, until)
        operation = self._dead.replay(topic, where, all, rate, limit)
        return await self._driver.run(self._changing(operation), ("replay", topic, None))

    async def purge_one(self, topic: str, dead_id: str) -> bool:
        """Remove a dead job for good; False if it is not among the dead. Raises: TopicNotFound, InvalidInput."""
        return await self._driver.run(self._changing(self._dead.purge_one(topic, dead_id)))

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
        """Remove the dead jobs that match (see `list`), or `all`, for good; returns how many.

        Jobs that die meanwhile stay.

        Raises: TopicNotFound, InvalidInput (also if there is neither a filter nor `all=True`).
        """
        operation = self._dead.purge(topic, DeadFilter.of(group, reason, id, since, until), all)
        return await self._driver.run(self._changing(operation))
