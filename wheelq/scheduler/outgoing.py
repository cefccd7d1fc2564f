"""`OutgoingFollowers`: carries what is left in `outgoing` of this node's shards.

The worker or the HTTP server that settles a job carries its followers at once. This carries those that are still there
a second later, because that process has died or a target did not take them. A shard is looked at when a hint says that
something was left in it, when this node begins to listen to it, and again while something is. In case a hint was lost,
the calls that look after a shard anyway (`open_window`, `rest` and `look`) say whether something is outgoing, too.
The leader's node looks first; the standby's follows `STANDBY_S` later, in case that is gone. Two carriers do no harm:
each claims what it carries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from wheelq.errors import ServerError
from wheelq.following.carrier import Carrier
from wheelq.protocol.calls import outgoing as calls
from wheelq.protocol.keys import ShardKeys
from wheelq.reminders import Loop
from wheelq.scheduler.parts import NodeParts
from wheelq.scheduler.shard import Role, Shard

logger = logging.getLogger("wheelq.scheduler")

STANDBY_S = 2.0
"""How much later the node looks that is only the standby."""
LONGEST_S = 60.0
"""The longest pause between two steps."""
LEFT_MS = 1_000
"""How long a follower is left to the process that settled its job."""


class OutgoingFollowers:
    """The outgoing followers of one node's shards."""

    def __init__(self, parts: NodeParts, carrier: Carrier, shards: Callable[[], Mapping[str, Shard]]) -> None:
        """`shards()` returns this node's shards by the name of their `near` channel."""
        self._transport = parts.transport
        self._clock = parts.clock
        self._carrier = carrier
        self._shards = shards
        self._looks: dict[str, float] = {}  # when to look at a shard, by near channel, in monotonic seconds
        self._wake = asyncio.Event()

    def found(self, keys: ShardKeys) -> None:
        """Take that something is outgoing in a shard, perhaps since just now."""
        if (shard := self._shards().get(keys.near)) is not None:
            self._look_by(keys.near, self._clock.monotonic() + LEFT_MS / 1000 + _lag(shard))
            self._wake.set()

    async def run(self) -> None:
        """Look after the shards until cancelled."""
        what = "followers are not carried"
        await Loop(self._clock, logger, what, 0.05, 5.0, unexpected=f"{what}: unexpected error").run(
            self.step, self._wake
        )

    async def step(self) -> float:
        """Look at the shards that are due; returns the seconds until the next look. Raises: ServerError."""
        now, shards = self._clock.monotonic(), self._shards()
        for channel in [channel for channel, at in self._looks.items() if at <= now]:
            del self._looks[channel]  # it may be found again meanwhile
            if (shard := shards.get(channel)) is not None:
                await self._look(channel, shard, now)
        rest = min(self._looks.values(), default=now + LONGEST_S) - self._clock.monotonic()
        return min(max(rest, 0.0), LONGEST_S)

    async def _look(self, channel: str, shard: Shard, now: float) -> None:
        try:
            rest = await self.carry(shard.keys)
        except ServerError:
            self._look_by(channel, now)
            raise
        if rest is not None:
            self._look_by(channel, self._clock.monotonic() + rest + _lag(shard))

    def _look_by(self, channel: str, at: float) -> None:
        self._looks[channel] = min(self._looks.get(channel, at), at)

    async def carry(self, keys: ShardKeys, at_once: bool = False) -> float | None:
        """Carry what is left in a shard, `at_once` also what was left just now.

        Returns the seconds until more is to be claimed; None: nothing is left.
        """
        rests: list[float] = []
        after = "0-0"
        while after:
            answer = await self._transport.send(calls.claim(keys, after, at_once))
            self._carrier.carry(keys, answer.entries)
            if answer.entries:  # what is not removed meanwhile is claimed again
                rests.append(LEFT_MS / 1000)
            if answer.next_ms is not None:
                rests.append((answer.next_ms - answer.now_ms) / 1000)
            after = answer.after
        return min(rests, default=None)


def _lag(shard: Shard) -> float:
    """How many seconds later this node looks than the first."""
    return 0.0 if shard.role is Role.LEADER else STANDBY_S
