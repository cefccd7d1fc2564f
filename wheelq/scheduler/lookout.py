"""`Lookout`: whether a job waits that its shard's leader does not know of, for all shards of a node, in few calls.

    leader of a ──expect──▶ ┐                       ┌──▶ a, b: nothing was missed; the next look is a beat later
    leader of b ──expect──▶ ├─ a beat ── one call ──┤
    leader of c ──expect──▶ ┘                       └──▶ c: something may have been missed: c looks by itself

A leader that missed a hint learns of the job at this beat. In a shard with a job every few seconds, looks are more
frequent than jobs, so they must cost little: no task of a shard wakes up for a look that finds nothing. A promotion
puts the look of its shard off, because its answer names the first waiting job, too. A look also renews the lease, if
that would soon need a call of its own.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from wheelq.base.clock import Clock
from wheelq.errors import ServerError
from wheelq.protocol.calls import leader as calls
from wheelq.reminders import Loop
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")

MOST_SHARDS = 200
"""The most shards that are looked at together: promotions must not wait for long."""
EARLY = 0.1
"""By which share of a beat a shard may be looked at early, so that it shares the call of others."""
LONGEST_S = 60.0


class Watched(Protocol):
    """A leader as the lookout sees it."""

    @property
    def looks_at(self) -> float:
        """The monotonic instant of the next look; infinity if there is nothing to look for."""
        ...

    def to_look_at(self, now: float) -> calls.ToLookAt | None:
        """What to look at for it; None if a look could tell nothing now."""
        ...

    def has_looked(self, asked_at: float, at: calls.ToLookAt) -> None:
        """Take it that nothing was missed as of the call sent at `asked_at`: put the next look off."""
        ...

    def look_yourself(self) -> None:
        """Something may have been missed."""
        ...


Looking = tuple[Watched, calls.ToLookAt]


class Lookout:
    """Looks for all shards of one node."""

    def __init__(self, transport: AsyncTransport, clock: Clock, settings: SchedulerSettings) -> None:
        self._transport = transport
        self._clock = clock
        self._lease_ms = settings.lease_ms
        self._early_s = settings.sweep_ms * EARLY / 1000
        self._queue: list[tuple[float, int, Watched]] = []
        self._expected: dict[Watched, float] = {}  # entries of the queue with another time are void
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._under_way: set[asyncio.Task[None]] = set()

    def expect(self, leader: Watched) -> None:
        """Look for this leader until it has nothing to look for."""
        at = leader.looks_at
        if at < self._expected.get(leader, float("inf")) - self._early_s:
            if not self._queue or at < self._queue[0][0]:
                self._wake.set()
            self._push(leader, at)

    async def run(self) -> None:
        """Look until stopped."""
        unexpected = "looking for missed jobs goes on after an unexpected error"
        loop = Loop(self._clock, logger, "shards look for missed jobs by themselves", unexpected=unexpected)
        await loop.run(self.step, self._wake, lambda: self._is_stopping)
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def stop(self) -> None:
        """Make `run` end."""
        self._is_stopping = True
        self._wake.set()

    async def step(self) -> float:
        """Look for those whose time has come; returns the seconds until the next look."""
        for some in self._take(self._clock.monotonic()):
            if self._transport.server_of(some[0][1].keys.delayed) is None:
                await self._look(some)
            else:  # of a cluster one node may be away
                self._under_way.add(task := asyncio.create_task(self._look(some)))
                task.add_done_callback(self._under_way.discard)
        if not self._queue:
            return LONGEST_S
        rest = self._queue[0][0] - self._clock.monotonic()
        return min(max(rest, 0.0), LONGEST_S)

    def _push(self, leader: Watched, at: float) -> None:
        self._expected[leader] = at
        heapq.heappush(self._queue, (at, next(self._numbers), leader))

    def _take(self, now: float) -> Collection[list[Looking]]:
        """Take some of those whose look comes soon from the queue; returns them by slot."""
        until = now + self._early_s
        taken: dict[int, list[Looking]] = {}
        later: list[tuple[float, Watched]] = []
        left = MOST_SHARDS
        while left and self._queue and self._queue[0][0] <= until:
            expected, _, leader = heapq.heappop(self._queue)
            if self._expected.get(leader) != expected:
                continue
            del self._expected[leader]
            if (looks_at := leader.looks_at) == float("inf"):
                continue
            if looks_at > until or (at := leader.to_look_at(now)) is None:
                later.append((max(looks_at, until), leader))
            else:
                taken.setdefault(self._transport.slot(at.keys.delayed), []).append((leader, at))
                left -= 1
        for looks_at, leader in later:
            self._push(leader, looks_at)
        return taken.values()

    async def _look(self, some: Sequence[Looking]) -> None:
        in_doubt: Collection[int] = range(len(some))
        asked_at = self._clock.monotonic()
        try:
            found = await self._transport.send(calls.look_some([at for _, at in some], self._lease_ms))
            in_doubt = set(found)
        except ServerError as error:
            logger.debug("%d shards look by themselves: %s", len(some), error)
        finally:
            for place, (leader, at) in enumerate(some):
                if place in in_doubt:
                    leader.look_yourself()
                else:
                    leader.has_looked(asked_at, at)
