"""`LongPolls`: wakes waiting requests when a topic has new jobs, with one blocking read per topic, not per request.

The read of a topic runs while any request listens. It starts at the current end of the streams, and a request looks
again after it has begun to listen, so no job is missed between looking and waiting. A failed read only costs time:
waiting requests look again every second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from wheelq.errors import ServerError
from wheelq.protocol.calls import leases as calls
from wheelq.protocol.keys import ShardKeys
from wheelq.transport import AsyncTransport
from wheelq.transport.aio import Spares

BLOCK_MS = 5_000
PAUSE_S = 0.5


class LongPoll:
    """Wakes the requests that wait for an entry in any of its shards."""

    def __init__(self) -> None:
        self.listeners = 0
        self.started: asyncio.Future[None] | None = None
        """Completed when every blocking read knows where its streams end."""
        self.watching: list[asyncio.Task[None]] = []
        self._notice: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next_notice(self) -> asyncio.Future[None]:
        """Returns a future that the next `notify` completes; all waiters share it."""
        return self._notice

    def notify(self) -> None:
        self._notice.set_result(None)
        self._notice = asyncio.get_running_loop().create_future()


class LongPolls:
    """The blocking reads of all topics."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._spares = Spares(transport)  # a waiting read would delay all other calls on the shared connection
        self._polls: dict[str, LongPoll] = {}
        self.are_silent = False
        """Whether requests no longer wait, because the server stops."""

    @asynccontextmanager
    async def listening(self, shards: Sequence[ShardKeys]) -> AsyncIterator[LongPoll]:
        """Listen to these shards (of one topic) during a `with` block."""
        topic = shards[0].topic
        poll = self._polls.get(topic)
        if poll is None:
            poll = self._polls[topic] = LongPoll()
            by_slot: defaultdict[int, list[ShardKeys]] = defaultdict(list)
            for keys in shards:
                by_slot[self._transport.slot(keys.ready)].append(keys)
            events = [asyncio.Event() for _ in by_slot]
            poll.watching = [
                asyncio.create_task(self._watch(poll, keys, event))
                for keys, event in zip(by_slot.values(), events, strict=True)
            ]
            poll.started = asyncio.ensure_future(_all(events))
        poll.listeners += 1
        started = poll.started
        assert started is not None, "set when it was made"
        try:
            await asyncio.wait([started], timeout=PAUSE_S)
            yield poll
        finally:
            poll.listeners -= 1
            if not poll.listeners:
                del self._polls[topic]
                for task in (*poll.watching, started):
                    task.cancel()

    def notify(self, topic: str) -> None:
        """Wake the requests of a topic: a job is available again."""
        if topic in self._polls:
            self._polls[topic].notify()

    def silence(self) -> None:
        """Wake all requests, and let no later ones wait."""
        self.are_silent = True
        for poll in self._polls.values():
            poll.notify()

    async def close(self) -> None:
        await self._spares.close()

    async def _watch(self, poll: LongPoll, shards: Sequence[ShardKeys], started: asyncio.Event) -> None:
        """Wake the requests when entries come to shards of one slot, until cancelled."""
        while True:
            with contextlib.suppress(ServerError):
                at = {keys.ready: await self._transport.send(calls.last_entry(keys)) for keys in shards}
                started.set()
                async with self._spares.one() as transport:
                    while True:
                        after = [(keys, at[keys.ready]) for keys in shards]
                        came = await transport.send(calls.wait_for_entries(after, BLOCK_MS))
                        if came:
                            at |= came
                            poll.notify()
            await asyncio.sleep(PAUSE_S)


async def _all(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()
