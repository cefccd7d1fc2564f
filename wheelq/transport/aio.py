"""`AsyncTransport`: sends calls on asyncio, all over one connection, in the order they were made.

    send(a) ─┐                         ┌─▶ reply a
    send(b) ─┼─▶ one connection ─▶ … ──┼─▶ reply b        replies come back in the order of the requests (RESP), so a
    send(c) ─┘                         └─▶ reply c        queue of futures is all the bookkeeping there is

The connection is opened at the first call and again after it broke. When it breaks, every request under way ends in
`OutcomeUnknown`; a request that could not be written because no connection could be made ends in `Unavailable`.
A call that waits in the server (a blocking read) holds up what is sent behind it: give it a transport of its own with
`sibling()`. Must be used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import hiredis

from wheelq.clock import Clock, SystemClock
from wheelq.errors import OutcomeUnknown, Unavailable, WheelqError
from wheelq.protocol.call import Argument, Call
from wheelq.protocol.scripts import Script
from wheelq.transport.address import Address
from wheelq.transport.failures import REDIS_FAILURES, ScriptUnknown, not_answered, not_sent

T = TypeVar("T")


class _Request(NamedTuple):
    name: str
    answer: asyncio.Future[Any]
    deadline: float


class AsyncTransport:
    """One shared connection to one server."""

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._connection: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._requests: deque[_Request] = deque()
        self._opening = asyncio.Lock()
        self._watchdog: asyncio.TimerHandle | None = None
        self.connections_made = 0
        """Changes whenever the connection was opened anew: what belongs to a connection must be renewed then."""

    def sibling(self) -> AsyncTransport:
        """Another transport to the same server, with a connection of its own."""
        return AsyncTransport(self._address, self._clock)

    def subscription(self) -> Subscription:
        """A connection that listens to channels of the same server."""
        return Subscription(self._address)

    async def send(self, call: Call[T]) -> T:
        """The answer to one call.

        Raises: Unavailable (nothing was done), Refused (nothing was done), OutcomeUnknown (repeat the call).
        """
        try:
            return call.read(await (self._ask_together(call) if call.behind else self._ask(call, call.words())))
        except ScriptUnknown:
            for part in call.parts:
                if isinstance(part.what, Script):
                    await self._ask(part, ["SCRIPT", "LOAD", part.what.text])
            return call.read(await (self._ask_together(call) if call.behind else self._ask(call, call.words())))

    async def stream(self, calls: Iterable[Call[T]]) -> AsyncIterator[T]:
        """The answers to many calls, in order; while the server works on one, the next is made and sent.

        Raises as `send` does, at the first call that fails; of the calls after it, some may have happened.
        """
        under_way: deque[asyncio.Task[T]] = deque()
        failure: WheelqError | None = None
        remaining = iter(calls)
        try:
            while True:
                try:
                    call = next(remaining)
                except StopIteration:
                    break
                except WheelqError as error:  # the next call cannot be made: read what is still to come, then say so
                    failure = error
                    break
                under_way.append(asyncio.create_task(self.send(call)))
                await asyncio.sleep(0)  # let it be written
                if len(under_way) > 1:
                    yield await under_way.popleft()
            while under_way:
                yield await under_way.popleft()
            if failure is not None:
                raise failure
        finally:
            for task in under_way:
                task.cancel()

    async def close(self) -> None:
        """Close the connection; requests under way end in OutcomeUnknown."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        await self._break(OutcomeUnknown("the transport was closed"))

    async def _ask(self, call: Call[Any], words: Sequence[Argument]) -> Any:
        # Packed first: what cannot be packed must not leave a place in the queue of replies. By hiredis, because the
        # asyncio connection's own packer is written in Python and takes ten times as long.
        packed = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]  # its stub knows one-word commands only
        connection = self._connection
        if connection is None:
            connection = await self._open()
        answer = self._expect(call.name, call.wait_ms)
        try:
            await connection.send_packed_command(packed, check_health=False)
        except REDIS_FAILURES as error:
            await self._break(error)
        return await answer

    async def _ask_together(self, call: Call[Any]) -> list[Any]:
        """The replies to a call of several parts, written in one go; errors stand in the places of replies."""
        packed = b"".join(hiredis.pack_command(tuple(part.words())) for part in call.parts)  # type: ignore[arg-type]
        connection = self._connection or await self._open()
        answers = [self._expect(part.name, call.wait_ms) for part in call.parts]
        try:
            await connection.send_packed_command(packed, check_health=False)
        except REDIS_FAILURES as error:
            await self._break(error)
        replies = await asyncio.gather(*answers, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, ScriptUnknown):
                raise reply
        return replies

    def _expect(self, name: str, wait_ms: int) -> asyncio.Future[Any]:
        """The reply to the request that is written next."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        wait_ms += self._address.settings.reply_timeout_ms
        request = _Request(name, answer, self._clock.monotonic() + wait_ms / 1000)
        self._requests.append(request)
        if self._watchdog is None:
            self._watch(request.deadline)
        return answer

    async def _open(self) -> Any:
        async with self._opening:
            if self._connection is not None:
                return self._connection
            connection = self._address.connection()
            try:
                await _greeted(connection, self._address)
            except REDIS_FAILURES as error:
                await connection.disconnect(nowait=True)
                raise not_sent(error, self._address.shown) from error
            self._connection = connection
            self.connections_made += 1
            self._reader = asyncio.create_task(self._read(connection), name="wheelq transport")
            return connection

    async def _read(self, connection: Any) -> None:
        """Give every reply to the request it belongs to, until the connection breaks."""
        while True:
            try:
                reply = await connection.read_response(disconnect_on_error=False)
            except REDIS_FAILURES as error:
                if not self._requests or not self._answer_with(error):
                    self._reader = None
                    await self._break(error)
                    return
            else:
                answer = self._requests.popleft().answer
                if not answer.done():
                    answer.set_result(reply)

    def _answer_with(self, error: Exception) -> bool:
        """Whether `error` is the server's answer to the oldest request, and not a broken connection."""
        request = self._requests[0]
        failure = not_answered(error, self._address.shown, request.name)
        if type(failure) is OutcomeUnknown:
            return False
        self._requests.popleft()
        if not request.answer.done():
            request.answer.set_exception(failure)
        return True

    async def _break(self, error: Exception) -> None:
        connection, self._connection = self._connection, None
        requests, self._requests = self._requests, deque()
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
        self._reader = None
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(not_answered(error, self._address.shown, request.name))
        if connection is not None:
            await connection.disconnect(nowait=True)

    def _watch(self, deadline: float) -> None:
        delay = max(0.0, deadline - self._clock.monotonic())
        self._watchdog = asyncio.get_running_loop().call_later(delay, self._check_deadline)

    def _check_deadline(self) -> None:
        self._watchdog = None
        if not self._requests:
            return
        if self._requests[0].deadline > self._clock.monotonic():
            self._watch(self._requests[0].deadline)
            return
        self._late = asyncio.create_task(self._break(TimeoutError("no reply in time")))


class Subscription:
    """Listens to channels; a message may be lost whenever the connection breaks, so nothing may rest on one."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None
        self.connection_id = 0
        """The server's number for this connection, by which others can see whether it is still open."""

    async def open(self, channels: Sequence[str]) -> None:
        """Connect and listen to `channels`. Raises: Unavailable, Refused."""
        connection = self._address.connection()
        try:
            await _greeted(connection, self._address)
            await connection.send_command("CLIENT", "ID", check_health=False)
            async with asyncio.timeout(self._address.settings.reply_timeout_ms / 1000):
                self.connection_id = int(await connection.read_response())
            if channels:
                await connection.send_command("SUBSCRIBE", *channels, check_health=False)
        except REDIS_FAILURES as error:
            await connection.disconnect(nowait=True)
            raise not_sent(error, self._address.shown) from error
        self._connection = connection

    async def listen(self, *channels: str) -> None:
        """Listen to more channels. Raises: Unavailable."""
        await self._command("SUBSCRIBE", channels)

    async def ignore(self, *channels: str) -> None:
        """Listen to these no more. Raises: Unavailable."""
        await self._command("UNSUBSCRIBE", channels)

    async def messages(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """Channel and data of each message; data None: from now on this channel is heard.

        Raises: Unavailable when the connection breaks.
        """
        while True:
            try:
                kind, channel, data = await self._next()
            except REDIS_FAILURES as error:
                await self.close()
                raise not_sent(error, self._address.shown) from error
            if kind == b"message":
                yield channel.decode(), data
            elif kind == b"subscribe":
                yield channel.decode(), None

    async def _next(self) -> tuple[bytes, bytes, bytes | None]:
        """The next message. Silence is usual, but after a while of it the server is asked for a sign of life."""
        wait = self._address.settings.reply_timeout_ms / 1000
        is_asked = False
        while True:
            try:
                async with asyncio.timeout(wait):
                    reply = await self._connection.read_response(disconnect_on_error=False)
            except TimeoutError:
                if is_asked:
                    raise
                await self._connection.send_command("PING", check_health=False)
                is_asked = True
            else:
                if len(reply) == 3:  # else the answer to PING
                    return reply[0], reply[1], reply[2]
                is_asked = False

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)

    async def _command(self, name: str, channels: Sequence[str]) -> None:
        if self._connection is None:
            raise Unavailable("the subscription is not open")
        try:
            await self._connection.send_command(name, *channels, check_health=False)
        except REDIS_FAILURES as error:
            raise not_sent(error, self._address.shown) from error


async def _greeted(connection: Any, address: Address) -> None:
    """Connect, within the time-outs: the connection's own ends with the TCP handshake, before the server's greeting."""
    settings = address.settings
    async with asyncio.timeout((settings.connect_timeout_ms + settings.reply_timeout_ms) / 1000):
        await connection.connect()
