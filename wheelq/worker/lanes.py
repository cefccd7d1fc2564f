"""The lanes of a worker: the ways on which deliveries get from their shards to their handlers.

    topics with a single handler     one lane together:   readers ──▶ Pool ──▶ handler(job)
    a topic with a batch handler     a lane of its own:   readers ──▶ Batcher ──▶ handler(jobs)
    a topic that runs in order       a lane of its own:   see `ordering`

Each lane reads with connections of its own and only what it has room for, so that no topic waits for another's room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from wheelq.worker.held import Delivery, Held, Line
from wheelq.worker.reader import Places, Reading


class Lane(Protocol):
    """What a worker needs of each."""

    async def follow(self, lines: Sequence[Line], block_ms: int) -> None:
        """From now on serve these shards, and wait so long for one read."""
        ...

    async def run(self) -> None:
        """Read until cancelled."""
        ...

    async def once(self) -> int:
        """Read what is there, without waiting for more, and run it to its end; how many deliveries."""
        ...

    def next_ms(self) -> int | None:
        """When something falls due that only this lane knows of; None: nothing."""
        ...

    def start(self, deliveries: Sequence[Delivery]) -> None:
        """Run these as soon as there is room; until they are settled they are held."""
        ...

    def turn(self, line: Line) -> AbstractAsyncContextManager[int]:
        """Waits for room for abandoned deliveries of one of its shards; how many."""
        ...

    async def stop(self) -> None:
        """Read no more."""
        ...

    async def idle(self) -> None:
        """Wait until all that is to be run has been run."""
        ...

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class Runs(Places, Protocol):
    """What runs deliveries: a `Pool` or a `Batcher`."""

    @property
    def free(self) -> int: ...

    def add(self, deliveries: Iterable[Delivery]) -> None: ...

    async def idle(self) -> None: ...

    async def abandon(self) -> None: ...


class ReadingLane:
    """Readers, and what runs the deliveries they read."""

    def __init__(self, reading: Reading, runs: Runs, held: Held) -> None:
        self._reading = reading
        self._runs = runs
        self._held = held
        self._lines: Sequence[Line] = ()

    async def follow(self, lines: Sequence[Line], block_ms: int) -> None:
        self._lines = lines
        await self._reading.follow(lines, block_ms)

    async def run(self) -> None:
        await self._reading.run(self.start)

    async def once(self) -> int:
        started = await self._reading.once(self.start)
        await self._runs.idle()
        return started

    def next_ms(self) -> int | None:
        return None

    def start(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._held.add(delivery)
        self._runs.add(deliveries)

    @asynccontextmanager
    async def turn(self, line: Line) -> AsyncIterator[int]:
        """A fair share of what is free, and none while it stops.

        Where nothing is free it waits in line with the readers, so that no other work, however much, comes before for
        ever. Where something is, it may be set aside for a read; that need not fill it, and places are lent once more.
        """
        free = self._runs.free
        if self._reading.is_stopping or line not in self._lines:
            yield 0
        elif free:
            yield max(1, free // len(self._lines))
        else:
            places = await self._reading.take_places(waits=False)
            try:
                yield 0 if self._reading.is_stopping else places
            finally:
                self._runs.give_back(places)

    async def stop(self) -> None:
        await self._reading.stop()

    async def idle(self) -> None:
        await self._runs.idle()

    async def abandon(self) -> None:
        await self._runs.abandon()

    async def close(self) -> None:
        await self._reading.close()


class Lanes:
    """All lanes of a worker; each topic has one."""

    def __init__(self, default: Lane) -> None:
        """`default` serves the topics that `add` was not called for."""
        self._default = default
        self._of_topic: dict[str, Lane] = {}

    def add(self, topic: str, lane: Lane) -> None:
        """Give a topic a lane of its own."""
        self._of_topic[topic] = lane

    async def follow(self, lines: Sequence[Line], block_ms: int) -> None:
        """Tell each lane the shards of its topics."""
        for lane in self._all():
            await lane.follow([line for line in lines if self._of(line) is lane], block_ms)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Start reading; the tasks are to be cancelled."""
        return [asyncio.create_task(lane.run(), name="wheelq reading") for lane in self._all()]

    async def once(self) -> int:
        """Read what is there, without waiting for more, and run it to its end; how many deliveries."""
        return sum([await lane.once() for lane in self._all()])

    def next_ms(self) -> int | None:
        """When something falls due that only a lane knows of; None: nothing."""
        return min((ms for lane in self._all() if (ms := lane.next_ms()) is not None), default=None)

    def start(self, deliveries: Sequence[Delivery]) -> None:
        """Run deliveries of one shard that were taken over."""
        if deliveries:
            self._of(deliveries[0].line).start(deliveries)

    def turn(self, line: Line) -> AbstractAsyncContextManager[int]:
        """Waits for room for abandoned deliveries of a shard; how many can be taken over."""
        return self._of(line).turn(line)

    async def stop(self) -> None:
        """Read no more."""
        await asyncio.gather(*(lane.stop() for lane in self._all()))

    async def idle(self) -> None:
        """Wait until all that was read has been run."""
        await asyncio.gather(*(lane.idle() for lane in self._all()))

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        await asyncio.gather(*(lane.abandon() for lane in self._all()))

    async def close(self) -> None:
        """Close all connections."""
        for lane in self._all():
            await lane.close()

    def _of(self, line: Line) -> Lane:
        return self._of_topic.get(line.keys.topic, self._default)

    def _all(self) -> list[Lane]:
        return [self._default, *self._of_topic.values()]
