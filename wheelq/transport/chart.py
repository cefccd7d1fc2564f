"""Reading the slot map: of a cluster from any of its nodes, of a service from any of its sentinels.

`Chart` (blocking) and `AsyncChart` hold the map that several transports share, and read it anew when one of them has
lost its way, at most every 50 ms; besides, once a minute, and every second from sentinels while calls are made: a
primary that was replaced does not know it, until it is told some ten seconds later, and what it took meanwhile is lost.
Each reading has a connection of its own, which is closed again: what is long open may hang just then.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator

from wheelq.clock import Clock
from wheelq.errors import ServerError, Unavailable
from wheelq.protocol.call import Call
from wheelq.transport.address import Address, Kind
from wheelq.transport.pipe import Pipe
from wheelq.transport.server import Server
from wheelq.transport.slots import Node, SlotMap, find_primary, read_slots

REST = 0.05
"""Seconds between two readings, however many calls have lost their way."""
OLD_AFTER = 60.0
PRIMARY_OLD_AFTER = 1.0
"""Seconds for which a map is believed while nothing speaks against it; the second where sentinels tell it."""


class _Reading:
    """What both charts share: the map, how old it is, and whom to ask."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._silent: set[Node] = set()  # did not answer when last asked: they are asked last
        self._read_at = float("-inf")
        self._old_after = PRIMARY_OLD_AFTER if address.kind is Kind.SENTINEL else OLD_AFTER
        self.slots = SlotMap.empty()
        """The map as last read."""

    @property
    def is_old(self) -> bool:
        """Whether it is time to read the map, though nothing speaks against it."""
        return self._clock.monotonic() >= self._read_at + self._old_after

    @property
    def _is_fresh(self) -> bool:
        return self._clock.monotonic() < self._read_at + REST

    def _sources(self) -> Iterator[tuple[Node, Address, Call[SlotMap]]]:
        """Whom to ask, and what."""
        is_cluster = self._address.kind is not Kind.SENTINEL
        nodes = list(dict.fromkeys([*self.slots.nodes, *self._address.nodes] if is_cluster else self._address.nodes))
        random.shuffle(nodes)
        for node in sorted(nodes, key=self._silent.__contains__):
            if not is_cluster:
                yield node, self._address.at_sentinel(node), find_primary(self._address.service)
            elif node == self._address.nodes[0]:
                yield node, self._address, read_slots(node)  # perhaps by unix socket
            else:
                yield node, self._address.at(node), read_slots(node)

    def _read(self, slots: SlotMap, node: Node) -> None:
        self.slots = slots
        self._silent.discard(node)
        self._read_at = self._clock.monotonic()

    def _nobody(self, last: Exception | None) -> Unavailable:
        self._read_at = self._clock.monotonic() if self.slots.nodes else float("-inf")
        what = "sentinel" if self._address.kind is Kind.SENTINEL else "node of the cluster"
        return Unavailable(f"no {what} at {self._address.shown} tells where to send calls: {last}")


class AsyncChart(_Reading):
    """The map for transports on asyncio."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Read the map, unless it was read just now. Raises: Unavailable when nobody tells."""
        async with self._lock:
            if self._is_fresh:
                return
            failure: Exception | None = None
            for node, address, call in self._sources():
                pipe = Pipe(address, self._clock)
                try:
                    async with asyncio.timeout(address.settings.connect_timeout_ms / 1000):
                        self._read(call.read(await pipe.ask(call)), node)
                except (ServerError, TimeoutError) as error:
                    self._silent.add(node)
                    failure = error
                else:
                    return
                finally:
                    await pipe.close()
            raise self._nobody(failure) from failure


class Chart(_Reading):
    """The map for blocking transports."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read the map, unless it was read just now. Raises: Unavailable when nobody tells."""
        with self._lock:
            if self._is_fresh:
                return
            failure: Exception | None = None
            for node, address, call in self._sources():
                server = Server(address, address.settings.connect_timeout_ms)
                try:
                    self._read(call.read(server.ask(call)), node)
                except ServerError as error:
                    self._silent.add(node)
                    failure = error
                else:
                    return
                finally:
                    server.close()
            raise self._nobody(failure) from failure
