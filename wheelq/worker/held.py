"""What a worker holds: the deliveries that were read or claimed, and that Redis has not answered for yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from wheelq.protocol.call import Call
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import ShardKeys
from wheelq.topics import Topic


@dataclass(slots=True, eq=False)
class Line:
    """One shard of a topic, as a worker serves it."""

    keys: ShardKeys
    topic: Topic
    """As last read."""


class Order(Protocol):
    """Keeps the places of deliveries in a shard that runs in order."""

    def put_off(self, delivery: Delivery, pause_ms: int, record: bytes) -> Call[int]:
        """In place of `retry`: it stays pending, in its place."""
        ...

    def again(self, delivery: Delivery, record: bytes, due_ms: int) -> None:
        """Redis has put it off."""
        ...

    def end(self, delivery: Delivery) -> None:
        """Redis has acknowledged or buried it, or given it to another worker."""
        ...


@dataclass(slots=True, eq=False)
class Delivery:
    """One entry that this worker holds."""

    line: Line
    entry: Entry
    safe_until_ms: int
    """Until then, by the server's clock, nobody else can have claimed it."""
    is_redelivered: bool = False
    """Another worker had it before."""
    order: Order | None = None
    """Whom to tell when it is settled, if its shard runs in order."""
    started_ms: float = 0.0
    """When its handler was started, by the server's clock."""
    result: bytes = b""
    """What its handler returned, packed, if that is to be kept."""
    task: asyncio.Task[None] | None = None
    """Runs its handler, if that can be cancelled."""
    is_cancelled: bool = False
    """Somebody wants it cancelled."""
    has_notes: bool = False
    """Its handler has told its progress."""

    @property
    def leaves_something(self) -> bool:
        """Whether there is more to do at its end than to acknowledge it; an earlier run may have told its progress."""
        return self.line.topic.keep_done_ms > 0 or self.has_notes or self.is_redelivered or self.entry.attempt > 1


Start = Callable[[Sequence[Delivery]], None]
"""Runs deliveries of one shard as soon as there is room."""


class Held:
    """The deliveries this worker holds, by shard and entry id."""

    def __init__(self) -> None:
        self._by_line: dict[Line, dict[str, Delivery]] = {}

    def add(self, delivery: Delivery) -> None:
        self._by_line.setdefault(delivery.line, {})[delivery.entry.entry_id] = delivery

    def of(self, line: Line) -> dict[str, Delivery]:
        """Those of one shard, by entry id."""
        return self._by_line.setdefault(line, {})

    def find(self, ready: str, entry_id: str) -> Delivery | None:
        """The delivery of an entry of this stream."""
        lines = (line for line in self._by_line if line.keys.ready == ready)
        return next((self._by_line[line].get(entry_id) for line in lines), None)

    def drop(self, delivery: Delivery) -> None:
        self._by_line[delivery.line].pop(delivery.entry.entry_id, None)

    def lines(self) -> Iterable[Line]:
        """The shards of which any was ever held."""
        return list(self._by_line)
