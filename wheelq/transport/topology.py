"""Reads the slot map of a cluster from any of its nodes, and that of a service from any of its sentinels.

`Topology` (blocking) and `AsyncTopology` hold the map that several transports share. They read it again once a minute,
and after a call reached the wrong node, at most every 50 ms. Sentinels are asked every second while calls are made: a
primary learns only some ten seconds later that it was replaced, and writes that it accepts until then are lost. Each
reading opens and closes its own connection, because an old connection may hang at that moment.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence

from wheelq.base.clock import Clock
from wheelq.errors import ServerError, Unavailable, is_wrong_setup
from wheelq.protocol.call import Call
from wheelq.transport.address import Address, ServerKind
from wheelq.transport.pipe import Pipe
from wheelq.transport.probing import LOOK_S
from wheelq.transport.server import Server
from wheelq.transport.slots import Node, SlotMap, find_primary, read_slots

REST = 0.05
"""The least seconds between two readings, however many calls reached the wrong node."""
OLD_AFTER = 60.0
PRIMARY_OLD_AFTER = 1.0
"""How many seconds a map is trusted if no call contradicts it: in a cluster, and behind sentinels."""


class _Reading:
    """The shared part of both topologies: the map, its age, and the nodes to ask."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._silent: set[Node] = set()  # did not answer when last asked, so they are asked last
        self._read_at = float("-inf")
        self._old_after = PRIMARY_OLD_AFTER if address.kind is ServerKind.SENTINEL else OLD_AFTER
        self.slots = SlotMap.empty()
        """The map as last read."""

    @property
    def is_old(self) -> bool:
        """Whether the map is old enough to be read again."""
        return self._clock.monotonic() >= self._read_at + self._old_after

    @property
    def _is_fresh(self) -> bool:
        return self._clock.monotonic() < self._read_at + REST

    def _sources(self) -> Iterator[tuple[Node, Address, Call[SlotMap]]]:
        """Yields the nodes to ask, with the address and the call for each."""
        is_cluster = self._address.kind is not ServerKind.SENTINEL
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

    def _nobody(self, failures: Sequence[Exception]) -> ServerError:
        """Returns the error if no node returned the map. Nodes that are down do not hide a wrong setup."""
        wrong = next((error for error in failures if isinstance(error, ServerError) and is_wrong_setup(error)), None)
        if wrong is not None and not self.slots.nodes:
            return wrong
        self._read_at = self._clock.monotonic() if self.slots.nodes else float("-inf")
        what = "sentinel" if self._address.kind is ServerKind.SENTINEL else "node of the cluster"
        why = str(failures[-1]) or "no answer in time"
        return Unavailable(f"no {what} at {self._address.shown} says where to send calls: {why}")


class AsyncTopology(_Reading):
    """The map for transports on asyncio."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Read the map, unless it was just read. Raises: Unavailable; at first also for a wrong setup."""
        async with self._lock:
            if self._is_fresh:
                return
            failures: list[Exception] = []
            for node, address, call in self._sources():
                timeout_ms = address.settings.connect_timeout_ms
                pipe = Pipe(address, self._clock, timeout_ms, sends_hello=False)  # as the blocking one
                try:
                    async with asyncio.timeout(timeout_ms / 1000 + LOOK_S):
                        self._read(call.read(await pipe.ask(call)), node)
                except (ServerError, TimeoutError) as error:
                    self._silent.add(node)
                    failures.append(error)
                else:
                    return
                finally:
                    await pipe.close()
            raise self._nobody(failures)


class Topology(_Reading):
    """The map for blocking transports."""

    def __init__(self, address: Address, clock: Clock) -> None:
        super().__init__(address, clock)
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read the map, unless it was just read. Raises: Unavailable; at first also for a wrong setup."""
        with self._lock:
            if self._is_fresh:
                return
            failures: list[Exception] = []
            for node, address, call in self._sources():
                server = Server(address, address.settings.connect_timeout_ms)
                try:
                    self._read(call.read(server.ask(call)), node)
                except ServerError as error:
                    self._silent.add(node)
                    failures.append(error)
                else:
                    return
                finally:
                    server.close()
            raise self._nobody(failures)
