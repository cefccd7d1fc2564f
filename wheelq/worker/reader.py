"""Reads new deliveries, never more than could start at once, so that none waits here while another worker is free.

    one server      one blocking read waits for the jobs of all shards
    cluster         the keys named in one call must share a slot, so each slot has a reader, with its own connection

    places of the pool   ▓▓▓▓▓▓▓ running  ▒▒▒ set aside for reads under way  ░░░░ free

Readers share the free places: each read has some set aside that it may fill. While it waits in the server that is a
small part, so that one busy shard can have nearly all; a read that filled its part is followed by one that does not
wait, with all that is free then. A worker with fewer than four places for each reader cannot leave any set aside for
long: there a read waits 50 ms at most, and the readers take turns.

A read under way at a stop is unblocked, not cut off: it may just have been given something.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from wheelq.clock import Clock, ServerClock
from wheelq.errors import ServerError
from wheelq.protocol.calls import worker as calls
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.held import Delivery, Line, Start
from wheelq.worker.recovery import SAFETY_MS
from wheelq.worker.settling import LONGEST_PAUSE

logger = logging.getLogger("wheelq.worker")

SCARCE = 4
"""Places for each reader below which none is set aside for long."""
SCARCE_BLOCK_MS = 50
SOME_SHARDS_MS = 5
"""How long a read waits that asks only some of its shards, because there is no room for a job of each."""
NEARLY_FULL = 8
"""With less than 1/8 of the places free more will be in a moment, and reading for them together is cheaper."""
UNBLOCK_PAUSE, UNBLOCK_PATIENCE = 0.1, 2.0
"""Seconds between attempts to end reads under way, and in all: one just being sent is not in the server yet."""


class Places(Protocol):
    """Room for deliveries, some of which is set aside for what is being read."""

    @property
    def patience_ms(self) -> int | None: ...

    async def room(self) -> int: ...

    def set_aside(self, places: int) -> None: ...

    def give_back(self, places: int) -> None: ...


class Reading:
    """All readers of a lane."""

    def __init__(
        self,
        transport: AsyncTransport,
        group: str,
        consumer: str,
        settings: WorkerSettings,
        pool: Places,
        clock: Clock,
        server_clock: ServerClock,
    ) -> None:
        self.group = group
        self.consumer = consumer
        self.settings = settings
        self.pool = pool
        self.clock = clock
        self.server = server_clock
        self.is_stopping = False
        self.any_ended = asyncio.Event()
        """Set when a read has ended."""
        self._transport = transport
        self._block_ms = settings.block_ms
        self._readers: dict[int, Reader] = {}  # by slot
        self._new: asyncio.Queue[Reader] = asyncio.Queue()  # those that `run` has not started yet
        self._turn = asyncio.Lock()

    async def follow(self, lines: Sequence[Line], block_ms: int) -> None:
        """From their next reads on, read these shards, and wait so long in the server. What waits there is ended."""
        self._block_ms = block_ms
        by_slot: defaultdict[int, list[Line]] = defaultdict(list)
        for line in lines:
            by_slot[self._transport.slot(line.keys.ready)].append(line)
        for slot in {*by_slot, *self._readers}:
            mine, reader = by_slot[slot], self._readers.get(slot)
            if reader is None:
                reader = self._readers[slot] = Reader(self._transport.sibling(), self)
                self._new.put_nowait(reader)
            if set(mine) != set(reader.lines):
                reader.lines = mine
                reader.has_lines.set()
                if reader.is_reading:
                    with contextlib.suppress(ServerError):  # else it ends by itself
                        await self._transport.unblock(reader.transport)

    async def run(self, start: Start) -> None:
        """Read until cancelled; `start` is given what was read. Survives restarts of the server."""
        async with asyncio.TaskGroup() as readers:
            while True:
                readers.create_task((await self._new.get()).run(start))

    async def once(self, start: Start) -> int:
        """Read what is there, without waiting for more; how many deliveries. Not beside `run`."""
        return sum([await reader.once(start) for reader in self._readers.values()])

    async def stop(self) -> None:
        """Read no more, and end the reads under way without losing what they may have been given just now."""
        self.is_stopping = True
        patience_ends = self.clock.monotonic() + UNBLOCK_PATIENCE
        while self.clock.monotonic() < patience_ends:
            under_way = [reader for reader in self._readers.values() if reader.is_reading]
            if not under_way:
                return
            self.any_ended.clear()
            for reader in under_way:
                with contextlib.suppress(ServerError):
                    await self._transport.unblock(reader.transport)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNBLOCK_PAUSE):
                    await self.any_ended.wait()

    async def close(self) -> None:
        """Close the connections."""
        for reader in self._readers.values():
            await reader.transport.close()

    async def take_places(self, *, waits: bool) -> int:
        """Wait until a place is free, and set some aside. Readers are served in the order they came."""
        async with self._turn:
            free = await self.pool.room()
            if free * NEARLY_FULL < self.settings.concurrency:
                await self.clock.sleep(0.001)
                free = await self.pool.room()
            taken = max(1, free // (SCARCE * len(self._readers))) if waits and not self.is_alone else free
            self.pool.set_aside(taken)
            return taken

    @property
    def is_alone(self) -> bool:
        """Whether there is one reader, which can have all places for as long as it likes."""
        return len(self._readers) == 1

    @property
    def block_ms(self) -> int:
        """How long a read may wait in the server."""
        is_scarce = not self.is_alone and self.settings.concurrency < SCARCE * len(self._readers)
        most = min(self._block_ms, SCARCE_BLOCK_MS) if is_scarce else self._block_ms
        patience_ms = self.pool.patience_ms
        return most if patience_ms is None else min(most, patience_ms)

    async def make_groups(self, lines: Sequence[Line]) -> None:
        """The group is gone, perhaps with the stream: make it again, from the beginning. Raises: ServerError."""
        for line in lines:
            await self._transport.send(calls.make_group(line.keys, self.group))


class Read(NamedTuple):
    """What came of one read."""

    started: int
    """Deliveries."""
    asked: int
    """Shards."""


class Reader:
    """Reads the shards of one slot over a connection of its own."""

    def __init__(self, transport: AsyncTransport, reading: Reading) -> None:
        self.transport = transport
        self.lines: Sequence[Line] = ()
        self.has_lines = asyncio.Event()
        """Set when there is something to read again."""
        self.is_reading = False
        """Whether a read is under way, which may have been given something."""
        self._reading = reading
        self._waits = True  # the last read was not filled: nothing more is there

    async def run(self, start: Start) -> None:
        """Read until stopped."""
        pause = 0.0
        while not self._reading.is_stopping:
            try:
                await self.step(start)
                pause = 0.0
            except ServerError as error:
                pause = min(pause * 2 + 0.02, LONGEST_PAUSE)
                shown = ", ".join(line.keys.ready for line in self.lines[:1])
                logger.warning("%s is not read until the server is back: %s", shown, error)
                await self._reading.clock.sleep(pause)
                if "NOGROUP" in str(error):
                    with contextlib.suppress(ServerError):
                        await self._reading.make_groups(self.lines)

    async def once(self, start: Start) -> int:
        """Ask every shard once, without waiting in the server; how many deliveries came. Raises: ServerError."""
        started = asked = 0
        while asked < len(self.lines):
            self._waits = False
            read = await self.step(start)
            started, asked = started + read.started, asked + read.asked
        return started

    async def step(self, start: Start) -> Read:
        """One read, and the start of what it was given. Raises: ServerError."""
        reading = self._reading
        while not self.lines:
            self.has_lines.clear()
            await self.has_lines.wait()
        places = await reading.take_places(waits=self._waits)
        if reading.is_stopping:
            return Read(0, 0)
        block_ms = reading.block_ms if self._waits else None
        # The server counts for each stream. With less room than shards only some are asked, and others the next time.
        lines = self.lines[:places]
        if not lines:  # paused meanwhile
            reading.pool.give_back(places)
            return Read(0, 0)
        if len(lines) < len(self.lines):
            self.lines = [*self.lines[places:], *lines]
            block_ms = SOME_SHARDS_MS
        count = places // len(lines)
        safe_until_ms = int(reading.server.now_ms()) + reading.settings.abandoned_ms - SAFETY_MS
        call = calls.read([line.keys for line in lines], reading.group, reading.consumer, count, block_ms)
        self.is_reading = True
        try:
            found = await self.transport.send(call)
        finally:
            self.is_reading = False
            reading.any_ended.set()
            reading.pool.give_back(places)
        for line, entries in zip(lines, found, strict=True):
            start([Delivery(line, entry, safe_until_ms) for entry in entries])
        self._waits = reading.is_alone or not any(len(entries) == count for entries in found)
        return Read(sum(map(len, found)), len(lines))
