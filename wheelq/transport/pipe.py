"""`Pipe`: one asyncio connection to one server, shared by many calls, in the order they were made.

    ask(a) ─┐                         ┌─▶ reply a
    ask(b) ─┼─▶ one connection ─▶ … ──┼─▶ reply b        replies come back in the order of the requests (RESP), so a
    ask(c) ─┘                         └─▶ reply c        queue of futures is all the bookkeeping there is

The connection is opened at the first call and again after it broke. When it breaks, every request under way ends in
`OutcomeUnknown`; a request that could not be written because no connection could be made ends in `Unavailable`.
A call that waits in the server (a blocking read) holds up what is sent behind it: give it a pipe of its own.

Whoever opens it learns from HELLO whether the server is a node of a cluster, and by which number it knows the
connection. A server that refuses HELLO is taken for a single one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis
from redis.exceptions import ResponseError

from wheelq.clock import Clock
from wheelq.errors import OutcomeUnknown
from wheelq.protocol.call import Argument, Call
from wheelq.protocol.calls import registry
from wheelq.protocol.scripts import Script
from wheelq.transport.address import Address
from wheelq.transport.chain import Chain
from wheelq.transport.failures import REDIS_FAILURES, SCRIPT_LOADS, ScriptUnknown, not_answered, not_sent

ASKING = hiredis.pack_command(("ASKING",))


class _Request(NamedTuple):
    name: str
    answer: asyncio.Future[Any]
    deadline: float


class Pipe:
    """One shared connection to one server. For one event loop."""

    def __init__(self, address: Address, clock: Clock, greeting_ms: int | None = None) -> None:
        """`greeting_ms` is how long to wait for the connection and the server's greeting (None: and as for a reply)."""
        settings = address.settings
        self._greeting_ms = greeting_ms or settings.connect_timeout_ms + settings.reply_timeout_ms
        self._address = address
        self._clock = clock
        self._connection: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._requests: deque[_Request] = deque()
        self._opening = asyncio.Lock()
        self._watchdog: asyncio.TimerHandle | None = None
        self._run_id = ""
        self.connection_id = 0
        """The server's number for the connection; 0 while there is none, or unknown."""
        self.is_of_cluster = False
        """Whether the server is a node of a cluster; known once the connection was opened."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._requests

    async def open(self) -> None:
        """Connect, unless it is. Raises: Unavailable, Refused."""
        if self._connection is None:
            await self._open()

    async def ask(self, call: Call[Any], *, is_asking: bool = False) -> Any:
        """The reply to one call, as it came; of several together a list, with errors in the places of replies.

        `is_asking` puts ASKING in front of a single one, with nothing in between.

        Raises: Unavailable (nothing was done), Refused (nothing was done), OutcomeUnknown.
        """
        if call.is_chain:
            chain = Chain(call)
            chain.take(await self._ask_together(call))
            if chain.lacks_scripts():
                await self._load(chain.rest)
                chain.take(await self._ask_together(chain.rest))
            return chain.replies
        for _ in range(SCRIPT_LOADS):
            try:
                return await self._ask(call, call.words(), is_asking)
            except ScriptUnknown:
                await self._load(call)
        return await self._ask(call, call.words(), is_asking)

    async def run_id(self) -> str:
        """Names the server's process. Raises as `ask` does."""
        if not self._run_id:
            call = registry.info("server")
            self._run_id = call.read(await self.ask(call)).get("run_id", "")
        return self._run_id

    async def close(self) -> None:
        """Close the connection; requests under way end in OutcomeUnknown."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        await self._break(OutcomeUnknown("the transport was closed"))

    async def _ask(self, call: Call[Any], words: Sequence[Argument], is_asking: bool = False) -> Any:
        # Packed first: what cannot be packed must not leave a place in the queue of replies. By hiredis, because the
        # asyncio connection's own packer is written in Python and takes ten times as long.
        packed = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]  # its stub knows one-word commands only
        connection = self._connection
        if connection is None:
            connection = await self._open()
        if is_asking:
            self._expect("ASKING", call.wait_ms).cancel()  # its reply interests nobody
            packed = ASKING + packed
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
        return await asyncio.gather(*answers, return_exceptions=True)

    async def _load(self, call: Call[Any]) -> None:
        for part in call.parts:
            if isinstance(part.what, Script):
                await self._ask(part, ["SCRIPT", "LOAD", part.what.text])

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
                async with asyncio.timeout(self._greeting_ms / 1000):  # the connection's own ends with the handshake
                    await connection.connect()
                    await self._introduce(connection)
            except REDIS_FAILURES as error:
                await connection.disconnect(nowait=True)
                raise not_sent(error, self._address.shown) from error
            self._connection = connection
            self._reader = asyncio.create_task(self._read(connection), name="wheelq transport")
            return connection

    async def _introduce(self, connection: Any) -> None:
        await connection.send_command("HELLO", check_health=False)
        try:
            reply = await connection.read_response()
        except ResponseError:  # before Redis 7 a user must be allowed it
            reply = [b"id", await self._ask_id(connection)]
        said = dict(zip(reply[::2], reply[1::2], strict=False))
        self.connection_id = said.get(b"id", 0)
        self.is_of_cluster = said.get(b"mode") == b"cluster"

    async def _ask_id(self, connection: Any) -> int:
        await connection.send_command("CLIENT", "ID", check_health=False)
        try:
            return int(await connection.read_response())
        except ResponseError:
            return 0

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
        self.connection_id, self._run_id = 0, ""
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
