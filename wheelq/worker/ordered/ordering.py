"""Handlers with `ordered=`: the jobs of a shard, or of a partition key, run one at a time and in due order.

    hold ──▶ read_held ──▶ Sequence ──▶ pool ──▶ handler ──▶ settled ──▶ the next one may start
     every renew_ms          ▲                      │ failed: keeps its place, runs again after its pause
                             └──────────────────────┘

One worker of a group *holds* a shard by a lease in Redis, in the shard's own slot. Only the holder may read. The script
that reads checks this, so a worker that was frozen past its lease reads nothing out of turn. A delivery stays pending
until it is done, even while it waits for a retry. The next holder takes over pending deliveries, in their old places
and with their attempts, before it reads new ones. It claims those of workers that are gone, and waits for those of live
workers, so that no job overtakes one that still runs at the former holder. A hold ends when its holder has not renewed
it for `abandoned_ms`, by the clock of the worker that watches it. Redis accepts an acknowledgement only from the owner
of the delivery.

A job starts after Redis has acknowledged the previous one, so a job repeated after a crash is never older than a job
that has started since. Due order is the order of promotion. If a job is overdue in the sorted set, later ones wait for
it, at most `PATIENCE` seconds: a paused or stalled scheduler must not stop ready jobs.

Workers share the shards: a worker that holds at least two more than another that asks passes on a shard when none of
its jobs is running. With fewer shards than workers, some workers have nothing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from wheelq.worker.delivery.held import Delivery, Regroup, ServedShard
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.pool import Pool
from wheelq.worker.ordered.deliveries import OrderedState
from wheelq.worker.ordered.shard import OrderedShard

STOP_PATIENCE = 1.0
"""How many seconds a stopping lane waits for the reply to a read."""


class OrderedLane:
    """The lane of a topic whose handler is ordered."""

    def __init__(
        self,
        parts: WorkerParts,
        run: Callable[[Delivery, asyncio.Task[None]], Coroutine[Any, Any, None]],
        held_loop: Callable[[Delivery, float], None],
        regroup: Regroup,
        *,
        is_by_key: bool,
    ) -> None:
        """`run` and `held_loop` are as for `Pool`."""
        self._parts = parts
        self._state = OrderedState(regroup, is_by_key)
        self._pool: Pool[Delivery] = Pool(parts.settings.concurrency, self._run_one, held_loop, parts.clock)
        self._run = run
        self._started = 0
        self._shards: dict[ServedShard, OrderedShard] = {}
        self._new: asyncio.Queue[OrderedShard] = asyncio.Queue()  # shards that `run` has not started yet
        self._loops: set[asyncio.Task[None]] = set()

    async def follow(self, shards: SequenceOf[ServedShard], block_ms: int) -> None:
        """Also serve these shards from now on, unless other workers hold them.

        A shard that is no longer among them belongs to a paused topic: it stays held, and starts nothing.
        """
        self._shards = {shard: ordered for shard, ordered in self._shards.items() if not shard.is_gone}
        for shard in shards:
            if shard not in self._shards:
                ordered = self._shards[shard] = OrderedShard(shard, self._parts, self._state, self._pool)
                self._new.put_nowait(ordered)
        for ordered in self._shards.values():
            ordered.look_again()

    async def run(self) -> None:
        """Serve the shards until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                ordered = await self._new.get()
                loop = tasks.create_task(ordered.run())
                self._loops.add(loop)
                loop.add_done_callback(self._loops.discard)

    async def once(self) -> int:
        """For tests: hold every shard, and run the ready jobs one after another to their ends."""
        self._started = 0
        for ordered in self._shards.values():
            await ordered.step()
        before = -1
        while before < self._started:
            before = self._started
            await self._pool.idle()
            await self._parts.settler.flush()
        return self._started

    def next_ms(self) -> int | None:
        """When the first failed job runs again."""
        return min((ms for ordered in self._shards.values() if (ms := ordered.next_ms()) is not None), default=None)

    def start(self, deliveries: SequenceOf[Delivery]) -> None:
        """Never called: `turn` never has room."""

    @asynccontextmanager
    async def turn(self, shard: ServedShard) -> AsyncIterator[int]:
        """Yields no room, because the holder of the shard takes over abandoned deliveries."""
        yield 0

    async def stop(self) -> None:
        """Read and start nothing more, and wait for the replies to current reads."""
        self._state.stopping.set()
        for ordered in self._shards.values():
            ordered.stop()
        if self._loops:
            await asyncio.wait(self._loops, timeout=STOP_PATIENCE)

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self._pool.idle()

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        await self._pool.abandon()

    async def close(self) -> None:
        """Release the shards."""
        for ordered in self._shards.values():
            await ordered.close()

    async def _run_one(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        self._started += 1
        try:
            if delivery.turn_keeper is not None:
                await self._parts.ending.finish(partial(delivery.turn_keeper.until_due, delivery))
                if not delivery.turn_keeper.may_run(delivery):  # this worker was frozen after the delivery was chosen
                    return
            await self._run(delivery, task)
        finally:  # soon, because its place in the pool is free after this coroutine
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        for ordered in self._shards.values():
            ordered.advance()
