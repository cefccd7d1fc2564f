"""`Pipe`: one asyncio connection to one server, shared by many calls, in the order they were made.

    ask(a) ─┐                         ┌─▶ reply a
    ask(b) ─┼─▶ one connection ─▶ … ──┼─▶ reply b        replies come back in the order of the requests (RESP), so a
    ask(c) ─┘                         └─▶ reply c        queue of futures is all the bookkeeping there is

The connection is opened at the first call and again after it broke. When it breaks, every request under way ends in
`OutcomeUnknown`; a request that could not be written because no connection could be made ends in `Unavailable`.
A call that waits in the server (a blocking read) delays all calls sent after it: give it a pipe of its own.

All calls share one attempt to connect, which goes on after they have stopped waiting: a call waits only 0.2 s for a
server that did not answer before, and a later call may find the connection made.

The reply to HELLO, sent first, says whether the server is a node of a cluster, and which number it gave the connection.
A server that refuses HELLO counts as a single one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from wheelq.base.clock import Clock
from wheelq.errors import NotPrimary, OutcomeUnknown, ServerError, Unavailable
from wheelq.protocol.call import Argument, Call
from wheelq.protocol.calls.server import info
from wheelq.protocol.scripts import Script
from wheelq.transport import probing
from wheelq.transport.address import Address
from wheelq.transport.failures import (
    REDIS_FAILURES,
    SCRIPT_LOADS,
    WRITE_FAILURES,
    AskedSentinel,
    ScriptUnknown,
    not_answered,
    not_sent,
)
from wheelq.transport.together import Chain

AFTER_SILENCE_S = 0.2
"""How many seconds a call waits for a connection to a server that did not answer last time."""
LEAVE_EVERY_S = 1.0
"""The least seconds between two connections that are given up because the server is a replica."""
ASKING = hiredis.pack_command(("ASKING",))


class _Request(NamedTuple):
    what: Script | str
    answer: asyncio.Future[Any]
    deadline: float


class Pipe:
    """One shared connection to one server. For one event loop."""

    def __init__(
        self, address: Address, clock: Clock, greeting_ms: int | None = None, *, sends_hello: bool = True
    ) -> None:
        """`greeting_ms` limits connecting and the greeting together (None: the sum of both settings).

        Without HELLO, the kind of server and the number of the connection stay unknown.
        """
        settings = address.settings
        self._sends_hello = sends_hello
        self._greeting_ms = greeting_ms or settings.connect_timeout_ms + settings.reply_timeout_ms
        self._address = address
        self._clock = clock
        self._connection: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._requests: deque[_Request] = deque()
        self._attempt: asyncio.Task[ServerError | None] | None = None
        self._was_silent = False
        self._watchdog: asyncio.TimerHandle | None = None
        self._run_id = ""
        self._is_of_replica = False
        self._leave_at = 0.0
        self.interruptions = 0
        """How many connections have broken."""
        self.connection_id = 0
        """The server's number for the connection; 0 if there is none or it is unknown."""
        self.is_of_cluster = False
        """Whether the server is a node of a cluster; known once the connection was opened."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._requests

    async def open(self) -> None:
        """Connect, unless connected. Raises: Unavailable, Refused."""
        if self._connection is None:
            await self._open()

    async def ask(self, call: Call[Any], *, is_asking: bool = False) -> Any:
        """Send a call and return its raw reply; for several calls together, a list of replies and errors.

        `is_asking` sends ASKING directly before a single call.

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
        """Returns the id of the server's process. Raises as `ask` does."""
        if not self._run_id:
            call = info("server")
            self._run_id = call.read(await self.ask(call)).get("run_id", "")
        return self._run_id

    async def close(self) -> None:
        """Close the connection; requests under way end in OutcomeUnknown."""
        tasks = [task for task in (self._attempt, self._reader) if task is not None]
        self._attempt = self._reader = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._break(OutcomeUnknown("the transport was closed"))

    async def _ask(self, call: Call[Any], words: Sequence[Argument], is_asking: bool = False) -> Any:
        # Packed first, because a call that cannot be packed must not enter the queue of replies. hiredis does it,
        # because the asyncio connection's own packer is written in Python and takes ten times as long.
        packed = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]  # its stub knows one-word commands only
        connection = await self._ready()
        if is_asking:
            self._expect("ASKING", call.wait_ms).cancel()  # its reply is not needed
            packed = ASKING + packed
        answer = self._expect(call.what, call.wait_ms)
        await self._write(connection, packed)
        return await answer

    async def _ask_together(self, call: Call[Any]) -> list[Any]:
        """Returns the replies to a call of several parts, written at once, with errors in place of missing replies."""
        packed = b"".join(hiredis.pack_command(tuple(part.words())) for part in call.parts)  # type: ignore[arg-type]
        connection = await self._ready()
        answers = [self._expect(part.what, call.wait_ms) for part in call.parts]
        await self._write(connection, packed)
        return await asyncio.gather(*answers, return_exceptions=True)

    async def _ready(self) -> Any:
        """Returns the connection whose replies are read. Raises: Unavailable, Refused.

        It is never a broken one: the driver would silently open another to write to, whose replies nobody reads, and
        each later reply would go to the call before its own.
        """
        if self._connection is not None and not self._connection.is_connected:
            await self._break(ConnectionError("a call was cancelled while it was written"))
        if self._connection is None:
            await self._open()
        if self._connection is None:
            raise Unavailable(f"no connection to {self._address.shown}: it broke as soon as it was made")
        return self._connection

    async def _write(self, connection: Any, packed: bytes) -> None:
        try:
            await connection.send_packed_command(packed, check_health=False)
        except WRITE_FAILURES as error:
            if connection is self._connection:  # another call may have found it broken, and there may be a new one
                await self._break(error)

    async def _load(self, call: Call[Any]) -> None:
        for part in call.parts:
            if isinstance(part.what, Script):
                await self._ask(part, ["SCRIPT", "LOAD", part.what.text])

    def _expect(self, what: Script | str, wait_ms: int) -> asyncio.Future[Any]:
        """Returns the future of the reply to the request that is written next."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        wait_ms += self._address.settings.reply_timeout_ms
        request = _Request(what, answer, self._clock.monotonic() + wait_ms / 1000)
        self._requests.append(request)
        if self._watchdog is None:
            self._watch(request.deadline)
        return answer

    async def _open(self) -> None:
        """Connect, together with all who wait for it. Raises: Unavailable, Refused."""
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.create_task(self._connect(), name="wheelq transport")
        attempt = self._attempt
        await asyncio.wait((attempt,), timeout=AFTER_SILENCE_S if self._was_silent else None)
        if attempt.cancelled() or not attempt.done():
            raise Unavailable(f"no connection to {self._address.shown}: it does not answer")
        failure = attempt.result()
        if failure is not None:
            raise type(failure)(str(failure)) from failure  # a separate error for each call

    async def _connect(self) -> ServerError | None:
        """Returns why there is no connection, if so. Shared by all calls that still wait for it."""
        connection = self._address.connection()
        try:
            async with asyncio.timeout(self._greeting_ms / 1000):  # the connection's own ends with the handshake
                await connection.connect()
                if self._sends_hello:
                    await self._introduce(connection)
        except WRITE_FAILURES as error:
            self._was_silent = isinstance(error, TimeoutError | RedisTimeoutError)
            await connection.disconnect(nowait=True)
            return not_sent(error, self._address, await probing.aspeaks_tls(error, self._address))
        except asyncio.CancelledError:
            await connection.disconnect(nowait=True)
            raise
        self._connection, self._was_silent = connection, False
        self._reader = asyncio.create_task(self._read(connection), name="wheelq transport")
        return None

    async def _introduce(self, connection: Any) -> None:
        await connection.send_command("HELLO", check_health=False)
        try:
            reply = await connection.read_response()
        except ResponseError:  # before Redis 7 a user needs a right for HELLO
            reply = [b"id", await self._ask_id(connection)]
        greeting = dict(zip(reply[::2], reply[1::2], strict=False))
        self.connection_id = greeting.get(b"id", 0)
        self.is_of_cluster = greeting.get(b"mode") == b"cluster"
        if greeting.get(b"mode") == b"sentinel":
            raise AskedSentinel

    async def _ask_id(self, connection: Any) -> int:
        await connection.send_command("CLIENT", "ID", check_health=False)
        try:
            return int(await connection.read_response())
        except ResponseError:
            return 0

    async def _read(self, connection: Any) -> None:
        """Match every reply with its request, until the connection breaks."""
        while True:
            try:
                reply = await connection.read_response(disconnect_on_error=False)
            except asyncio.CancelledError:
                if self._reader is asyncio.current_task():  # cancelled from outside: replies would no longer be read
                    await self._break(ConnectionError("all tasks were cancelled"))
                raise
            except REDIS_FAILURES as error:
                is_answer = bool(self._requests) and self._answer_with(error)
                if not is_answer or self._leaves():
                    self._reader = None
                    await self._break(ConnectionError("it is no longer the primary") if is_answer else error)
                    return
            else:
                answer = self._requests.popleft().answer
                if not answer.done():
                    answer.set_result(reply)

    def _answer_with(self, error: Exception) -> bool:
        """Whether `error` is the server's answer to the oldest request, and not a broken connection."""
        request = self._requests[0]
        failure = not_answered(error, self._address, request.what)
        if type(failure) is OutcomeUnknown:
            return False
        self._is_of_replica = type(failure) is NotPrimary
        self._requests.popleft()
        if not request.answer.done():
            request.answer.set_exception(failure)
        return True

    def _leaves(self) -> bool:
        """Whether to give the connection up, because its server is a replica: the name may lead to another one now."""
        now = self._clock.monotonic()
        if not self._is_of_replica or now < self._leave_at:
            return False
        self._leave_at = now + LEAVE_EVERY_S
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
                request.answer.set_exception(not_answered(error, self._address, request.what))
        if connection is not None:
            self.interruptions += 1
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
        self._was_silent = True
        self._late = asyncio.create_task(self._break(TimeoutError("no reply in time")))
