"""`EndedGroups`: cleans up after consumer groups that were not completely removed.

    XGROUP DESTROY from outside        notifies nobody: retries, dead jobs and taken ids of the group would stay
    a removal whose client has died    is continued from where it stopped

Each shard stores the names of its groups (`groups`), so a look is one short call. A group that is missing at two looks
in a row is removed: in between, a live worker would have created its group again, and a removal would have ended.

The leader of a topic's first shard looks at all its shards once in ten minutes, spread over that time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from wheelq import reminders
from wheelq.base.clock import Clock
from wheelq.errors import ServerError
from wheelq.model.topic import Topic
from wheelq.protocol.call import Call
from wheelq.protocol.calls import removal
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")

ROUND_S = 600.0
PAUSE_S = 0.005
"""The pause between two calls that clean up, each of which keeps the server busy for about a millisecond."""


class EndedGroups:
    """Cleans up in the topics whose first shard this node leads."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys,
        clock: Clock,
        topics: Callable[[], Mapping[str, Topic]],
        round_s: float = ROUND_S,
    ) -> None:
        """`topics()` returns the topics whose first shard this node leads."""
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._topics = topics
        self._round = round_s
        self._leaving: dict[str, set[str]] = {}  # ready stream → groups that were missing at the last look

    async def run(self) -> None:
        """Look at every shard, round after round, until cancelled."""
        while True:
            topics = self._topics()
            for name, topic in topics.items():
                await self.look(name, topic)
                await self._clock.sleep(self._round / len(topics))
            if not topics:
                await self._clock.sleep(self._round)

    async def look(self, name: str, topic: Topic) -> None:
        """Look at every shard of a topic; clean up after groups that were missing at the last look too."""
        for n in range(0 if topic.removing else topic.all_shards):
            try:
                await self._look(self._keys.shard(name, n), topic)
            except ServerError as error:
                reminders.warn(logger, f"{name}:{n}: cannot check for leftovers of groups", error)

    async def _look(self, keys: ShardKeys, topic: Topic) -> None:
        found = await self._transport.send(removal.watch_groups(keys))
        leaving = set(found)
        before = self._leaving.pop(keys.ready, set())
        for group in sorted(leaving & before):
            await self._carry_out(removal.group_removed(keys, group, topic.retention_ms, begins=removal.IF_GONE))
            logger.info("%s:%d: cleaned up after group %r", keys.topic, keys.shard, group)
        if left := leaving - before:
            self._leaving[keys.ready] = left

    async def _carry_out(self, steps: removal.Steps) -> None:
        answer: Any = None
        with suppress(StopIteration):
            while True:
                call: Call[Any] = steps.send(answer)
                answer = await self._transport.send(call)
                await self._clock.sleep(PAUSE_S)
