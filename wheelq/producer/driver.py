"""`Driver` and `AsyncDriver` run operations. They are the only place where the two clients differ.

    operation ──step──▶ driver ──▶ transport ──▶ Redis
              ◀─ answer ──┘ ◀── or a `ServerError`, which is thrown into the operation

Every call passes a circuit breaker: while the server is away, calls fail at once instead of each waiting for a timeout.
A call fails if the server cannot be reached, does not answer, or cannot serve now. A refusal counts as an answer.

An operation on scheduled jobs says what it is `About`: while a tracer provider is set, it runs within a span.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, cast

from wheelq.base.clock import Clock, SystemClock, sleep
from wheelq.base.per_loop import PerLoop
from wheelq.errors import AWAY, CircuitOpen, WheelqError
from wheelq.producer.breaker import Breaker
from wheelq.producer.operation import Do, Operation, Poll, Step, Stream, Wait, Whereabouts
from wheelq.protocol.call import Call
from wheelq.settings import BreakerSettings
from wheelq.telemetry import api
from wheelq.transport import AsyncTransport, Transport
from wheelq.transport.aio import Spares

T = TypeVar("T")
_clock = SystemClock()
"""Waits and long polls last by this machine's clock, also in a test whose own clock stands still."""

About = tuple[str, str, str | None]
"""The name of an operation, its topic, and the id of the job if it is about a single one."""


class Driver:
    """Runs operations over a blocking transport. Safe to share between threads."""

    def __init__(self, transport: Transport, breaker: BreakerSettings, clock: Clock) -> None:
        self._transport = transport
        self._places = threading.Semaphore(_places(transport))
        self._guard = _Guard(Breaker(breaker, clock))

    def run(self, operation: Operation[T], about: About | None = None) -> T:
        """Do each step of an operation; what it returns. Raises what it raises, and `CircuitOpen`."""
        if about is not None:
            operation = _observed(about, operation)
        go_on: Callable[[Any], Step] = operation.send
        answer: Any = None
        while True:
            try:
                step = go_on(answer)
            except StopIteration as end:
                return cast(T, end.value)
            try:
                go_on, answer = operation.send, self._do(step)
            except BaseException as error:  # noqa: BLE001  # the operation raises again what it does not expect
                go_on, answer = operation.throw, error

    def close(self) -> None:
        """Close the connections; they are opened again when needed."""
        self._transport.close()

    def _do(self, step: Step) -> Any:
        match step:
            case Call():
                with self._guard as succeeded:
                    answer = self._transport.send(step)
                    succeeded()
                    return answer
            case Stream(calls, take, refused):
                with self._guard as succeeded:
                    for answer in self._transport.stream(calls, refused):
                        succeeded()
                        take(answer)
            case Poll():
                return self._poll(step)
            case Wait(seconds):
                sleep(seconds)
            case Do(act):
                return act()
            case Whereabouts():
                return self._transport.node
        return None

    def _poll(self, poll: Poll) -> Any:
        ends_at = _clock.monotonic() + poll.seconds
        if not self._places.acquire(timeout=poll.seconds):
            return None
        try:
            left_ms = int(1000 * (ends_at - _clock.monotonic()))
            return self._do(poll.make(max(1, min(left_ms, self._transport.reply_timeout_ms // 2))))
        finally:
            self._places.release()


class _Connections(NamedTuple):
    """The connections of one event loop."""

    shared: AsyncTransport
    spare: Spares
    """For calls that block their connection; on the shared connection they would delay all others."""
    places: asyncio.Semaphore
    """For long polls, of which each takes one of `spare`."""


class AsyncDriver:
    """Runs operations over an asyncio transport, with separate connections for each event loop."""

    def __init__(self, transport: AsyncTransport, breaker: BreakerSettings, clock: Clock) -> None:
        self._transport = transport
        self._is_taken = False
        self._connections = PerLoop(self._connect)
        self._guard = _Guard(Breaker(breaker, clock))

    async def run(self, operation: Operation[T], about: About | None = None) -> T:
        """Do each step of an operation; what it returns. Raises what it raises, and `CircuitOpen`."""
        if about is not None:
            operation = _observed(about, operation)
        go_on: Callable[[Any], Step] = operation.send
        answer: Any = None
        while True:
            try:
                step = go_on(answer)
            except StopIteration as end:
                return cast(T, end.value)
            try:
                go_on, answer = operation.send, await self._do(step)
            except BaseException as error:  # noqa: BLE001  # the operation raises again what it does not expect
                go_on, answer = operation.throw, error

    async def close(self) -> None:
        """Close the connections; they are opened again when needed."""
        connections = self._connections.here()
        await connections.spare.close()
        await connections.shared.close()

    def _connect(self) -> _Connections:
        """Returns the connections of a new event loop; the first loop uses the given transport."""
        transport = self._transport.elsewhere() if self._is_taken else self._transport
        self._is_taken = True
        return _Connections(transport, Spares(transport), asyncio.Semaphore(_places(transport)))

    async def _do(self, step: Step) -> Any:
        match step:
            case Call(wait_ms=0):
                return await self._send(self._connections.here().shared, step)
            case Call():
                async with self._connections.here().spare.one() as transport:
                    return await self._send(transport, step)
            case Stream(holds_up=False):
                await self._stream(self._connections.here().shared, step)
            case Stream():
                async with self._connections.here().spare.one() as transport:
                    await self._stream(transport, step)
            case Poll():
                return await self._poll(step)
            case Wait(seconds):
                await _clock.sleep(seconds)
            case Do(act):
                return await act()
            case Whereabouts():
                return self._transport.node
        return None

    async def _poll(self, poll: Poll) -> Any:
        places, ends_at = self._connections.here().places, _clock.monotonic() + poll.seconds
        try:
            async with asyncio.timeout(poll.seconds):
                await places.acquire()
        except TimeoutError:
            return None
        try:
            return await self._do(poll.make(max(1, int(1000 * (ends_at - _clock.monotonic())))))
        finally:
            places.release()

    async def _send(self, transport: AsyncTransport, call: Call[T]) -> T:
        with self._guard as succeeded:
            answer = await transport.send(call)
            succeeded()
            return answer

    async def _stream(self, transport: AsyncTransport, step: Stream) -> None:
        with self._guard as succeeded:
            async for answer in transport.stream(step.calls, step.refused):
                succeeded()
                step.take(answer)


def _places(transport: Transport | AsyncTransport) -> int:
    """Returns how many long polls may be under way at once."""
    return transport.max_connections * 3 // 4


def _observed(about: About, operation: Operation[T]) -> Operation[T]:
    """Runs an operation within a span while a tracer provider is set."""
    if api._TRACER_PROVIDER is None:
        return operation
    from wheelq.producer import tracing  # imports OpenTelemetry

    return tracing.about(*about, operation)


class _Guard:
    """Wraps calls: refuses them while the breaker is open, and reports their results to it."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker

    def __enter__(self) -> Callable[[], None]:
        """Raises: CircuitOpen (nothing was done). Returns a function to call after each answer."""
        if self._breaker.failures and (seconds := self._breaker.refuse_for()):
            raise CircuitOpen(seconds)
        return self._succeeded

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, AWAY):
            self._breaker.failed()
        elif isinstance(error, WheelqError):  # the server's answer
            self._succeeded()

    def _succeeded(self) -> None:
        if self._breaker.failures:
            self._breaker.succeeded()
