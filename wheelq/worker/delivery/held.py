"""A worker as one consumer of its group, and the deliveries that it holds: not yet confirmed as settled by Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from wheelq.base.clock import Clock, ServerClock
from wheelq.model.topic import Topic
from wheelq.protocol.call import Call
from wheelq.protocol.calls.worker import Counted, Entry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import ClientSettings, TopicSettings, WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.delivery.peers import Peers

if TYPE_CHECKING:
    from wheelq.following.carrier import Carrier
    from wheelq.following.notes import Notes
    from wheelq.telemetry.spans import Processing


@dataclass(slots=True, eq=False)
class ServedShard:
    """One shard of a topic that a worker serves."""

    keys: ShardKeys
    topic: Topic
    """The topic as last read."""
    is_gone: bool = False
    """Whether the topic, or this worker's group in it, was removed, or the topic has given up this shard."""
    has_lost: bool = False
    """Whether this worker has handed back deliveries that it did not know of. If it holds an ordered shard, they return
    to this worker, which must ask for them."""


class TurnKeeper(Protocol):
    """Keeps the places of deliveries in a shard that runs in order."""

    def put_off(self, delivery: Delivery, pause_ms: int, record: bytes, counted: Counted) -> Call[int]:
        """Returns the call to make instead of `retry`: the delivery stays pending, in its place."""
        ...

    def again(self, delivery: Delivery, record: bytes, due_ms: int) -> None:
        """Record that Redis has postponed the delivery."""
        ...

    def hasten(self, delivery: Delivery) -> None:
        """Let a delivery that is cancelled have its turn before its next run is due."""
        ...

    def run(self, delivery: Delivery, task: asyncio.Task[None]) -> Coroutine[Any, Any, None]:
        """Run its handler in this task, when it is due; if it may not start any more, it returns to its place."""
        ...

    def end(self, delivery: Delivery) -> None:
        """Record that Redis has acknowledged or buried it, or given it to another worker."""
        ...


@dataclass(slots=True, eq=False)
class Delivery:
    """One entry that this worker holds."""

    shard: ServedShard
    entry: Entry
    safe_until_ms: int
    """No other worker can have claimed it before this moment, by the server's clock."""
    is_redelivered: bool = False
    """Whether another worker had it before."""
    is_counted: bool = True
    """Whether Redis has counted this delivery. One that is taken over with an ordered shard is counted at its start."""
    turn_keeper: TurnKeeper | None = None
    """Told when the delivery is settled, if its shard runs in order."""
    started_ms: float = 0.0
    """When its handler started, by the server's clock."""
    returned: object = None
    """What its handler returned, until that is packed."""
    result: bytes = b""
    """The packed result of its handler, if it is kept."""
    task: asyncio.Task[None] | None = None
    """The task that runs its handler, if that can be cancelled."""
    is_cancelled: bool = False
    """Whether its cancellation was requested."""
    is_dropped: bool = False
    """Whether it was too late to start its handler."""
    has_progress: bool = False
    """Whether its handler has reported progress."""
    run: int = 0
    """The number of its present run in this worker; negative once that has ended."""
    notes: Notes | None = None
    """What its present run asked to follow."""
    span: Processing | None = None
    """The span around its handler, while a tracer provider is set."""

    @property
    def others_may_wait(self) -> bool:
        """Whether other jobs may wait for its end: behind it in an ordered shard, or of its key, as it did itself."""
        if self.turn_keeper is not None:
            return True
        entry = self.entry
        return self.shard.topic.key_concurrency > 0 and entry.promoted_ms - entry.due_ms > HELD_BACK_MS


HELD_BACK_MS = 20
"""A job that was promoted so late in a topic with limits per key was probably held back for its key."""
EARLY = 1_000
"""How many requests to cancel are remembered whose deliveries are not here; most have just ended."""
Start = Callable[[Sequence[Delivery]], None]
"""Runs deliveries of one shard as soon as there is room."""


Regroup = Callable[[Iterable[ServedShard]], Awaitable[None]]
"""Creates the group again on shards that lack it, unless it was removed. Raises: ServerError."""


def in_calls(shards: Iterable[ServedShard], slot: Callable[[str], int], most: int) -> Iterator[list[ServedShard]]:
    """Divides shards into parts that one call may name: up to `most`, in a cluster all of one slot."""
    by_slot: dict[int, list[ServedShard]] = {}
    for shard in shards:
        by_slot.setdefault(slot(shard.keys.ready), []).append(shard)
    for some in by_slot.values():
        for first in range(0, len(some), most):
            yield some[first : first + most]


class Held:
    """The deliveries this worker holds, by shard and entry id."""

    def __init__(self) -> None:
        self._by_shard: dict[ServedShard, dict[str, Delivery]] = {}
        self._cancelled_early: dict[tuple[str, str], None] = {}  # streams and entries, the oldest first

    def add(self, *deliveries: Delivery) -> None:
        for delivery in deliveries:
            entry_id = delivery.entry.entry_id
            self._by_shard.setdefault(delivery.shard, {})[entry_id] = delivery
            if self._cancelled_early and (delivery.shard.keys.ready, entry_id) in self._cancelled_early:
                delivery.is_cancelled = True

    def cancel_early(self, ready: str, entry_id: str) -> None:
        """Record that an entry is to be cancelled whose delivery to this worker may be on its way."""
        self._cancelled_early[ready, entry_id] = None
        if len(self._cancelled_early) > EARLY:
            del self._cancelled_early[next(iter(self._cancelled_early))]

    def of(self, shard: ServedShard) -> dict[str, Delivery]:
        """Returns the deliveries of one shard, by entry id."""
        return self._by_shard.setdefault(shard, {})

    def __contains__(self, delivery: Delivery) -> bool:
        """Whether it is held still: not settled, and not given to another worker."""
        return self._by_shard.get(delivery.shard, {}).get(delivery.entry.entry_id) is delivery

    def find(self, ready: str, entry_id: str) -> Delivery | None:
        """Returns the delivery of an entry in this stream; None if it is not held."""
        shards = (shard for shard in self._by_shard if shard.keys.ready == ready)
        return next((found for shard in shards if (found := self._by_shard[shard].get(entry_id))), None)

    def drop(self, delivery: Delivery) -> None:
        """Forget a delivery; a later one of the same entry stays."""
        if delivery in self:
            del self._by_shard[delivery.shard][delivery.entry.entry_id]

    def mistrust(self) -> None:
        """Record that the server may have lost writes: other workers may own these entries, or others of their ids."""
        for held in self._by_shard.values():
            for delivery in held.values():
                delivery.safe_until_ms = 0

    def leave(self, shard: ServedShard) -> None:
        """Forget a shard that is gone, unless deliveries of it are held."""
        if not self._by_shard.get(shard):
            self._by_shard.pop(shard, None)

    def shards(self) -> Iterable[ServedShard]:
        """The existing shards with held deliveries."""
        return [shard for shard, held in self._by_shard.items() if held and not shard.is_gone]


@dataclass(eq=False)
class Consumer:
    """One consumer: its server, names, settings, clocks and deliveries, and what carries their followers."""

    transport: AsyncTransport
    keys: Keys
    group: str
    name: str
    """The worker's name in the group."""
    settings: WorkerSettings
    clock: Clock
    client: ClientSettings = field(default_factory=ClientSettings)
    """By which followers are checked and confirmed."""
    new_topics: TopicSettings = field(default_factory=TopicSettings)
    """The settings of topics that followers create."""

    def __post_init__(self) -> None:
        self.server = ServerClock(self.clock)
        self.held = Held()
        self.peers = Peers(self.name, self.group, self.settings)

    @cached_property
    def carrier(self) -> Carrier:
        """Carries followers; made for the first one, because it imports the producer."""
        from wheelq.following.carrier import Carrier

        return Carrier(self.transport, self.keys, self.client, self.new_topics, self.clock)

    @property
    def carrier_in_use(self) -> Carrier | None:
        """The carrier, if there have been followers."""
        return vars(self).get("carrier")
