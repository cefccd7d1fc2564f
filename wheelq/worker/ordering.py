"""Handlers with `ordered=`: the jobs of a shard, or of a partition key, run one at a time and in due order.

    hold ──▶ read_held ──▶ Sequence ──▶ pool ──▶ handler ──▶ settled ──▶ the next one may start
     every renew_ms          ▲                      │ failed: keeps its place, runs again after its pause
                             └──────────────────────┘

Of all workers of a group one *holds* a shard: a lease in Redis, in the shard's own slot. Only the holder may read,
which is compared in the script that reads, so a worker that was frozen past its lease gets nothing out of turn. All
that was read stays pending until it is done, also while it waits for a retry. Who takes the lease next takes that over,
in its old places and with its attempts, before it reads anything new: what was not renewed for `abandoned_ms` it
claims, and for what is renewed still it waits, so that a job of the former holder that runs on is not overtaken. An
acknowledgement is accepted from the delivery's owner alone.

A job starts when Redis has acknowledged the one before it, so what is repeated after a crash is never older than what
has begun since. Due order is that of promotion; where a job is overdue in the sorted set, those due after it wait for
it, at most `PATIENCE` seconds: a paused or stalled scheduler must not stop what is ready.

Workers share the shards: one that holds at least two more than another that asks passes a shard on, when nothing of it
is running. With fewer shards than workers, some workers have nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager
from typing import Any

from wheelq.worker.course import Course
from wheelq.worker.ground import Ground
from wheelq.worker.held import Delivery, Line
from wheelq.worker.ordered_shard import OrderedShard
from wheelq.worker.pool import Pool
from wheelq.worker.settling import LONGEST_PAUSE


class OrderedLane:
    """The lane of a topic whose handler is ordered."""

    def __init__(
        self, ground: Ground, run: Callable[[Delivery], Coroutine[Any, Any, None]], *, is_by_key: bool
    ) -> None:
        """`run` settles one delivery and does not raise."""
        self._ground = ground
        self._course = Course(is_by_key)
        self._pool: Pool[Delivery] = Pool(ground.settings.concurrency, self._run_one)
        self._run = run
        self._started = 0
        self._shards: dict[Line, OrderedShard] = {}
        self._new: asyncio.Queue[OrderedShard] = asyncio.Queue()  # those that `run` has not started yet
        self._loops: set[asyncio.Task[None]] = set()

    async def follow(self, lines: SequenceOf[Line], block_ms: int) -> None:
        """From now on serve these shards too, as far as other workers do not hold them.

        One that is no more among them belongs to a paused topic: it stays held, and begins nothing.
        """
        for line in lines:
            if line not in self._shards:
                shard = self._shards[line] = OrderedShard(line, self._ground, self._course, self._pool)
                self._new.put_nowait(shard)
        for shard in self._shards.values():
            shard.look_again()

    async def run(self) -> None:
        """Serve them until cancelled."""
        async with asyncio.TaskGroup() as shards:
            while True:
                shard = await self._new.get()
                loop = shards.create_task(shard.run())
                self._loops.add(loop)
                loop.add_done_callback(self._loops.discard)

    async def once(self) -> int:
        """For tests: hold every shard, and run what is ready, one after the other, to its end."""
        self._started = 0
        for shard in self._shards.values():
            await shard.step()
        before = -1
        while before < self._started:
            before = self._started
            await self._pool.idle()
            await self._ground.settler.flush()
        return self._started

    def next_ms(self) -> int | None:
        """When the first job that failed runs again."""
        return min((ms for shard in self._shards.values() if (ms := shard.next_ms()) is not None), default=None)

    def start(self, deliveries: SequenceOf[Delivery]) -> None:
        """Never asked: no turn has room."""

    @asynccontextmanager
    async def turn(self, line: Line) -> AsyncIterator[int]:
        """None: what is abandoned is taken over by who holds the shard."""
        yield 0

    async def stop(self) -> None:
        """Read and start nothing more, and wait until what is being read is known."""
        self._course.stopping.set()
        for shard in self._shards.values():
            shard.stop()
        if self._loops:
            await asyncio.wait(self._loops, timeout=LONGEST_PAUSE)

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self._pool.idle()

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        await self._pool.abandon()

    async def close(self) -> None:
        """Let the shards go."""
        for shard in self._shards.values():
            await shard.close()

    async def _run_one(self, delivery: Delivery) -> None:
        self._started += 1
        try:
            await self._run(delivery)
        finally:  # soon: its place in the pool is free when this coroutine has ended
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        for shard in self._shards.values():
            shard.advance()
