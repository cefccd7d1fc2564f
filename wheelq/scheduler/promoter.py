"""What a node does for all shards that it leads, in few calls. `Promoter`: promotes the jobs that are due. `Lookout`:
looks for jobs that their leaders do not know of. `Gathering`: what these shards ask at leisure.

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
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

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
MOST_LOOKED_AT = 200
"""The most shards that are looked at together: promotions must not wait for long."""
EARLY = 0.1
"""By which share of a beat a shard may be looked at early, so that it shares the call of others."""
LONGEST_S = 60.0
GATHER_S = 0.02
"""How long questions are gathered; a quiet moment lasts longer than twice this time."""

T = TypeVar("T")
Asker = TypeVar("Asker")
Kind = tuple[str, int]
"""The script and the slot that calls must have in common."""
Question = tuple[Call[Any], asyncio.Future[tuple[float, Any]]]


class Taken(NamedTuple):
    """What one shard has to promote."""

    shard: Promotable
    due: calls.ToPromote


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


class Timetable(ABC, Generic[Asker]):
    """When to make calls for which shards of one node, and the loop that makes them."""

    def __init__(self, transport: AsyncTransport, clock: Clock, *, without: str, unexpected: str) -> None:
        """For the log: what happens `without` the calls, and after an `unexpected` error."""
        self._transport = transport
        self._clock = clock
        self._queue: list[tuple[float, int, Asker]] = []
        self._expected: dict[Asker, float] = {}  # entries of the queue with another time are void
        self._wake = asyncio.Event()
        self._numbers = itertools.count()
        self._loop = Loop(clock, logger, without, unexpected=unexpected)
        self._is_stopping = False
        self._under_way: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def step(self) -> float:
        """Make the calls whose time has come; returns the seconds until the next."""

    async def run(self) -> None:
        """Make calls until stopped."""
        await self._loop.run(self.step, self._wake, lambda: self._is_stopping)
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def stop(self) -> None:
        """Make `run` end when the calls under way are answered."""
        self._is_stopping = True
        self._wake.set()

    def _put(self, one: Asker, at: float) -> None:
        self._expected[one] = at
        heapq.heappush(self._queue, (at, next(self._numbers), one))

    async def _carry_out(self, key: str, call: Coroutine[Any, Any, None]) -> None:
        """Await a call about this key; in a cluster it goes on by itself, because one node may be away."""
        if self._transport.server_of(key) is None:
            await call
        else:
            self._under_way.add(task := asyncio.create_task(call))
            task.add_done_callback(self._under_way.discard)


class Promoter(Timetable[Promotable]):
    """Promotes for all shards of one node."""

    def __init__(
        self, transport: AsyncTransport, clock: Clock, settings: SchedulerSettings, coalescing: PromotionCoalescing
    ) -> None:
        unexpected = "promoting goes on after an unexpected error"  # the shards of that call sweep
        super().__init__(transport, clock, without="shards promote by themselves", unexpected=unexpected)
        self._settings = settings
        self._coalescing = coalescing
        self._sleeps_to = float("inf")

    def expect(self, shard: Promotable, at: float) -> None:
        """Ask the shard for its due ids at this monotonic instant, and at no other that was named before."""
        if self._expected.get(shard) == at:
            return
        self._put(shard, at)
        if at < self._sleeps_to:
            self._wake.set()

    def forget(self, shard: Promotable) -> None:
        """Ask the shard no more, until it expects something again."""
        self._expected.pop(shard, None)

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
            slot, jobs = self._transport.slot(one.due.keys.ready), len(one.due.members)
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
                await self._carry_out(some[0].due.keys.ready, self._promote(some))
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
            return await self._transport.send(calls.promote_some([one.due for one in some], lease_ms))
        try:
            due = some[0].due
            return [await self._transport.send(calls.promote(due.keys, due.token, lease_ms, due.members))]
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


class Lookout(Timetable[Watched]):
    """Looks whether a job waits that its shard's leader does not know of, for all shards of one node.

        leader of a ──expect──▶ ┐                       ┌──▶ a, b: nothing was missed; the next look is a beat later
        leader of b ──expect──▶ ├─ a beat ── one call ──┤
        leader of c ──expect──▶ ┘                       └──▶ c: something may have been missed: c looks by itself

    A leader that missed a hint learns of the job at this beat. In a shard with a job every few seconds, looks are more
    frequent than jobs, so they must cost little: no task of a shard wakes up for a look that finds nothing. A promotion
    puts the look of its shard off, because its answer names the first waiting job, too. A look also renews a lease that
    would soon need a call for that.
    """

    def __init__(self, transport: AsyncTransport, clock: Clock, settings: SchedulerSettings) -> None:
        unexpected = "looking for missed jobs goes on after an unexpected error"
        super().__init__(transport, clock, without="shards look for missed jobs by themselves", unexpected=unexpected)
        self._lease_ms = settings.lease_ms
        self._early_s = settings.sweep_ms * EARLY / 1000

    def expect(self, leader: Watched) -> None:
        """Look for this leader until it has nothing to look for."""
        at = leader.looks_at
        if at < self._expected.get(leader, float("inf")) - self._early_s:
            if not self._queue or at < self._queue[0][0]:
                self._wake.set()
            self._put(leader, at)

    async def step(self) -> float:
        """Look for those whose time has come; returns the seconds until the next look."""
        for some in self._take(self._clock.monotonic()):
            await self._carry_out(some[0][1].keys.delayed, self._look(some))
        if not self._queue:
            return LONGEST_S
        rest = self._queue[0][0] - self._clock.monotonic()
        return min(max(rest, 0.0), LONGEST_S)

    def _take(self, now: float) -> Collection[list[Looking]]:
        """Take some of those whose look comes soon from the queue; returns them by slot."""
        until = now + self._early_s
        taken: dict[int, list[Looking]] = {}
        later: list[tuple[float, Watched]] = []
        left = MOST_LOOKED_AT
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
            self._put(leader, looks_at)
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
