"""`Leading`: a scheduler node that leads every shard of a wheelq under test, and is told when to act."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from wheelq.clock import ManualClock, ServerClock
from wheelq.protocol import codec
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.recurring import Maker
from wheelq.scheduler.shard import Shard
from wheelq.settings import DAY_MS, SchedulerSettings, TopicSettings
from wheelq.topics import Topic
from wheelq.transport import AsyncTransport, Transport

NODE = "test"
FOREVER_MS = 3_660 * DAY_MS


class _Held(NamedTuple):
    """A shard that has due jobs and does not promote them, as it is paused or shaped."""

    since_ms: int
    until_ms: int


class Leading:
    """A scheduler node that leads every shard."""

    def __init__(self, transport: AsyncTransport, registry: Transport, keys: Keys, clock: ManualClock) -> None:
        self._transport = transport
        self._registry = registry
        self._keys = keys
        self._clock = clock
        self._server = ServerClock(clock)
        # Nobody else leads, and nothing is to be looked after while nothing is due: a year at rest is one step. Of what
        # recurs the next occurrence is always made, so that a test sees it.
        self._settings = SchedulerSettings(idle_ms=FOREVER_MS, lease_ms=FOREVER_MS, recurring_ahead_ms=FOREVER_MS)
        self._shards: dict[ShardKeys, Shard] = {}
        self._makers: dict[ShardKeys, Maker] = {}
        self._first_due_ms: dict[ShardKeys, int | None] = {}  # when last looked
        self._make_ms: dict[ShardKeys, int | None] = {}  # the same, of occurrences
        self._held: dict[ShardKeys, _Held] = {}  # shards that hold due jobs back

    async def promote(self) -> int:
        """Let each shard with due jobs do all it wants to do now; how many jobs it promoted."""
        asked_at = self._clock.monotonic()
        self._server.observe(asked_at, await self._transport.send(registry.server_time_us()))
        shards = all_shards(self._registry, self._keys)
        self._make_ms = {keys: await self._make(keys) for keys in shards if keys.shard == 0}
        self._first_due_ms = {keys: await self._transport.send(_first(keys.delayed)) for keys in shards}
        promoted = 0
        for keys, first_due_ms in self._first_due_ms.items():
            if first_due_ms is None or first_due_ms > self._clock.wall_ms():
                self._held.pop(keys, None)
            else:
                promoted += await self._act(keys)
        return promoted

    def next_ms(self) -> int | None:
        """The next moment at which anything is due, if nothing has happened since `promote` looked; None: never."""
        due = (self._held[keys].until_ms if keys in self._held else ms for keys, ms in self._first_due_ms.items() if ms)
        return min((*due, *(ms for ms in self._make_ms.values() if ms)), default=None)

    async def give_back(self) -> None:
        """Give all leases back, for whoever leads next."""
        for shard in self._shards.values():
            shard.stop()
            await shard.run()

    async def _make(self, keys: ShardKeys) -> int | None:
        """Make the occurrences of what recurs in a topic; the next moment at which there is something to make."""
        ahead_ms = self._settings.recurring_ahead_ms
        next_ms = await self._transport.send(_first(keys.occurrences))
        if next_ms is not None and next_ms - ahead_ms <= self._clock.wall_ms():
            maker = self._makers.get(keys)
            if maker is None:
                maker = self._makers[keys] = Maker(
                    keys, self._transport, self._settings, self._clock, self._server.like()
                )
            await maker.step()
            next_ms = await self._transport.send(_first(keys.occurrences))
        return None if next_ms is None else next_ms - ahead_ms

    async def _act(self, keys: ShardKeys) -> int:
        topic = self._registry.send(registry.topic(self._keys, keys.topic)) or Topic()
        shard = self._shards.get(keys)
        if shard is None:
            shard = self._shards[keys] = Shard(
                keys, self._transport, NODE, lambda: "", self._settings, self._clock, self._server.like(), topic
            )
        shard.configure(topic)
        before = shard.promoted
        shard.look_again()
        rest = await shard.step()
        while rest <= 0:
            rest = await shard.step()
        promoted = shard.promoted - before
        self._hold(keys, math.ceil(rest * 1000), has_promoted=promoted > 0)
        return promoted

    def _hold(self, keys: ShardKeys, rest_ms: int, *, has_promoted: bool) -> None:
        """Look at what it holds back again when it wants to; ever more seldom, while time passes and nothing comes."""
        now_ms = self._clock.wall_ms()
        held = self._held.get(keys)
        if held is not None and now_ms > held.since_ms and not has_promoted:
            rest_ms = max(rest_ms, 2 * (held.until_ms - held.since_ms))
        self._held[keys] = _Held(now_ms, now_ms + max(1, rest_ms))


def all_shards(transport: Transport, keys: Keys) -> list[ShardKeys]:
    """Every shard of every topic, by name.

    A client from before this test may believe that its topics are registered: where it put jobs, they are.
    """
    pattern = keys.shard("*", 0).jobs.replace("*:0", "*")
    found = [re.search(r"\{(.+):(\d+)\}", key.decode()) for key in transport.send(command("KEYS", pattern, read=list))]
    used = sorted((match[1], int(match[2])) for match in found if match)
    known = transport.send(registry.topics(keys)).settings
    for topic, highest in dict(used).items():  # of each topic the last shard remains
        if topic not in known:
            settings = TopicSettings(shards=highest + 1)
            known[topic] = transport.send(registry.register_topic(keys, topic, settings))
    return [keys.shard(name, n) for name in sorted(known) for n in range(known[name].all_shards)]


def _first(key: str) -> Call[int | None]:
    """The lowest score of a sorted set: the time of its first member."""

    def read(reply: list[bytes]) -> int | None:
        return codec.due_ms(reply[1]) if reply else None

    return command("ZRANGE", key, 0, 0, "WITHSCORES", read=read, key=key)
