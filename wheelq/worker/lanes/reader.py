"""`ReadingLane`: reads new deliveries and runs them, never more than could start at once, so that none waits here while
another worker is free.

    one server      one blocking read waits for the jobs of all shards
    cluster         the keys named in one call must share a slot, so each slot has a reader, with its own connection

Readers share the free places of their lane: see `places`.

A worker with many shards (more than `MANY`, or more than it has places) cannot ask each of them for as many jobs as it
has room for, nor wait for each in turn. A handler with a limit of its own would keep places from others while its read
waits. Their readers listen to all shards at once, which consumes nothing, and read those with new entries in one script
that stops when there is no more room:

    unread ──read──▶ nothing left: listen after the last entry that the group received ───an entry came────▶ unread
       ▲   └──────▶ perhaps more: to the end of the queue                                                      │
       └───────────────────────────────────────────────────────────────────────────────────────────────────────┘

A call that listens costs the server a little for each shard. So a reader of more than `MANY` shards waits for hints of
new entries instead, as long as these can be relied on: see `news`.

At a stop a current read is unblocked, not cut off, because it may just have received entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple, TypeVar

from wheelq.errors import GroupNotFound, Refused, ServerError
from wheelq.protocol.call import Call
from wheelq.protocol.calls import worker as calls
from wheelq.protocol.keys import ShardKeys
from wheelq.reminders import Loop
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.delivery.held import Delivery, Regroup, ServedShard
from wheelq.worker.delivery.limited import LimitedRuns
from wheelq.worker.delivery.news import Hearing
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.places import LEND_S, SharedPlaces
from wheelq.worker.delivery.pool import Pool
from wheelq.worker.delivery.recovery import SAFETY_MS
from wheelq.worker.lanes.batching import Batcher

logger = logging.getLogger("wheelq.worker")

T = TypeVar("T")
Runs = Pool[Delivery] | LimitedRuns | Batcher
"""Runs deliveries, and says how many more could start at once."""

MANY = 64
"""With more shards than this a worker listens, and reads only shards with new entries."""
READ_AT_ONCE = 500
LISTEN_APART = 0.005
"""Seconds between a listening call that heard of entries and the next; each costs the server a little per shard."""
HEAR_APART = 0.002
"""Seconds between a read of shards that hints named and the next."""
CHECK_MS = 1
"""How long a check waits for entries of which no hint came."""
READ_ALL_EVERY = 60.0
"""Seconds after which all shards are read again without news, because their groups may have been changed."""
SOME_SHARDS_MS = 5
"""How long a read waits if it asks only some of its shards, for lack of room for a job from each."""
LOOK_APART = 0.5
"""Seconds between looks for the deliveries of a lost reply, as long as the server may still work on that read."""
UNBLOCK_PAUSE, UNBLOCK_PATIENCE = 0.02, 2.0
"""Seconds between attempts to end current reads, and in total: a read that is just being sent is not in the server
yet."""


class ReadingLane:
    """The readers of a lane, and the pool or batcher that runs their deliveries."""

    def __init__(
        self,
        parts: WorkerParts,
        settings: WorkerSettings,
        runs: Runs,
        regroup: Regroup,
        limited: SharedPlaces | None = None,
    ) -> None:
        """`settings` are the lane's own; `regroup` is called if the group does not exist.

        `limited`: the places of handlers with a limit.
        """
        self.parts = parts
        self.settings = settings
        self.regroup = regroup
        self.places = limited or SharedPlaces(runs, settings, parts.clock, self._end_waits)
        self.is_limited = limited is not None
        self.is_stopping = False
        self.any_ended = asyncio.Event()
        """Set when a read has ended."""
        self._runs = runs
        self._shards: Sequence[ServedShard] = ()
        self._readers: dict[int, Reader] = {}  # by slot
        self._new: asyncio.Queue[Reader] = asyncio.Queue()  # readers that `run` has not started yet

    def resize(self, concurrency: int) -> None:
        """Change how many deliveries there may be at a time."""
        self.settings = replace(self.settings, concurrency=concurrency)
        self.places.resize(concurrency)

    async def follow(self, shards: Sequence[ServedShard], block_ms: int) -> None:
        """Read these shards from the next reads on, which wait up to `block_ms`. Waiting reads are ended."""
        self._shards = shards
        if isinstance(self._runs, Batcher):
            self._runs.look_again()
        transport = self.parts.transport
        by_slot: defaultdict[int, list[ServedShard]] = defaultdict(list)
        for shard in shards:
            by_slot[transport.slot(shard.keys.ready)].append(shard)
        self.places.share(len({*by_slot, *self._readers}), block_ms)
        changed = []
        for slot in {*by_slot, *self._readers}:
            mine, reader = by_slot[slot], self._readers.get(slot)
            if reader is None:
                reader = self._readers[slot] = Reader(transport.spare(), self)
                self._new.put_nowait(reader)
            if set(mine) != set(reader.shards):
                reader.follow(mine)
                changed.append(reader)
        await self._end_reads(changed)

    async def run(self) -> None:
        """Read until cancelled. Survives restarts of the server."""
        async with asyncio.TaskGroup() as readers:
            while True:
                readers.create_task((await self._new.get()).run())

    async def once(self) -> int:
        """Read what is there, without waiting for more, and run it to its end; how many deliveries.

        A batch that is being gathered waits for its time.
        """
        started = sum([await reader.once() for reader in self._readers.values()])
        await self._runs.quiet()
        return started

    def next_ms(self) -> int | None:
        """When the batch that is being gathered starts; None if there is none."""
        left_ms = self._runs.patience_ms
        return None if left_ms is None else self.parts.clock.wall_ms() + left_ms

    def start(self, deliveries: Sequence[Delivery]) -> None:
        """Run these as soon as there is room; they are held until settled."""
        self.parts.held.add(*deliveries)
        self._runs.add(deliveries)

    @asynccontextmanager
    async def turn(self, shard: ServedShard) -> AsyncIterator[int]:
        """Yields how many abandoned deliveries fit: a fair share of the free places; none while the lane stops.

        If no place can be lent, it queues with the readers, so that a busy shard cannot starve it.
        """
        places = self.places
        if self.is_stopping or shard not in self._shards:
            yield 0
            return
        reserved = 0 if places.can_lend else await self._queue_up()
        share = max(1, places.can_lend // max(1, len(self._shards)))
        lent = 0 if reserved or self.is_stopping else places.lend(share)
        try:
            yield 0 if self.is_stopping else reserved or lent
        finally:
            places.give_back(reserved)
            places.end_loan(lent)
        await places.end_filled_reads()

    async def _queue_up(self) -> int:
        """Returns how many places were reserved; 0 if some can be lent, because a read that waits left them unused."""
        taking = asyncio.ensure_future(self.places.take(waits=False))
        try:
            while not taking.done() and not self.places.can_lend:
                await asyncio.wait([taking], timeout=LEND_S)
            return taking.result() if taking.done() else 0
        finally:
            taking.cancel()

    async def stop(self) -> None:
        """Stop reading, and end current reads without losing entries that they may just have received."""
        self.is_stopping = True
        for reader in self._readers.values():
            reader.hearing.told.set()
        await self._end_reads(self._readers.values())

    async def _end_reads(self, readers: Iterable[Reader]) -> None:
        """End the reads in progress: more than once, because one that is just being sent is not in the server yet."""
        clock = self.parts.clock
        patience_ends = clock.monotonic() + UNBLOCK_PATIENCE
        in_progress = {reader: reader.reads for reader in readers}
        while clock.monotonic() < patience_ends:
            in_progress = {
                reader: reads for reader, reads in in_progress.items() if reader.is_reading and reader.reads == reads
            }
            if not in_progress:
                return
            self.any_ended.clear()
            for reader in in_progress:
                with contextlib.suppress(ServerError):
                    await self.parts.transport.unblock(reader.transport)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNBLOCK_PAUSE):
                    await self.any_ended.wait()

    async def _end_waits(self) -> None:
        """End reads that wait in the server."""
        for reader in self._readers.values():
            if reader.is_waiting:
                with contextlib.suppress(ServerError):  # on failure it ends by itself
                    await self.parts.transport.unblock(reader.transport)

    async def idle(self) -> None:
        """Wait until all read deliveries have run."""
        await self._runs.idle()

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        await self._runs.abandon()

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.transport.close()


class Read(NamedTuple):
    """The result of one read."""

    started: int
    """Deliveries."""
    asked: int
    """Shards."""


class Reader:
    """Reads the shards of one slot over its own connection."""

    def __init__(self, transport: AsyncTransport, lane: ReadingLane) -> None:
        self.transport = transport
        self.shards: Sequence[ServedShard] = ()
        self.has_shards = asyncio.Event()
        """Set when there are shards to read again."""
        self.is_reading = False
        """Whether a read is in progress, which may have received entries."""
        self.reads = 0
        """How many reads have begun."""
        self.is_waiting = False
        """Whether that read keeps places while it waits in the server."""
        self._lane = lane
        self._parts = lane.parts
        self._waits = True  # the last read was not full: there is nothing more
        self._backlog = Backlog()
        self.hearing = Hearing(lane.parts.news)
        """Hints of new entries."""
        self._listened_at = float("-inf")
        self._read_all_at = float("-inf")
        self._look_at = float("inf")  # the next look for deliveries of a lost reply
        self._unsure_until = float("-inf")

    def follow(self, shards: Sequence[ServedShard]) -> None:
        """Read these shards from the next read on."""
        self.shards = shards
        self._backlog.follow(shards)
        self.hearing.follow(shards)
        self.has_shards.set()

    @property
    def _listens(self) -> bool:
        """Whether it listens, and reads shards that may have entries, rather than wait for all with reserved places."""
        return self._lane.is_limited or len(self.shards) > min(MANY, self._lane.settings.concurrency)

    async def run(self) -> None:
        """Read until stopped."""

        async def step() -> None:
            try:
                await self._look_for_lost()
                await self.step()
            except ServerError as error:
                self._doubt()
                if isinstance(error, GroupNotFound):
                    with contextlib.suppress(ServerError):
                        await self._regroup(self.shards)
                raise

        def what() -> str:
            return f"{', '.join(shard.keys.ready for shard in self.shards[:1])} is not read"

        await Loop(self._parts.clock, logger, what).run(step, is_over=lambda: self._lane.is_stopping)

    def _doubt(self) -> None:
        """Record that a reply may be lost, or that the server is another one."""
        self._look_at = now = self._parts.clock.monotonic()
        self._unsure_until = now + self._lane.settings.block_ms / 1000
        self._backlog.doubt()

    async def _look_for_lost(self) -> None:
        """Find the deliveries of a lost reply, between two reads. Raises: ServerError."""
        now = self._parts.clock.monotonic()
        if now >= self._look_at:
            await self._parts.recovery.look_after_lost_reply(self.shards)
            self._look_at = now + LOOK_APART if now < self._unsure_until else float("inf")

    @property
    def _block_ms(self) -> int:
        """How long the next read may wait in the server."""
        most = self._lane.places.block_ms
        return most if self._look_at == float("inf") else min(most, int(LOOK_APART * 1000))

    async def once(self) -> int:
        """Read every shard once, without waiting in the server. Returns how many came. Raises: ServerError."""
        started = asked = 0
        if self._listens:
            self._backlog.doubt()
            while self._backlog.unread(1):
                started += (await self.step()).started
            return started
        while asked < len(self.shards):
            self._waits = False
            read = await self.step()
            started, asked = started + read.started, asked + read.asked
        return started

    async def step(self) -> Read:
        """Read once, and start the deliveries. Raises: ServerError."""
        lane, parts = self._lane, self._parts
        while not self.shards:
            self.has_shards.clear()
            await self.has_shards.wait()
        if self._listens:
            return await self._listen_or_read()
        places = await lane.places.take(waits=self._waits, shards=len(self.shards))
        if lane.is_stopping:
            return Read(0, 0)
        block_ms = self._block_ms if self._waits and not lane.places.wanted else None
        # The limit holds for each stream. With less room than shards only some are asked, and others the next time.
        shards = self.shards[:places]
        if not shards:  # paused meanwhile
            lane.places.give_back(places)
            return Read(0, 0)
        if len(shards) < len(self.shards):
            self.shards = [*self.shards[places:], *shards]
            block_ms = SOME_SHARDS_MS
        count = places // len(shards)
        safe_until_ms = int(parts.server.now_ms()) + lane.settings.abandoned_ms - SAFETY_MS
        call = calls.read([shard.keys for shard in shards], parts.group, parts.name, count, block_ms)
        self.is_waiting = block_ms is not None
        try:
            found = await self._asked(call)
        finally:
            self.is_waiting = False
            lane.places.give_back(places)
        for shard, entries in zip(shards, found, strict=True):
            lane.start([Delivery(shard, entry, safe_until_ms) for entry in entries])
        self._waits = lane.places.is_alone or not any(len(entries) == count for entries in found)
        return Read(sum(map(len, found)), len(shards))

    async def _listen_or_read(self) -> Read:
        """Read shards that may have entries; if there are none, listen."""
        lane, parts = self._lane, self._parts
        now = parts.clock.monotonic()
        if now >= self._read_all_at:
            self._read_all_at = now + READ_ALL_EVERY
            self._backlog.doubt()
        if not self._backlog.unread(1):
            await self._listen()
            return Read(0, 0)
        places = await lane.places.take(waits=False)
        if lane.is_stopping:
            return Read(0, 0)
        shards = self._backlog.unread(READ_AT_ONCE)
        if not shards:  # paused meanwhile
            lane.places.give_back(places)
            return Read(0, 0)
        self.hearing.forget(shards)
        safe_until_ms = int(parts.server.now_ms()) + lane.settings.abandoned_ms - SAFETY_MS
        call = calls.read_some([shard.keys for shard in shards], parts.group, parts.name, places)
        try:
            found = await self._asked(call)
        finally:
            lane.places.give_back(places)
        failed = {}
        for shard, read in zip(shards, found, strict=False):  # the rest was not read for lack of room
            if isinstance(read, str):
                failed[shard] = read
            else:
                self._backlog.was_read(shard, read.last_id)
                lane.start([Delivery(shard, entry, safe_until_ms) for entry in read.entries])
        await self._mend(failed)
        return Read(sum(len(read.entries) for read in found if not isinstance(read, str)), len(found))

    async def _mend(self, failed: dict[ServedShard, str]) -> None:
        """Create missing groups again. Raises: Refused for any other error."""
        gone = [shard for shard, error in failed.items() if "NOGROUP" in error]
        for shard, error in failed.items():
            self._backlog.was_read(shard, "")  # after those that can be read
            if shard not in gone:
                raise Refused(f"{shard.keys.ready}: {error}")
        if gone:
            await self._regroup(gone)

    async def _regroup(self, shards: Sequence[ServedShard]) -> None:
        try:
            await self._lane.regroup(shards)
        finally:
            self.follow([shard for shard in self.shards if not shard.is_gone])

    async def _listen(self) -> None:
        """Wait until an entry has come to any of the shards, or the time for a read is over."""
        clock = self._parts.clock
        patience = self.hearing.patience(clock.monotonic()) if len(self.shards) > MANY else None
        too_soon = self._listened_at + (LISTEN_APART if patience is None else HEAR_APART) - clock.monotonic()
        if too_soon > 0:
            await clock.sleep(too_soon)
            if self._backlog.unread(1):  # a shard was added meanwhile
                return
        era = self._parts.news.era
        if patience is None:
            came = await self._listen_to_all(self._block_ms)
            if len(self.shards) > MANY and era == self._parts.news.era:  # else some came before hints were heard
                self.hearing.found(clock.monotonic(), came)
        elif patience > 0:
            await clock.wait(self.hearing.told, min(patience, self._block_ms / 1000))
            self._backlog.came(self.hearing.take())
        else:
            self.hearing.checked(clock.monotonic(), era, await self._listen_to_all(CHECK_MS))
        self._listened_at = clock.monotonic()

    async def _listen_to_all(self, block_ms: int) -> list[ServedShard]:
        """Wait until an entry has come to any shard that was read to its end; returns the shards to which one came."""
        shards, places = self._backlog.listening()
        if not shards or self._lane.is_stopping:
            return []
        came = [shards[place] for place in await self._asked(calls.listen(places, block_ms))]
        self._backlog.came(came)
        return came

    async def _asked(self, call: Call[T]) -> T:
        """Returns the answer to a read that can be ended while it waits."""
        self.is_reading = True
        self.reads += 1
        try:
            return await self.transport.send(call)
        finally:
            self.is_reading = False
            self._lane.any_ended.set()


class Backlog:
    """Which shards of one reader may hold unread entries, and how far the others have been read. Pure."""

    def __init__(self) -> None:
        self._unread: dict[ServedShard, None] = {}  # in the order in which they are read
        self._read_to: dict[ServedShard, str] = {}

    def follow(self, shards: Iterable[ServedShard]) -> None:
        """Replace the shards; new ones may hold unread entries."""
        now = dict.fromkeys(shards)
        self._read_to = {shard: last_id for shard, last_id in self._read_to.items() if shard in now}
        self._unread = {shard: None for shard in (*self._unread, *now) if shard in now and shard not in self._read_to}

    def doubt(self) -> None:
        """Mark all as unread: a reply was lost, or the server is another one."""
        self._unread = {**self._unread, **dict.fromkeys(self._read_to)}
        self._read_to = {}

    def unread(self, most: int) -> list[ServedShard]:
        """Returns the first shards that may hold unread entries."""
        return [shard for shard, _ in zip(self._unread, range(most), strict=False)]

    def was_read(self, shard: ServedShard, last_id: str) -> None:
        """Record that a shard was read up to the entry `last_id`; "": there may be more to read."""
        if self._unread.pop(shard, 0) is None:
            if last_id:
                self._read_to[shard] = last_id
            else:
                self._unread[shard] = None

    def listening(self) -> tuple[list[ServedShard], list[tuple[ShardKeys, str]]]:
        """Returns the fully read shards, and their keys with the last entry of each, after which to listen."""
        return list(self._read_to), [(shard.keys, last_id) for shard, last_id in self._read_to.items()]

    def came(self, shards: Iterable[ServedShard]) -> None:
        """Record that new entries came to these shards."""
        for shard in shards:
            if self._read_to.pop(shard, None) is not None:
                self._unread[shard] = None
