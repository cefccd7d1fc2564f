"""`Transport`: sends calls and waits for the answers. Safe for threads; each call has a connection to itself.

What the URL leads to is found out at the first call: one server (`server`), or a cluster or sentinels (`routes`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

from wheelq.clock import Clock, SystemClock
from wheelq.protocol.call import Call
from wheelq.transport.address import Address, Kind
from wheelq.transport.chart import Chart
from wheelq.transport.routes import Routes
from wheelq.transport.server import Server

T = TypeVar("T")


class Transport:
    """The way to one server, cluster or service."""

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._link: Server | Routes | None = None
        self._connecting = threading.Lock()

    def send(self, call: Call[T]) -> T:
        """The answer to one call.

        Raises: Unavailable (nothing was done), Refused (nothing was done), OutcomeUnknown (repeat the call).
        """
        return call.read((self._link or self._connect()).ask(call))

    def stream(self, calls: Iterable[Call[T]]) -> Iterator[T]:
        """The answers to many calls, in order; while the server works on one, the next is made and sent.

        Raises as `send` does, at the first call that fails; of the calls after it, some may have happened.
        """
        return (self._link or self._connect()).stream(calls)

    def close(self) -> None:
        """Close all connections."""
        if self._link is not None:
            self._link.close()

    def _connect(self) -> Server | Routes:
        with self._connecting:
            if self._link is None:
                self._link = self._find_out()
            return self._link

    def _find_out(self) -> Server | Routes:
        if self._address.kind is Kind.SERVER:
            server = Server(self._address)
            if not server.is_of_cluster():
                return server
            server.close()
        return Routes(self._address, Chart(self._address, self._clock), self._clock)
