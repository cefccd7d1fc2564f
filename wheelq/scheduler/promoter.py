"""`Promoter`: promotes the jobs that are due in the shards that a node leads, those due together in one call; and
`Gathering`: what these shards ask at leisure, in few calls.

    shard a  ──expect──▶ ┐                 ┌─ take ──▶ ids of a ─┐                     ┌──▶ answer to a
    shard b  ──expect──▶ ├─ queue ── due ──┼─ take ──▶ ids of b ─┼──▶ one call ──▶ … ──┼──▶ answer to b
    shard c  ──expect──▶ ┘                 └─ take ──▶ nothing: c must act by itself   └──▶ …

A shard expects the next due time of its wheel, so a node with thousands of topics has one timer for all of them, and no
task wakes for a job. What is not plain promotion is left to the shard: it sweeps a herd, a topic with limits, and
whatever a failed call may have left behind.

After a promotion a node waits a little, so that jobs that are due close together share a call (`PromotionCoalescing`):

    due          │       ││ │  │ ││ │                      ms →
    promoted     ▲ (3)      ▲ (1)   ▲ (2)                  (1) the answer, which starts a wait of `gather_ms`
                                                           (2) jobs that fell due since, of all shards, in one call
                                                           (3) after a quiet moment: at once

Each call wakes the node, the server and the workers, which costs more than the jobs in it. Coalescing only delays: no
job is promoted before it is due. The wait ends with a whole millisecond of the server's clock, as due times do: a
little later the call would promote no more, and a little earlier it would leave a millisecond's jobs to the next call.

The call checks the lease of each shard, and answers each (`promote_some.lua`). While it is under way, no shard of it is
in another. In a cluster each slot has its own call, because no call may name keys of two slots, and none waits for
another, because one node may be away.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from wheelq.base.clock import Clock, ServerClock
from wheelq.errors import NotLeader, ServerError
from wheelq.protocol.call import Call, for_many
from wheelq.protocol.calls import leader as calls
from wheelq.protocol.keys import ShardKeys
from wheelq.reminders import Loop
from wheelq.settings import SchedulerSettings
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.scheduler")

MOST_SHARDS = 100
"""The most shards in one call: the script takes about 16 µs for each, and 3 µs for each job."""
LONGEST_S = 60.0
GATHER_S = 0.02
"""How long questions are gathered; a quiet moment lasts longer than twice this time."""

T = TypeVar("T")
Kind = tuple[str, int]
"""The script and the slot that calls must have in common."""
Question = tuple[Call[Any], asyncio.Future[tuple[float, Any]]]


class Taken(NamedTuple):
    """The ids of one shard that are due."""

    shard: Promotable
    token: str
    """The lease under which they are promoted."""
    members: list[str]
    renews: bool
    """Whether the call shall also prolong the lease and look for a job that is not known."""


Answer = calls.Promoted | NotLeader | str
"""What a shard is answered; a text is an error, after which it is unknown what was promoted."""


class Promotable(Protocol):
    """A shard as the promoter sees it."""

    @property
    def keys(self) -> ShardKeys: ...

    @property
    def server(self) -> ServerClock:
        """The clock of the server that has the shard."""
        ...

    def take(self, now: float) -> Taken | None:
        """Take the ids that are due from the wheel; None if there are none, or if the shard must act by itself."""
        ...

    def answered(self, asked_at: float, taken: Taken, answer: Answer) -> None:
        """Take the answer to a promotion that was sent at `asked_at`."""
        ...

    def wake(self) -> None:
        """Let the shard act."""
        ...


class Promoter:
    """Promotes for all shards of one node."""

    def __init__(
        self, transport: AsyncTransport, clock: Clock, settings: SchedulerSettings, coalescing: PromotionCoalescing
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._settings = settings
        self._coalescing = coalescing
        self._queue: list[tuple[float, int, Promotable]] = []
        self._expected: dict[Promotable, float] = {}  # entries of the queue with another time are void
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self._sleeps_to = float("inf")
        self._is_stopping = False
        self._under_way: set[asyncio.Task[None]] = set()

    def expect(self, shard: Promotable, at: float) -> None:
        """Ask the shard for its due ids at this monotonic instant, and at no other that was named before."""
        if self._expected.get(shard) == at:
            return
        self._expected[shard] = at
        heapq.heappush(self._queue, (at, next(self._numbers), shard))
        if at < self._sleeps_to:
            self._wake.set()

    def forget(self, shard: Promotable) -> None:
        """Ask the shard no more, until it expects something again."""
        self._expected.pop(shard, None)

    async def run(self) -> None:
        """Promote until stopped."""
        unexpected = "promoting goes on after an unexpected error"  # the shards of that call sweep
        loop = Loop(self._clock, logger, "shards promote by themselves", unexpected=unexpected)
        await loop.run(self.step, self._wake, lambda: self._is_stopping)
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def stop(self) -> None:
        """Make `run` end when the calls under way are answered."""
        self._is_stopping = True
        self._wake.set()

    async def step(self) -> float:
        """Promote what is due; returns the seconds until something is."""
        self._sleeps_to = float("-inf")
        now = self._clock.monotonic()
        if self._next_at() <= now:
            await self._promote_all(self._in_calls(self._take(now)))
        rest = self._next_at() - self._clock.monotonic()
        self._sleeps_to = self._queue[0][0] if self._queue else float("inf")
        return min(max(rest, 0.0), LONGEST_S)

    def _next_at(self) -> float:
        """The monotonic instant of the next call."""
        queue = self._queue
        while queue and self._expected.get(queue[0][2]) != queue[0][0]:
            heapq.heappop(queue)
        if not queue:
            return float("inf")
        at, _, shard = queue[0]
        return max(at, shard.server.monotonic_at(self._coalescing.ends_ms(shard.server)))

    def _take(self, now: float) -> Iterator[Taken]:
        queue = self._queue
        while queue and queue[0][0] <= now:
            at, _, shard = heapq.heappop(queue)
            if self._expected.get(shard) == at:
                del self._expected[shard]
                taken = shard.take(now)
                if taken is not None:
                    yield taken

    def _in_calls(self, taken: Iterable[Taken]) -> deque[list[Taken]]:
        """Divide them into calls: each of one slot, with no more jobs than a batch."""
        found: deque[list[Taken]] = deque()
        open_calls: dict[int, tuple[list[Taken], int]] = {}  # the last call of each slot, and how many jobs it has
        for one in taken:
            slot, jobs = self._transport.slot(one.shard.keys.ready), len(one.members)
            some, count = open_calls.get(slot, ([], 0))
            if not some or count + jobs > self._settings.batch or len(some) >= MOST_SHARDS:
                some, count = [], 0
                found.append(some)
            some.append(one)
            open_calls[slot] = some, count + jobs
        return found

    async def _promote_all(self, in_calls: deque[list[Taken]]) -> None:
        try:
            while in_calls:
                some = in_calls.popleft()
                if self._transport.server_of(some[0].shard.keys.ready) is None:
                    await self._promote(some)
                else:
                    self._under_way.add(task := asyncio.create_task(self._promote(some)))
                    task.add_done_callback(self._under_way.discard)
        finally:
            for some in in_calls:  # after an unexpected error
                self._answer(some, 0.0, _no_answers(some))

    async def _promote(self, some: Sequence[Taken]) -> None:
        asked_at, answers = self._clock.monotonic(), _no_answers(some)
        try:
            answers = await self._ask(some)
        except ServerError as error:
            logger.debug("%d shards promote by themselves: %s", len(some), error)
        finally:
            self._answer(some, asked_at, answers)

    def _answer(self, some: Sequence[Taken], asked_at: float, answers: Sequence[Answer]) -> None:
        if any(isinstance(answer, calls.Promoted) and answer.promoted for answer in answers):
            self._coalescing.promoted(self._clock.monotonic())  # else this node's clock was a little ahead
        for one, answer in zip(some, answers, strict=True):
            one.shard.answered(asked_at, one, answer)

    async def _ask(self, some: Sequence[Taken]) -> Sequence[Answer]:
        lease_ms = self._settings.lease_ms
        if len(some) > 1:
            named = [calls.ToPromote(one.shard.keys, one.token, one.members, one.renews) for one in some]
            return await self._transport.send(calls.promote_some(named, lease_ms))
        try:
            one = some[0]
            return [await self._transport.send(calls.promote(one.shard.keys, one.token, lease_ms, one.members))]
        except NotLeader as error:
            return [error]


def _no_answers(some: Sequence[Taken]) -> Sequence[Answer]:
    return ["no answer"] * len(some)


class PromotionCoalescing:
    """When the shards of one node may promote again."""

    def __init__(self, settings: SchedulerSettings) -> None:
        # If it were longer, standbys would take waiting jobs for overlooked ones.
        self._seconds = min(settings.gather_ms, settings.hedge_ms / 4) / 1000
        self.until = 0.0
        """The wait lasts at least until this moment."""

    def ends_ms(self, server: ServerClock) -> int:
        """When something may be promoted again, by this server's clock."""
        return math.ceil(server.at(self.until))

    def promoted(self, now: float) -> None:
        """Record the server's answer to a promotion. Others may be in flight; the first answer counts."""
        if self._seconds and now >= self.until:
            self.until = now + self._seconds


class Gathering:
    """What the shards of one node ask at leisure, such as windows and renewals: many in one call.

    A shard that asks after a quiet moment has a call of its own at once, so a node with few shards never waits.
    """

    def __init__(self, transport: AsyncTransport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._waiting: dict[Kind, list[Question]] = {}
        self._asked_at: dict[Kind, float] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    async def ask(self, call: Call[T]) -> tuple[float, T]:
        """Returns when the call was sent (monotonic), and its answer. Raises: NotLeader, ServerError."""
        kind, now = (call.name, self._transport.slot(call.keys[0])), self._clock.monotonic()
        is_quiet = now - self._asked_at.get(kind, float("-inf")) > 2 * GATHER_S
        self._asked_at[kind] = now
        if is_quiet:
            return now, await self._transport.send(call)
        waiting = self._waiting.setdefault(kind, [])
        waiting.append((call, answer := asyncio.get_running_loop().create_future()))
        if len(waiting) == 1:
            self._clock.call_at(now + GATHER_S, partial(self._send, kind, waiting))
        elif len(waiting) == MOST_SHARDS:
            self._send(kind, waiting)
        asked_at, found = await answer
        if isinstance(found, Exception):  # as a value: nobody takes the exception of a future whose shard ends now
            raise found
        return asked_at, found

    def _send(self, kind: Kind, questions: list[Question]) -> None:
        if self._waiting.get(kind) is questions:  # else it was full, and was sent before its time
            del self._waiting[kind]
            if any(not answer.done() for _, answer in questions):  # else all who asked have ended, as the node may have
                self._under_way.add(task := asyncio.create_task(self._carry_out(questions)))
                task.add_done_callback(self._under_way.discard)

    async def _carry_out(self, questions: list[Question]) -> None:
        asked_at = self._clock.monotonic()
        found: list[Any | Exception]
        try:
            found = await self._transport.send(for_many([call for call, _ in questions]))
        except Exception as error:  # noqa: BLE001  # it is for those who asked
            found = [error] * len(questions)
        for (_, answer), one in zip(questions, found, strict=True):
            if not answer.done():  # else the shard has ended meanwhile
                answer.set_result((asked_at, one))
