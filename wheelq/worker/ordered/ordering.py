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

Workers share the shards: a worker that holds at least two more than another that asks, or has had no free place for a
while, passes on a shard when none of its jobs is running. With fewer shards than workers, some have nothing to do.

The jobs run in the pool of the worker, within its limit. They start at once in free places, else in turn with the
readers of the other topics (`SharedPlaces`). Until then they are held like those that wait for an earlier job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from wheelq.errors import GroupNotFound, ServerError
from wheelq.protocol.calls import order as calls
from wheelq.protocol.calls.worker import listen
from wheelq.reminders import REMIND_S, Loop
from wheelq.worker.delivery.held import Delivery, Regroup, ServedShard
from wheelq.worker.delivery.limited import LimitedRuns
from wheelq.worker.delivery.parts import WorkerParts
from wheelq.worker.delivery.peers import OtherHolders, Standing
from wheelq.worker.delivery.places import SharedPlaces
from wheelq.worker.delivery.pool import Pool
from wheelq.worker.delivery.recovery import SAFETY_MS
from wheelq.worker.delivery.running import Running
from wheelq.worker.ordered.deliveries import OrderedDeliveries, OrderedState

STOP_PATIENCE = 1.0
"""How many seconds a stopping lane waits for the reply to a read."""


class OrderedLane:
    """The lane of a topic whose handler is ordered."""

    def __init__(
        self,
        parts: WorkerParts,
        running: Running,
        pool: Pool[Delivery] | LimitedRuns,
        places: SharedPlaces,
        regroup: Regroup,
        *,
        is_by_key: bool,
    ) -> None:
        """`pool` is the worker's, or the handler's part of it; its `places` the lane takes in turn with others."""
        self._parts = parts
        self._state = OrderedState(parts, pool, places, regroup, is_by_key, running.handle, self._advance)
        self._shards: dict[ServedShard, OrderedShard] = {}
        self._new: asyncio.Queue[OrderedShard] = asyncio.Queue()  # shards that `run` has not started yet
        self._loops: set[asyncio.Task[None]] = set()

    async def follow(self, shards: Sequence[ServedShard], block_ms: int) -> None:
        """Also serve these shards from now on, unless other workers hold them.

        A shard that is no longer among them belongs to a paused topic: it stays held, and starts nothing.
        """
        self._shards = {shard: ordered for shard, ordered in self._shards.items() if not shard.is_gone}
        for shard in shards:
            if shard not in self._shards:
                ordered = self._shards[shard] = OrderedShard(shard, self._state)
                self._new.put_nowait(ordered)
        for ordered in self._shards.values():
            ordered.look_again()

    async def run(self) -> None:
        """Serve the shards until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take_turns())
            while True:
                ordered = await self._new.get()
                loop = tasks.create_task(ordered.run())
                self._loops.add(loop)
                loop.add_done_callback(self._loops.discard)

    async def _take_turns(self) -> None:
        """Start deliveries that found no free place, in turn with the readers and the other ordered lanes."""
        state = self._state
        while True:
            await state.lacks_places.wait()
            places = await state.places.take_for_other()
            state.lacks_places.clear()
            self._advance(places)
            state.places.give_back(places)

    async def once(self) -> int:
        """For tests: hold every shard, and run the ready jobs one after another to their ends."""
        state = self._state
        state.started = 0
        for ordered in self._shards.values():
            await ordered.step()
        before = -1
        while before < state.started:
            before = state.started
            await self._rest()
            await self._parts.settler.flush()
        return state.started

    def next_ms(self) -> int | None:
        """When the first failed job runs again."""
        return min((ms for ordered in self._shards.values() if (ms := ordered.next_ms()) is not None), default=None)

    def start(self, deliveries: Sequence[Delivery]) -> None:
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
        await self._let_go()

    async def idle(self) -> None:
        """Wait until nothing runs here; other lanes may go on, so let the shards go."""
        await self._rest()
        await self._let_go()

    async def _rest(self) -> None:
        """Wait until no delivery of this lane is in the pool."""
        state = self._state
        while state.running:
            state.ended.clear()
            await state.ended.wait()

    async def _let_go(self) -> None:
        """Release the shards of which nothing runs, so that other workers need not wait for this one to end."""
        await asyncio.gather(*(ordered.let_go() for ordered in self._shards.values()))

    async def abandon(self) -> None:
        """Cancel what runs; it stays held."""
        await self._state.pool.abandon()

    async def close(self) -> None:
        """Release the shards."""
        for ordered in self._shards.values():
            await ordered.close()

    def _advance(self, reserved: int | None = None) -> None:
        """Start what may start, in free places, or in reserved ones; first in the shards that have waited longest."""
        for shard, ordered in list(self._shards.items()):
            if begun := ordered.advance(reserved):
                self._shards[shard] = self._shards.pop(shard)
                reserved = None if reserved is None else reserved - begun


logger = logging.getLogger("wheelq.worker")

FINISHED_AT_ONCE = 500
OVERDUE_PAUSE = 0.01
"""Seconds until the next check whether an overdue job has been promoted."""
HAND_OVER_PATIENCE = 1.0
"""Seconds within which a shard must come to rest to be passed on; else it is kept."""
LONG_WITHOUT_PLACE = 1.0
"""After so many seconds without a free place, a shard is passed on to a worker that asks for it."""
PASS_ON_BEATS = 3
"""At most one shard is passed on in this many `renew_ms`: the asker takes it in one, and reports that in the next."""


class OrderedShard:
    """Holds one shard if possible, and reads it meanwhile."""

    def __init__(self, shard: ServedShard, state: OrderedState) -> None:
        self.shard = shard
        self._is_held = False
        self._parts = parts = state.parts
        self._state = state
        self._transport = parts.transport.spare()  # its reads wait in the server
        self._changed = asyncio.Event()
        self._deliveries = OrderedDeliveries(shard, state, self._may_begin, self._changed.set)
        self._trusted_until = 0.0
        self._renew_at = 0.0
        self._told_at = float("-inf")
        self._is_unsure = True
        self._interruptions = 0
        self._is_busy = False
        self._last_id = "0-0"
        self._holders = OtherHolders(parts.settings)
        self._others: Sequence[str] = ()  # consumers that have deliveries of the shard
        self._given_up: list[Delivery] = []  # held until Redis confirms that they are handed back
        self._asker: str | None = None
        self._asked_at = 0.0
        self._bell: asyncio.Task[list[int]] | None = None

    @property
    def is_held(self) -> bool:
        """Whether this worker holds it, as far as it knows."""
        return self._is_held

    @is_held.setter
    def is_held(self, is_held: bool) -> None:
        self._state.holds += is_held - self._is_held
        self._is_held = is_held

    # --- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hold, read and start until stopped. Survives restarts of the server."""
        what = f"{self.shard.keys.ready} is not served"
        trying = Loop(self._parts.clock, logger, what)
        while not self._state.stopping.is_set() and not self.shard.is_gone:
            if pause := await trying.attempt(self._step_and_wait):
                await self._pause(pause)
        if self.shard.is_gone:
            self._deliveries.give_up()
            await self.close()  # the topic may take the shard back, and another worker may then hold it
            self.is_held = False

    async def _step_and_wait(self) -> None:
        try:
            await self.step()
            await self._wait()
        except ServerError as error:
            # It may have received deliveries in a lost reply: the next hold asks for all.
            self._is_unsure = True
            self._renew_at = 0.0
            self._parts.recovery.look_soon()
            if isinstance(error, GroupNotFound):
                with contextlib.suppress(ServerError):
                    await self._state.regroup([self.shard])
            raise

    async def step(self) -> None:
        """Take the shard or renew the hold when it is time; if held, read what fits and start what may start.

        Raises: ServerError.
        """
        parts = self._parts
        if not self.is_held or parts.clock.monotonic() >= self._renew_at:
            await self._hold()
        if not self.is_held:
            await self._leave_nothing()
        elif self._asker is not None:
            await self._pass_on(self._asker)
        elif not self._is_at_rest and (room := self._state.read_ahead - len(self._deliveries)) > 0:
            await self._read(room)
        self.advance()

    async def _wait(self) -> None:
        """Wait until it is time to renew, or there are entries to read and room for them."""
        parts = self._parts
        left = max(0.001, self._renew_at - parts.clock.monotonic())
        if not self.is_held:
            await self._pause(left)
        elif self._is_busy or self._asker is not None or self._deliveries.overdue_ms is not None:
            await self._pause(min(left, OVERDUE_PAUSE))
        elif self.shard.topic.paused or len(self._deliveries) >= self._state.read_ahead:
            self._tell_if_stuck()
            await self._pause(left)
        elif not self._state.stopping.is_set():
            call = listen([(self.shard.keys, self._last_id)], max(1, int(left * 1000)))
            self._bell = asyncio.create_task(self._transport.send(call))
            try:
                await asyncio.wait([self._bell])
            except asyncio.CancelledError:
                self._bell.cancel()
                raise
            if not self._bell.cancelled():
                self._bell.result()

    def _tell_if_stuck(self) -> None:
        """Warn, at most once a minute, if jobs of all other keys wait behind those of keys whose first job failed."""
        deliveries, now = self._deliveries, self._parts.clock.monotonic()
        is_full = self._state.is_by_key and len(deliveries) >= self._state.read_ahead and not deliveries.is_running
        may_start = not self.shard.topic.paused and deliveries.lacks_for_s <= 0  # as far as others are concerned
        if is_full and may_start and now >= self._told_at + REMIND_S:
            self._told_at = now
            what = "%s: %d jobs wait behind failed ones of their keys; until one of these has ended, no more are read"
            logger.warning(what, self.shard.keys.ready, len(deliveries))

    async def _pause(self, seconds: float) -> None:
        """Sleep until a delivery has ended, at most `seconds`."""
        self._changed.clear()
        if not self._state.stopping.is_set():
            await self._parts.clock.wait(self._changed, seconds)

    def stop(self) -> None:
        """Start no more deliveries, and cut off a wait in the server, which consumes nothing."""
        self._deliveries.stop()
        self._changed.set()
        if self._bell is not None:
            self._bell.cancel()

    # --- hold, read, let go ----------------------------------------------------------------------------------------

    async def _hold(self) -> None:
        """Take the shard, or renew the hold on it, unless another worker holds it."""
        parts, settings = self._parts, self._parts.settings
        asked_at, asked_ms = parts.clock.monotonic(), int(parts.server.now_ms())
        finished = self._deliveries.finished[:FINISHED_AT_ONCE]
        interruptions = parts.transport.interruptions
        if self.shard.has_lost or interruptions != self._interruptions:
            # A fail-over or a restart may have lost acknowledgements, or brought back the next runs of what had ended.
            self.shard.has_lost, self._interruptions, self._is_unsure = False, interruptions, True
        tell_own = self._is_unsure or not self.is_held
        call = calls.hold(
            self.shard.keys,
            parts.group,
            parts.name,
            settings.abandoned_ms,
            self._state.holds,
            tell_own=tell_own,
            finished=finished,
            over=self._holders.over,
            gone=[name for name in self._others if parts.peers.standing(name) is Standing.GONE],
            unknown=[name for name in self._others if parts.peers.standing(name) is Standing.UNKNOWN],
        )
        hold = await parts.transport.send(call)
        self._others = hold.others
        if hold.is_held:
            del self._deliveries.finished[: len(finished)]
            await self._granted(hold, asked_at, asked_ms)
            return
        if self.is_held:
            await self._lose()
        self._renew_at = asked_at + self._holders.next_ask(parts.clock.monotonic(), hold.held)

    async def _granted(self, hold: calls.Hold, asked_at: float, asked_ms: int) -> None:
        """Take the hold that was granted, and the deliveries of workers that are gone."""
        parts, settings = self._parts, self._parts.settings
        self._holders.forget()
        parts.server.observe(asked_at, hold.server_us)
        self._drop_what_was_given_up()  # the reply lists those that this consumer still has
        self.is_held = True
        self._trusted_until = asked_at + (settings.abandoned_ms - SAFETY_MS) / 1000
        self._renew_at = asked_at + (settings.renew_ms / 1000 if not hold.is_busy else OVERDUE_PAUSE * 5)
        self._is_busy = True  # nothing starts before all deliveries taken over have their places
        await self._take_over(hold.entry_ids, asked_ms)
        self._is_busy = hold.is_busy
        if self._is_unsure:
            await self._tidy()
        self._is_unsure = False
        is_uneven = self._state.holds - hold.asker_holds >= 2 or self._deliveries.lacks_for_s > LONG_WITHOUT_PLACE
        if self._asker is None and hold.asker is not None and is_uneven and asked_at >= self._state.next_pass_at:
            self._asker, self._asked_at = hold.asker, asked_at
            self._state.next_pass_at = asked_at + PASS_ON_BEATS * settings.renew_ms / 1000

    async def _take_over(self, entry_ids: Sequence[str], asked_ms: int) -> None:
        """Place deliveries that were taken over. Asks first which failed before: adopted ones do not come again."""
        parts = self._parts
        for first in range(0, len(entry_ids), 500):
            ids = entry_ids[first : first + 500]
            before = await parts.transport.send(calls.put_off_before(self.shard.keys, parts.group, ids))
            put_off = dict(zip(ids, before, strict=True))
            for delivery in await parts.recovery.adopt(self.shard, ids, asked_ms, counts=False):
                self._deliveries.add(delivery, put_off[delivery.entry.entry_id])

    async def _tidy(self) -> None:
        """Forget the next runs that a killed holder left behind."""
        parts, cursor = self._parts, "0"
        while (cursor := await parts.transport.send(calls.tidy(self.shard.keys, parts.group, cursor))) != "0":
            pass

    async def _read(self, room: int) -> None:
        parts = self._parts
        safe_until_ms = int(parts.server.now_ms()) + parts.settings.abandoned_ms - SAFETY_MS
        found = await parts.transport.send(calls.read_held(self.shard.keys, parts.group, parts.name, room))
        if found is None:
            await self._lose()
            return
        self._last_id = found.last_id
        self._deliveries.wait_for(found.overdue_ms)
        for entry in found.entries:
            delivery = Delivery(self.shard, entry, safe_until_ms)
            parts.held.add(delivery)
            self._deliveries.add(delivery, None)

    async def _lose(self) -> None:
        """Another worker holds the shard, and waits for deliveries that run here: hand back those not started."""
        self.is_held = False
        self._asker = None
        self._renew_at = 0.0
        self._is_unsure = True
        await self._leave_nothing()

    async def _pass_on(self, asker: str) -> None:
        """Pass the shard on to the worker that asks for it, once none of its jobs is running."""
        parts = self._parts
        if self._deliveries.is_running:
            if parts.clock.monotonic() - self._asked_at > HAND_OVER_PATIENCE:
                self._asker = None
            return
        await self._lose()
        self._renew_at = parts.clock.monotonic() + parts.settings.renew_ms / 1000
        call = calls.let_go(self.shard.keys, parts.group, parts.name, asker, parts.settings.abandoned_ms)
        await parts.transport.send(call)
        logger.info("%s is passed on to %s", self.shard.keys.ready, asker)

    async def _leave_nothing(self) -> None:
        """Hand back deliveries that do not run, and forget those that have ended: another worker holds the shard.

        This includes deliveries that fail later: if they were renewed, the holder would wait for them for ever.
        """
        self._given_up += self._deliveries.give_up()
        if self._given_up:
            entry_ids = [delivery.entry.entry_id for delivery in self._given_up]
            await self._parts.settler.hand_back(self.shard, entry_ids)
            self._drop_what_was_given_up()
        await self._forget_finished()

    def _drop_what_was_given_up(self) -> None:
        for delivery in self._given_up:
            self._parts.held.drop(delivery)
        self._given_up.clear()

    async def _forget_finished(self) -> None:
        """Remove the next runs of deliveries that have ended from the shard's hash."""
        while finished := self._deliveries.finished[:FINISHED_AT_ONCE]:
            await self._parts.transport.send(calls.forget(self.shard.keys, self._parts.group, finished))
            del self._deliveries.finished[: len(finished)]

    async def let_go(self) -> None:
        """Hand back what waits here and release the shard, if nothing of it runs. For a worker that stops."""
        if self.is_held and not self._deliveries.is_running:
            with contextlib.suppress(ServerError):
                await self._leave_nothing()
                await self._release()

    async def _release(self) -> None:
        parts = self._parts
        await parts.transport.send(calls.let_go(self.shard.keys, parts.group, parts.name, None, 0))
        self.is_held = False

    async def close(self) -> None:
        """Release the shard, after its deliveries were handed back."""
        with contextlib.suppress(ServerError):
            await self._forget_finished()
        if self.is_held:
            with contextlib.suppress(ServerError):
                await self._release()
        await self._transport.close()

    @property
    def _is_at_rest(self) -> bool:
        """Whether no delivery may start although the shard is held."""
        is_leaving = self._state.stopping.is_set() or self._asker is not None
        return is_leaving or self._is_busy or self.shard.topic.paused

    def _may_begin(self) -> bool:
        return self.is_held and not self._is_at_rest and self._parts.clock.monotonic() < self._trusted_until

    def look_again(self) -> None:
        """Look again, because the topic may have been paused or resumed."""
        self._changed.set()
        self.advance()

    def advance(self, reserved: int | None = None) -> int:
        """Start the deliveries whose turn it is, in free places, or in reserved ones. Returns how many started."""
        return self._deliveries.advance(reserved)

    def next_ms(self) -> int | None:
        """When the first failed job runs again."""
        return self._deliveries.next_ms()
