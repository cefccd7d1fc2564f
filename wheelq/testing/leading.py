"""`Leading`: a scheduler node that leads every shard of a wheelq under test, and acts only when called."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from wheelq.base.clock import ManualClock
from wheelq.following.carrier import Carrier
from wheelq.model.topic import Topic
from wheelq.protocol import scores
from wheelq.protocol.call import Call, command, together
from wheelq.protocol.calls import outgoing, registry
from wheelq.protocol.calls.producer import HALF_MS
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.outgoing import OutgoingFollowers
from wheelq.scheduler.parts import NodeParts, ShardParts
from wheelq.scheduler.promoter import Gathering
from wheelq.scheduler.recurring import Occurrences
from wheelq.scheduler.shard import Shard
from wheelq.settings import DAY_MS, SchedulerSettings, TopicSettings
from wheelq.transport import AsyncTransport, Transport

T = TypeVar("T")

NODE = "test"
FOREVER_MS = 3_660 * DAY_MS


class _Held(NamedTuple):
    """A shard that has due jobs and does not promote them, because its topic is paused or shaped."""

    since_ms: int
    rest_ms: int
    until_ms: int
    """When to look at it again: after the rest, or earlier because another of its jobs is expected."""


class _AtOnce(Gathering):
    """Asks each question alone: no shard can wait for the questions of others while time stands still."""

    async def ask(self, call: Call[T]) -> tuple[float, T]:
        return self._clock.monotonic(), await self._transport.send(call)


class Leading:
    """A scheduler node that leads every shard."""

    def __init__(self, transport: AsyncTransport, registry: Transport, keys: Keys, clock: ManualClock) -> None:
        self._transport = transport
        self._registry = registry
        self._keys = keys
        self._clock = clock
        # No other node leads, and nothing happens while nothing is due, so an idle year is one step. The next
        # occurrence of a recurring job is always made at once, so that a test sees it.
        settings = SchedulerSettings(idle_ms=FOREVER_MS, lease_ms=FOREVER_MS, recurring_ahead_ms=FOREVER_MS)
        self._parts = NodeParts(transport, keys, clock, settings, NODE)
        self._parts.gathering = _AtOnce(transport, clock)
        self._shards: dict[ShardKeys, Shard] = {}
        self._occurrences: dict[ShardKeys, Occurrences] = {}
        self._first_due_ms: dict[ShardKeys, int | None] = {}  # when last looked
        self._make_ms: dict[ShardKeys, int | None] = {}  # the same, of occurrences
        self._held: dict[ShardKeys, _Held] = {}  # shards that hold due jobs back
        self._carrier = Carrier(transport, keys, clock=clock)
        self._outgoing = OutgoingFollowers(self._parts, self._carrier, dict)
        self._carry_ms: dict[ShardKeys, int | None] = {}  # when to carry again what a target did not take

    async def promote(self) -> int:
        """Run each shard with due jobs until it rests; returns how many jobs were promoted."""
        await self._parts.server.asking(self._transport.send(server_time_us()))
        shards = all_shards(self._registry, self._keys)
        self._carry_ms = {keys: await self._carry(keys) for keys in shards}
        self._make_ms = {keys: await self._make(keys) for keys in shards if keys.shard == 0}
        self._first_due_ms = {keys: await self._transport.send(_first_waiting(keys)) for keys in shards}
        promoted = 0
        for keys, first_due_ms in self._first_due_ms.items():
            if first_due_ms is None or first_due_ms > self._clock.wall_ms():
                self._held.pop(keys, None)
            else:
                promoted += await self._act(keys)
        return promoted

    def next_ms(self) -> int | None:
        """Returns the next moment at which something is due, as of the last `promote`; None if nothing is."""
        due = (self._held[keys].until_ms if keys in self._held else ms for keys, ms in self._first_due_ms.items() if ms)
        others = (*self._make_ms.values(), *self._carry_ms.values())
        return min((*due, *(ms for ms in others if ms)), default=None)

    async def give_back(self) -> None:
        """Release all leases, for the next leader."""
        for shard in self._shards.values():
            shard.stop()
            await shard.run()

    async def _carry(self, keys: ShardKeys) -> int | None:
        """Carry the followers that were left; returns when to do so again."""
        if not await self._transport.send(outgoing.how_many(keys)):
            return None
        rest = await self._outgoing.carry(keys, at_once=True)
        await self._carrier.idle()
        return None if rest is None else self._clock.wall_ms() + math.ceil(rest * 1000)

    async def _make(self, keys: ShardKeys) -> int | None:
        """Make the due occurrences of a topic's recurring jobs; returns when the next must be made."""
        ahead_ms = self._parts.settings.recurring_ahead_ms
        next_ms = await self._transport.send(_first(keys.occurrences))
        if next_ms is not None and next_ms - ahead_ms <= self._clock.wall_ms():
            occurrences = self._occurrences.get(keys)
            if occurrences is None:
                occurrences = self._occurrences[keys] = Occurrences(self._parts, keys)
            await occurrences.step()
            next_ms = await self._transport.send(_first(keys.occurrences))
        return None if next_ms is None else next_ms - ahead_ms

    async def _act(self, keys: ShardKeys) -> int:
        topic = self._registry.send(registry.topic(self._keys, keys.topic)) or Topic()
        shard = self._shards.get(keys)
        if shard is None:
            shard = self._shards[keys] = Shard(ShardParts(self._parts, keys, topic))
        shard.configure(topic)
        before = self._parts.promotions.lateness.jobs
        shard.look_again()
        rest = await shard.step()
        while rest <= 0:
            rest = await shard.step()
        promoted = self._parts.promotions.lateness.jobs - before
        expected = (shard.next_ms, await self._transport.send(_first_after(keys, self._clock.wall_ms())))
        self._hold(keys, math.ceil(rest * 1000), expected, has_promoted=promoted > 0)
        return promoted

    def _hold(self, keys: ShardKeys, rest_ms: int, expected: Sequence[int | None], *, has_promoted: bool) -> None:
        """Note when to look at a shard's due jobs again: when others are expected, else ever more rarely."""
        now_ms = self._clock.wall_ms()
        held = self._held.get(keys)
        if held is not None and now_ms > held.since_ms and not has_promoted:
            rest_ms = max(rest_ms, 2 * held.rest_ms)
        rest_ms = max(1, rest_ms)
        until_ms = min([now_ms + rest_ms, *(ms for ms in expected if ms is not None and ms > now_ms)])
        self._held[keys] = _Held(now_ms, rest_ms, until_ms)


def all_shards(transport: Transport, keys: Keys) -> list[ShardKeys]:
    """Returns every shard of every topic, by name.

    A client made before this test may believe that its topics are registered, so topics with jobs are registered here.
    """
    pattern = keys.shard("*", 0).jobs.replace("*:0", "*")
    found = [re.search(r"\{(.+):(\d+)\}", key.decode()) for key in transport.send(command("KEYS", pattern, read=list))]
    used = sorted((match[1], int(match[2])) for match in found if match)
    known = transport.send(registry.topics(keys)).settings
    for topic, highest in dict(used).items():  # dict() keeps the highest shard of each topic
        if topic not in known:
            settings = TopicSettings(shards=highest + 1)
            known[topic] = transport.send(registry.register_topic(keys, topic, settings))
    return [keys.shard(name, n) for name in sorted(known) for n in range(known[name].all_shards)]


def _first_waiting(keys: ShardKeys) -> Call[int | None]:
    """Returns the call for when the first waiting job is due; of those held back for their keys, any will do."""

    def read(replies: Sequence[Any]) -> int | None:
        return min((scores.due_ms(score) for reply in replies for score in reply[1:]), default=None)

    ends = (_end(keys.delayed, 0), _end(keys.delayed, -1))
    return together(ends, read)


def _first_after(keys: ShardKeys, now_ms: int) -> Call[int | None]:
    """Returns the call for when the first job is due that is not due yet."""

    def read(reply: list[bytes]) -> int | None:
        return scores.due_ms(reply[1]) if reply else None

    bounds = (f"({now_ms + HALF_MS}", f"({scores.HELD}")
    args = (keys.delayed, *bounds, "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
    return command("ZRANGE", *args, read=read, key=keys.delayed)


def _end(key: str, place: int) -> Call[list[bytes]]:
    return command("ZRANGE", key, place, place, "WITHSCORES", read=list, key=key)


def _first(key: str) -> Call[int | None]:
    """Returns the call for a sorted set's lowest score: the time of its first member."""

    def read(reply: list[bytes]) -> int | None:
        return scores.due_ms(reply[1]) if reply else None

    return command("ZRANGE", key, 0, 0, "WITHSCORES", read=read, key=key)
