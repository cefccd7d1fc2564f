"""Long polls are rung when something has come: one blocking read for each topic that is waited for, not for each poll.

A bell hangs while anyone listens to it. It reads from where the streams stood when it was hung, and whoever listens
looks once more after that: so nothing falls between looking and waiting. A bell that fails is no harm, only lateness:
whoever waits looks again every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from wheelq.errors import ServerError
from wheelq.protocol.calls import leases as calls
from wheelq.protocol.keys import ShardKeys
from wheelq.transport import AsyncTransport, Siblings

logger = logging.getLogger("wheelq.server")

BLOCK_MS = 5_000
PAUSE_S = 0.5


class Bell:
    """Rings when an entry comes to any of some shards."""

    def __init__(self) -> None:
        self.listeners = 0
        self.hung: asyncio.Future[None] | None = None
        self.watching: list[asyncio.Task[None]] = []
        self._ring: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next_ring(self) -> asyncio.Future[None]:
        """Done when it rings the next time; shared by all who wait for it."""
        return self._ring

    def ring(self) -> None:
        """Something has come."""
        self._ring.set_result(None)
        self._ring = asyncio.get_running_loop().create_future()


class Bells:
    """The bells of all topics."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._siblings = Siblings(transport)  # a read that waits would hold up all others on the shared connection
        self._bells: dict[str, Bell] = {}
        self.are_silent = False
        """Whether nobody is to wait any more."""

    @asynccontextmanager
    async def listening(self, shards: Sequence[ShardKeys]) -> AsyncIterator[Bell]:
        """The bell of these shards (of one topic), hung as long as anyone listens."""
        topic = shards[0].topic
        bell = self._bells.get(topic)
        if bell is None:
            bell = self._bells[topic] = Bell()
            by_slot: defaultdict[int, list[ShardKeys]] = defaultdict(list)
            for keys in shards:
                by_slot[self._transport.slot(keys.ready)].append(keys)
            hung = [asyncio.Event() for _ in by_slot]
            bell.watching = [
                asyncio.create_task(self._watch(bell, keys, event))
                for keys, event in zip(by_slot.values(), hung, strict=True)
            ]
            bell.hung = asyncio.ensure_future(_all(hung))
        bell.listeners += 1
        hanging = bell.hung
        assert hanging is not None, "set when it was made"
        try:
            await asyncio.wait([hanging], timeout=PAUSE_S)
            yield bell
        finally:
            bell.listeners -= 1
            if not bell.listeners:
                del self._bells[topic]
                for task in (*bell.watching, hanging):
                    task.cancel()

    def silence(self) -> None:
        """Ring all of them once more, and never again."""
        self.are_silent = True
        for bell in self._bells.values():
            bell.ring()

    async def close(self) -> None:
        """Close the connections."""
        await self._siblings.close()

    async def _watch(self, bell: Bell, shards: Sequence[ShardKeys], hung: asyncio.Event) -> None:
        """Ring for what comes to shards of one slot, until cancelled."""
        while True:
            with contextlib.suppress(ServerError):
                at = {keys.ready: await self._transport.send(calls.last_entry(keys)) for keys in shards}
                hung.set()
                async with self._siblings.one() as transport:
                    while True:
                        after = [(keys, at[keys.ready]) for keys in shards]
                        came = await transport.send(calls.wait_for_entries(after, BLOCK_MS))
                        if came:
                            at |= came
                            bell.ring()
            await asyncio.sleep(PAUSE_S)


async def _all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()
