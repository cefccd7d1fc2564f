"""`PromotionLateness`: adds how late a node promoted jobs to the histograms of all processes, topic by topic."""

from __future__ import annotations

from collections.abc import Mapping

from wheelq.base.metrics import Lateness, Observations
from wheelq.protocol.calls import counts
from wheelq.protocol.keys import Keys
from wheelq.scheduler.shard import Shard
from wheelq.transport import AsyncTransport


class PromotionLateness:
    """The measurements of one node that are not sent yet."""

    def __init__(self, transport: AsyncTransport, keys: Keys, node: str) -> None:
        self._transport = transport
        self._keys = keys
        self._node = node
        self._observations = Observations()
        self.before = Lateness()
        """How late jobs were in shards that this node no longer serves."""
        self._known: dict[Shard, Lateness] = {}

    def observe(self, shard: Shard) -> None:
        """Add the lateness of the shard's jobs since the last call."""
        before, now = self._known.get(shard, Lateness()), shard.lateness
        if now.jobs != before.jobs:
            self._observations.add_lateness(shard.keys.topic, before, now)
            self._known[shard] = now

    def ended(self, shard: Shard) -> None:
        """Record that the node no longer serves the shard."""
        self.observe(shard)
        self._known.pop(shard, None)
        self.before += shard.lateness

    async def send(self, shards: Mapping[str, Shard]) -> None:
        """Send the lateness of jobs promoted in these shards, if there are any. Raises: ServerError."""
        for shard in shards.values():
            self.observe(shard)
        if (found := self._observations.to_send()) is not None:
            number, increments = found
            await self._transport.send(counts.observe(self._keys, self._node, number, increments))
            self._observations.sent(number)
