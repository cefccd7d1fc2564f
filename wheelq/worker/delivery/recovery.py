"""Renews the deliveries that run here, and takes over those of consumers that are gone.

    a worker is gone      its heartbeat stopped (`peers`): a look finds its deliveries, and claims them all, once
                          its heartbeat was read again
    a read was lost       its deliveries are known to no worker: its reader looks for them before it reads again
    a claim was lost      the same: two looks `abandoned_ms` apart find them
    no heartbeat          a consumer in another language: a look every `LOOK_EVERY` seconds finds unrenewed deliveries

A look asks which consumers hold deliveries, for many shards in one call, so that a worker at rest costs next to
nothing. Deliveries of live workers are never claimed. Workers renew them anyway: so a worker that was frozen and
considered dead learns what it has lost, and workers in other languages see that it is alive.

Each shard is handled separately: while its cluster node is away, deliveries on other nodes are renewed in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

from wheelq import reminders
from wheelq.base.plural import counted
from wheelq.errors import GroupNotFound, ServerError
from wheelq.model.dead import Reason
from wheelq.protocol.calls import heartbeats
from wheelq.protocol.calls import worker as calls
from wheelq.worker.delivery.held import Consumer, Delivery, ServedShard, Start, in_calls
from wheelq.worker.delivery.peers import Standing
from wheelq.worker.delivery.settling import Settler
from wheelq.worker.outcome import Buried

logger = logging.getLogger("wheelq.worker")

Turn = Callable[[ServedShard], AbstractAsyncContextManager[int]]
"""Waits until deliveries of the shard could start. Yields how many."""

BATCH = 500
LOOK_EVERY = 45.0
"""Seconds between looks: unrenewed deliveries of a consumer without a heartbeat are claimed within a minute."""
LOOK_AGAIN_BEATS = 10
"""If consumers without a heartbeat hold deliveries, the next look comes after this many `renew_ms`."""
LOOK_AT = 100
"""How many shards one call looks at."""
LEAST_SUSPECT = 3
"""A job delivered more often than this, and than half of `max_deliveries`, is suspected of killing its workers."""
SAFETY_MS = 200
"""A margin for bounds by the server's clock, which this worker only estimates."""


@dataclass(slots=True, eq=False)
class _Found:
    """The result of a look at one shard."""

    gone: list[str] = field(default_factory=list)
    """Consumers that are gone."""
    unknown: list[str] = field(default_factory=list)
    """Consumers of unknown state."""
    lost: list[str] = field(default_factory=list)
    """Entry ids of this consumer's own deliveries that it does not hold."""

    def __bool__(self) -> bool:
        return bool(self.gone or self.unknown or self.lost)


class Recovery:
    """Renews held deliveries, and claims abandoned ones."""

    def __init__(self, consumer: Consumer, settler: Settler) -> None:
        self._me = consumer
        self._settler = settler
        self._found: dict[ServedShard, _Found] = {}
        self._unseen: dict[ServedShard, dict[str, float]] = {}
        """Entry ids of own deliveries that are not held, and when each was first found."""
        self._claiming: dict[ServedShard, asyncio.Task[None]] = {}
        self._known: frozenset[ServedShard] = frozenset()
        self._suspect: Delivery | None = None  # delivered so often that it may be killing its workers
        self._look_at = float("-inf")
        self._woken = asyncio.Event()

    def look_soon(self) -> None:
        """Look now which consumer holds what: a worker may be gone, or a reply was lost."""
        self._look_at = float("-inf")
        self._woken.set()

    async def run(self, shards: Callable[[], Sequence[ServedShard]], turn: Turn, start: Start) -> None:
        """Renew and claim until cancelled. `turn(shard)` waits for room, `start(deliveries)` starts claimed deliveries.

        Renewing does not wait for claiming, which may have to wait for a long time if all places are taken.
        """
        keeping: dict[ServedShard, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                look_in = self._look_at - self._me.clock.monotonic()
                await self._me.clock.wait(self._woken, min(self._me.settings.renew_ms / 1000, look_in))
                self._woken.clear()
                for shard in self._me.held.shards():
                    if shard not in keeping or keeping[shard].done():
                        keeping[shard] = tasks.create_task(self._look_after(shard))
                served = list(shards())
                await self._look_if_due(served)
                for shard in filter(self._found.__contains__, served):
                    if not self._is_claiming(shard):
                        self._claiming[shard] = tasks.create_task(self._take_over(shard, turn, start))

    async def _look_after(self, shard: ServedShard) -> None:
        try:
            await self.keep(shard)
        except ServerError as error:
            reminders.warn(logger, f"deliveries of {shard.keys.ready} are not renewed", error)

    async def keep(self, shard: ServedShard) -> None:
        """Renew the held deliveries of a shard, and drop those that another worker has taken. Raises: ServerError."""
        held = self._me.held.of(shard)
        entry_ids = list(held)
        for first in range(0, len(entry_ids), BATCH):
            asked_at = self._me.clock.monotonic()
            part = entry_ids[first : first + BATCH]
            server_us, lost = await self._me.transport.send(calls.keep(shard.keys, self._me.group, self._me.name, part))
            self._me.server.observe(asked_at, server_us)
            for entry_id in lost:
                if held.pop(entry_id, None):
                    logger.warning("delivery %s of %s was given to another worker", entry_id, shard.keys.topic)
            safe_until_ms = server_us // 1000 + self._me.settings.abandoned_ms - SAFETY_MS
            for entry_id in part:
                if entry_id in held:
                    held[entry_id].safe_until_ms = safe_until_ms

    # --- looking ---------------------------------------------------------------------------------------------------

    async def _look_if_due(self, shards: Sequence[ServedShard]) -> None:
        now = self._me.clock.monotonic()
        if now < self._look_at and self._known.issuperset(shards):
            return
        self._look_at = now + LOOK_EVERY
        try:
            await self.look(shards)
        except ServerError as error:
            self._look_at = now + self._me.settings.renew_ms / 1000
            reminders.warn(logger, "nothing is taken over", error)
        else:
            self._known = frozenset(shards)

    async def look_after_lost_reply(self, shards: Iterable[ServedShard]) -> None:
        """Look for deliveries of lost replies, while none of the shards is read. Raises: ServerError."""
        await self.look(shards, are_read=False)
        self._woken.set()

    async def look(self, shards: Iterable[ServedShard], *, are_read: bool = True) -> None:
        """Find shards with deliveries to take over. Raises: ServerError.

        Without `are_read` no reader is reading any of them, so nothing is on its way to this worker.
        """
        for some in in_calls(shards, self._me.transport.slot, LOOK_AT):
            held = await self._me.transport.send(calls.holders([shard.keys for shard in some], self._me.group))
            for shard, holders in zip(some, held, strict=True):
                await self._weigh(shard, holders, are_read)

    async def _weigh(self, shard: ServedShard, holders: Mapping[str, int], is_read: bool) -> None:
        found = _Found()
        for consumer in holders.keys() - {self._me.name}:
            match self._me.peers.standing(consumer):
                case Standing.GONE:
                    found.gone.append(consumer)
                case Standing.UNKNOWN:
                    found.unknown.append(consumer)
        if found.unknown:
            again = self._me.clock.monotonic() + LOOK_AGAIN_BEATS * self._me.settings.renew_ms / 1000
            self._look_at = min(self._look_at, again)
        if holders.get(self._me.name, 0) > len(self._me.held.of(shard)):
            found.lost = await self._look_for_lost(shard, is_read)
        else:
            self._unseen.pop(shard, None)
        if found:
            self._found[shard] = found
        else:
            self._found.pop(shard, None)

    async def _look_for_lost(self, shard: ServedShard, is_read: bool) -> list[str]:
        """Returns deliveries made to this worker that it does not hold, because a reply was lost.

        A delivery whose reply is still on its way must not be among them: while the shard is read, or claimed from,
        only those count that were made long ago.
        """
        held = self._me.held.of(shard)
        known, may_come = set(held), is_read or self._is_claiming(shard)
        most = len(held) + BATCH
        own = await self._me.transport.send(calls.own(shard.keys, self._me.group, self._me.name, most))
        now, before = self._me.clock.monotonic(), self._unseen.get(shard, {})
        known.update(held)  # some may have been settled meanwhile, and some claimed
        unseen = self._unseen[shard] = {id: before.get(id, now) for id in own if id not in known}
        may_come |= self._is_claiming(shard)
        lost_after = self._me.settings.abandoned_ms / 1000 if may_come else 0.0
        lost = [entry_id for entry_id, since in unseen.items() if now - since >= lost_after]
        if len(lost) < len(unseen) or len(own) == most:  # some do not count yet, or there are more of them
            self._look_at = min(self._look_at, now + lost_after)
        return lost

    def _is_claiming(self, shard: ServedShard) -> bool:
        return shard in self._claiming and not self._claiming[shard].done()

    # --- claiming --------------------------------------------------------------------------------------------------

    async def _take_over(self, shard: ServedShard, turn: Turn, start: Start) -> None:
        """Take over the deliveries found in a shard, as far as there is room."""
        try:
            while shard in self._found:
                async with turn(shard) as places:
                    if not places:  # others get what this worker may not start: the holder of an ordered shard
                        await self._settler.hand_back(shard, self._found[shard].lost)
                        shard.has_lost |= bool(self._found[shard].lost)
                        self._found[shard].lost = []
                        return
                    start(await self.claim(shard, min(places, BATCH)))
        except ServerError as error:
            self.look_soon()  # the reply may have been lost
            reminders.warn(logger, f"{shard.keys.ready} is not searched", error)

    async def claim(self, shard: ServedShard, count: int) -> list[Delivery]:
        """Take over up to `count` of the deliveries found in a shard; those delivered too often are buried.

        Raises: ServerError.
        """
        found = self._found.get(shard)
        if found is None:
            return []
        asked_ms = int(self._me.server.now_ms())
        entry_ids, found.lost = found.lost[:count], found.lost[count:]
        for entry_id in entry_ids:
            self._unseen.get(shard, {}).pop(entry_id, None)
        entry_ids += await self._claim_of_others(shard, found, count - len(entry_ids))
        if not found and self._found.get(shard) is found:
            del self._found[shard]
        return await self._one_suspect(shard, await self.adopt(shard, entry_ids, asked_ms))

    async def _one_suspect(self, shard: ServedShard, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Returns the deliveries to start, at most one of them suspected of killing workers; hands back other suspects.

        Jobs that run beside such a job would be delivered as often, and be buried in the end. Raises: ServerError.
        """
        chosen: list[Delivery] = []
        others: list[Delivery] = []
        for delivery in deliveries:
            (others if self.is_second_suspect(delivery, delivery.entry.deliveries) else chosen).append(delivery)
        if others:
            for delivery in others:
                self._me.held.drop(delivery)
            await self._settler.hand_back(shard, [delivery.entry.entry_id for delivery in others])
            self.look_soon()
        return chosen

    def is_second_suspect(self, delivery: Delivery, deliveries: int) -> bool:
        """Whether a job delivered this often is suspected of killing workers, while another such one comes first."""
        if deliveries > max(LEAST_SUSPECT, self._me.settings.max_deliveries // 2):
            if self._suspect is None or self._suspect not in self._me.held:
                self._suspect = delivery
            return self._suspect is not delivery
        return False

    def ended(self, delivery: Delivery) -> None:
        """Record that the run of a delivery has ended here, which may stay held: it is no suspect any more."""
        if self._suspect is delivery:
            self._suspect = None

    async def _claim_of_others(self, shard: ServedShard, found: _Found, count: int) -> list[str]:
        standing = self._me.peers.standing
        found.gone = [name for name in found.gone if standing(name) is Standing.GONE]  # perhaps only frozen
        found.unknown = [name for name in found.unknown if standing(name) is Standing.UNKNOWN]
        if count and found.gone:  # one may have been frozen, and read again before this worker has heard of it
            beats = dict[str, str]()
            with suppress(ServerError):  # then nobody can beat either
                beats = await self._me.transport.send(heartbeats.beats(self._me.keys))
            found.gone = self._me.peers.still_silent(found.gone, beats)
        if not count or not (found.gone or found.unknown):
            return []
        keys, abandoned_ms = shard.keys, self._me.settings.abandoned_ms
        call = calls.take_over(keys, self._me.group, self._me.name, count, abandoned_ms, found.gone, found.unknown)
        taken = await self._me.transport.send(call)
        if len(taken) < count:
            found.gone, found.unknown = [], []
        return taken

    async def adopt(
        self, shard: ServedShard, entry_ids: Sequence[str], asked_ms: int, *, counts: bool = True
    ) -> list[Delivery]:
        """Returns the deliveries that a call at `asked_ms` gave to this worker, without those it held before.

        Deliveries made too often are buried. Without `counts`, their starts are counted later, by `count`. Raises:
        ServerError.
        """
        new = [entry_id for entry_id in entry_ids if entry_id not in self._me.held.of(shard)]
        if not new:
            return []
        entries = await self._me.transport.send(
            calls.adopt(shard.keys, self._me.group, self._me.name, new, counts=counts)
        )
        safe_until_ms = asked_ms + self._me.settings.abandoned_ms - SAFETY_MS
        deliveries = []
        for entry in entries:
            delivery = Delivery(shard, entry, safe_until_ms, is_redelivered=True, is_counted=counts)
            self._me.held.add(delivery)
            if not (counts and await self._is_given_up(delivery, entry.deliveries)):
                deliveries.append(delivery)
        if deliveries:
            found = counted(len(deliveries), "abandoned delivery", "abandoned deliveries")
            logger.info("took over %s of %s", found, shard.keys.topic)
        return deliveries

    async def count(self, delivery: Delivery) -> None:
        """Count the start of an adopted delivery; given up or lost, it is not held any more. Raises: ServerError."""
        keys, entry_id = delivery.shard.keys, delivery.entry.entry_id
        try:
            found = await self._me.transport.send(calls.adopt(keys, self._me.group, self._me.name, [entry_id]))
        except GroupNotFound:
            found = []
        if not found:
            self._me.held.drop(delivery)
        else:
            await self._is_given_up(delivery, found[0].deliveries)

    async def _is_given_up(self, delivery: Delivery, deliveries: int) -> bool:
        """Bury a delivery that was made too often; returns whether it was."""
        if deliveries <= self._me.settings.max_deliveries:
            return False
        error = f"delivered {counted(deliveries - 1, 'time')} without an answer"
        await self._settler.settle(delivery, Buried(Reason.DELIVERIES, error))
        return True
