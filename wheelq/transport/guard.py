"""`Guarded`: a transport behind a circuit breaker. While the server is away, calls fail at once instead of each waiting
for its time-out.

What counts as a failure is that the server could not be asked, did not answer, or is not in a state to serve. A
refusal is an answer: whoever refuses is there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TypeVar

from wheelq.breaker import Breaker
from wheelq.errors import AWAY, CircuitOpen, ServerError
from wheelq.protocol.call import Call
from wheelq.transport.aio import AsyncTransport
from wheelq.transport.blocking import Transport

T = TypeVar("T")


class _Guard:
    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker

    def _enter(self) -> None:
        seconds = self.breaker.refuse_for()
        if seconds:
            raise CircuitOpen(seconds)

    def _note(self, error: ServerError) -> None:
        if isinstance(error, AWAY):
            self.breaker.failed()
        else:
            self.breaker.succeeded()


class Guarded(_Guard):
    """A blocking transport behind a breaker."""

    def __init__(self, transport: Transport, breaker: Breaker) -> None:
        super().__init__(breaker)
        self._transport = transport

    def send(self, call: Call[T]) -> T:
        """As `Transport.send`. Raises also: CircuitOpen (nothing was done)."""
        self._enter()
        try:
            answer = self._transport.send(call)
        except ServerError as error:
            self._note(error)
            raise
        self.breaker.succeeded()
        return answer

    def stream(self, calls: Iterable[Call[T]]) -> Iterator[T]:
        """As `Transport.stream`. Raises also: CircuitOpen (nothing was done)."""
        self._enter()
        try:
            for answer in self._transport.stream(calls):
                self.breaker.succeeded()
                yield answer
        except ServerError as error:
            self._note(error)
            raise

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()


class AsyncGuarded(_Guard):
    """An asyncio transport behind a breaker."""

    def __init__(self, transport: AsyncTransport, breaker: Breaker) -> None:
        super().__init__(breaker)
        self._transport = transport

    async def send(self, call: Call[T]) -> T:
        """As `AsyncTransport.send`. Raises also: CircuitOpen (nothing was done)."""
        self._enter()
        try:
            answer = await self._transport.send(call)
        except ServerError as error:
            self._note(error)
            raise
        self.breaker.succeeded()
        return answer

    async def stream(self, calls: Iterable[Call[T]]) -> AsyncIterator[T]:
        """As `AsyncTransport.stream`. Raises also: CircuitOpen (nothing was done)."""
        self._enter()
        try:
            async for answer in self._transport.stream(calls):
                self.breaker.succeeded()
                yield answer
        except ServerError as error:
            self._note(error)
            raise

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()
