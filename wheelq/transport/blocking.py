"""`Transport`: sends calls and waits for the answers. Safe for threads; each call has a connection to itself.

The first call finds out what the URL names: one server (`server`), or a cluster or sentinels (`routes`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from wheelq.base.clock import Clock, SystemClock
from wheelq.protocol.call import Call
from wheelq.transport.address import Address, ServerKind
from wheelq.transport.routes import Routes
from wheelq.transport.server import Server
from wheelq.transport.slots import Node
from wheelq.transport.topology import Topology

T = TypeVar("T")


class Transport:
    """The way to one server, cluster or service."""

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._link: Server | Routes | None = None
        self._connecting = threading.Lock()

    @property
    def node(self) -> Node:
        """The server's address in the URL; the first one of a cluster or sentinels."""
        return self._address.nodes[0]

    @property
    def reply_timeout_ms(self) -> int:
        """How long a call waits for its reply."""
        return self._address.reply_timeout_ms

    @property
    def max_connections(self) -> int:
        """How many connections calls share that keep one to themselves."""
        return self._address.max_connections

    def send(self, call: Call[T]) -> T:
        """Send a call and return its answer.

        Raises: Unavailable (nothing was done), Refused (nothing was done), OutcomeUnknown (repeat the call).
        """
        return call.read((self._link or self._connect()).ask(call))

    def stream(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None = None) -> Iterator[T]:
        """Yield the answers to many calls, in order; while the server works on one, the next is made and sent.

        Raises as `send` does. After a refusal no more calls are made: `refused` is called in place of the answer, and
        the error is raised when the calls under way are answered. After another error, later calls may have been done.
        """
        return (self._link or self._connect()).stream(calls, refused)

    def try_to_listen(self, channel: str) -> None:
        """Listen to a channel for a moment, to see whether this user is permitted to. Raises as `send` does."""
        (self._link or self._connect()).try_to_listen(channel)

    def slot(self, key: str) -> int:
        """Returns the key's slot: one call may name keys of the same slot. Known after the first answer to any call."""
        return self._link.slot(key) if isinstance(self._link, Routes) else 0

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def _connect(self) -> Server | Routes:
        with self._connecting:
            if self._link is None:
                self._link = self._find_out()
            return self._link

    def _find_out(self) -> Server | Routes:
        if self._address.kind is ServerKind.SERVER:
            server = Server(self._address)
            if not server.is_of_cluster():
                return server
            server.close()
        return Routes(self._address, Topology(self._address, self._clock), self._clock)
