"""`Connection`: HTTP/1.1 on one connection, with a limit for everything that a caller can leave unfinished.

uvicorn's protocol parses requests and runs the application, but it waits for ever and keeps all data that comes. This
one limits, by `Limits`:

    head, trailers           head_bytes and head_s; trailers are dropped
    first head unfinished    at most `newcomers` connections, the oldest are closed; so with TLS handshakes
    rest of a body           head_s once the request is answered, linger_s if the answer closes the connection
    rest of a body at a stop body_s
    answer not read          write_s
    between two requests     at most `connections` in all; the longest idle are closed
    pipelined requests       `pipelined`

No limit counts addresses, because many callers may share one proxy. The gate limits the time and size of bodies.

`Connections` holds all connections of a server; `Handshake` is a new connection until TLS is established.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from wheelq.server import problems
from wheelq.server.problems import Problem

OTHER_FILES = 0.25
"""The share of the process's file descriptors left for Redis, receivers and logs."""


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else max(1, int(soft * (1 - OTHER_FILES)))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size and time of requests, before and after a handler sees them."""

    head_s: float = 10.0
    """Seconds for a TLS handshake, for a head, for trailers, and for the rest of a body whose request is answered."""
    head_bytes: int = 65_536
    """The size of a head, and of trailers."""
    newcomers: int = 200
    """The most connections that have not finished their TLS handshake or first head."""
    grace_s: float = 0.5
    """How long a newcomer may stay even if there are too many: a burst of callers is not an attack. Only time in which
    the event loop is free counts, because a busy server is slow to read the heads and to take part in handshakes."""
    write_s: float = 30.0
    """How long a caller may stop reading its answer."""
    linger_s: float = 2.0
    """How long a connection stays open after its last answer while the caller still sends. Closing it at once would
    reset it, and could destroy the answer on its way."""
    parting_s: float = 1.0
    """How long a connection stays open at a stop of the server for a request that is on its way."""
    body_s: float = 2.0
    """How long the rest of a body may take to arrive at a stop of the server."""
    pipelined: int = 100
    """The most requests that wait behind an unanswered one."""
    connections: int = field(default_factory=_most_connections)
    """The most connections in all."""


class Connected(Protocol):
    """A connection that can be closed if others need its place."""

    loop: asyncio.AbstractEventLoop

    def leave(self) -> None:
        """Close the connection."""


LOOKS = 10
"""How many looks a newcomer is given if there are too many; a look that the event loop is late for does not count."""


class Connections(ServerState):
    """The connections of one server; in order, those without a first head and the idle ones."""

    def __init__(self, limits: Limits, base_path: str) -> None:
        super().__init__()
        self.limits = limits
        self.base_path = base_path
        """The path under which browsers reach the server."""
        self.tls: ssl.SSLContext | None = None
        """The TLS context for `Handshake`; None: callers speak plain HTTP."""
        self.newcomers: dict[Connected, int] = {}
        """With the number of looks before each came."""
        self.idle: dict[Connected, None] = {}
        self._looks = 0
        self._looking: asyncio.TimerHandle | None = None

    def arrived(self, connection: Connected) -> None:
        self.newcomers[connection] = self._looks
        self._make_room()

    def _make_room(self) -> None:
        """Close the oldest newcomers if there are too many, and the longest idle if there are too many in all."""
        while len(self.connections) > self.limits.connections and (self.idle or self.newcomers):
            are_many = len(self.newcomers) > self.limits.newcomers
            next(iter(self.newcomers if are_many or not self.idle else self.idle)).leave()
        while len(self.newcomers) > self.limits.newcomers:
            oldest, looks = next(iter(self.newcomers.items()))
            if self._looks <= looks + LOOKS:
                self._look_again(oldest.loop)
                return
            oldest.leave()

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._looking is not None:
            return
        pause = self.limits.grace_s / LOOKS
        at = loop.time() + pause

        def look() -> None:
            self._looking = None
            if loop.time() < at + pause:
                self._looks += 1
            self._make_room()

        self._looking = loop.call_at(at, look)


_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
FEED = 65_536
"""How many bytes are parsed at once; the size and time of a head are checked after each part."""


class Connection(HttpToolsProtocol):
    """One connection to a caller."""

    server_state: Connections

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.limits = self.server_state.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._unparsed = 0
        """Bytes received since the parser last made progress."""
        self._got_on = False
        self._in_head = False
        """Whether a request has begun and its head is incomplete."""
        self._is_between = True
        """Whether no request has begun, or the last one is complete."""
        self._in_framing = False
        """Whether a chunk's first byte or trailers come next."""
        self._is_replayed = False
        """Whether the parser reads a head again that was answered for already."""
        self._is_deaf = False
        """Whether further data is ignored."""
        self._is_stopping = False
        """Whether the next request is the last."""
        self._outlet: asyncio.Transport
        """The transport for the application's answers; if they close it, it lingers."""

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the time limit for a new caller's first head."""
        super().connection_made(cast(asyncio.Transport, transport))
        outlet = SimpleNamespace(write=self._write, is_closing=self.transport.is_closing, close=self._finish)
        self._outlet = cast(asyncio.Transport, outlet)
        self._expect(self.limits.head_s)
        self.server_state.arrived(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._stop_expecting()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.server_state.idle.pop(self, None)
        if len(data) <= FEED:
            self._feed(data)
        else:
            for start in range(0, len(data), FEED):
                self._feed(data[start : start + FEED])
        if self._deadline is None and not self._is_deaf:
            self._watch()

    def pause_writing(self) -> None:
        """The caller does not read its answer: set a time limit."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._is_replayed:
            return
        self._in_head, self._is_between = True, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_replayed:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete: the application starts."""
        if self._is_deaf or self._is_replayed:
            return
        if self._unparsed and self._head_size() > self.limits.head_bytes:
            self._refuse(problems.HEAD_TOO_LARGE)
            return
        if sum(name == b"host" for name, _ in self.headers) > 1:  # a proxy may have judged by the other one
            self._refuse(problems.BAD_REQUEST)
            return
        if len(self.pipeline) >= self.limits.pipelined:
            self.leave()
            return
        self._in_head, self._got_on = False, True
        self.server_state.newcomers.pop(self, None)
        self._stop_expecting()
        super().on_headers_complete()
        self.cycle.transport = self._outlet
        self.cycle.keep_alive &= not self._is_stopping

    def on_chunk_header(self) -> None:
        """The size of a chunk was read; after the last chunk, trailers follow."""
        self._in_framing = True

    def on_body(self, body: bytes) -> None:
        if self._is_deaf:
            return
        self._got_on = True
        if self._in_framing:
            self._in_framing = False
            if not self.cycle.response_complete:
                self._stop_expecting()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_deaf or self.parser.should_upgrade():
            return
        self._in_framing, self._is_between, self._got_on = False, True, True
        self._stop_expecting()
        super().on_message_complete()

    # Called by the answer

    def on_response_complete(self) -> None:
        if self._is_deaf:
            self.flow.resume_reading()
            if self._deadline is None:
                self._finish()
            return
        super().on_response_complete()
        if not self.transport.is_closing():
            self._watch()

    def shutdown(self) -> None:
        """The server stops: answer requests in progress or on their way, then close."""
        if self._is_working():
            self.cycle.keep_alive = False
            if self.cycle.more_body:
                self.loop.call_later(self.server_state.limits.body_s, self._give_up, self.cycle)
        elif not self._is_deaf:
            self._is_stopping = True
            self._stop_expecting()
            self._expect(self.server_state.limits.parting_s)

    def timeout_keep_alive_handler(self) -> None:
        self.leave()

    def leave(self) -> None:
        self.connections.discard(self)
        self._forget()
        self._is_deaf = True
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # unread data would keep the connection for ever
        else:
            self.transport.close()

    # Within

    def _feed(self, data: bytes) -> None:
        if self._is_deaf or self.transport.is_closing():
            return
        self._got_on = False
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:  # it is not HTTP
            self._refuse(problems.BAD_REQUEST)
        self._unparsed = 0 if self._got_on else self._unparsed + len(data)
        if self._unparsed > self.limits.head_bytes and not self._is_deaf:
            self._refuse(problems.HEAD_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        """Parse the data. Raises: HttpParserError.

        Other protocols are not spoken here, so a wish to change to one is ignored, as RFC 9110 has it. Java's client
        sends such a wish for HTTP/2 with its first request. The parser takes it for granted, and leaves the body out.
        So the body goes to a new parser, which has seen as much of the head as says where the body ends.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            else:
                return
            lines = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] in _FRAMING]
            self.parser = httptools.HttpRequestParser(self)
            self._is_replayed = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines))
            self._is_replayed = False

    def _watch(self) -> None:
        """Set the time limit for what the connection waits for now, if it waits for its caller."""
        if self._in_framing:
            self._expect(self.limits.head_s)
        elif self._is_working():
            return
        elif self._is_between and not self._unparsed:
            self.server_state.idle[self] = None
            if self.timeout_keep_alive_task is None:  # the rest of a body came after its answer
                self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.leave)
        else:
            self._expect(self.limits.head_s)

    def _is_working(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _expect(self, seconds: float) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(seconds, self._is_too_late)

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self, cycle: RequestResponseCycle) -> None:
        """Refuse a request whose body is still coming, because the server stops."""
        if cycle.more_body and not cycle.response_started and not cycle.disconnected and not self._is_deaf:
            self._refuse(problems.STOPPING)

    def _is_too_late(self) -> None:
        self._deadline = None
        if self._in_head and not self._is_deaf:
            self._refuse(problems.TOO_SLOW)
        elif self._is_stopping and self.transport.can_write_eof():
            self._is_between = False  # a request may be on its way, which a close would reset
            self._finish()
        else:
            self.leave()

    def _refuse(self, kind: problems.Kind) -> None:
        """Stop parsing, answer with the problem unless an earlier request has no answer yet, and close."""
        self._is_deaf = True
        self._forget()
        if self._is_working():
            self.cycle.keep_alive = False
            if self.pipeline or self.cycle.response_started or not self.cycle.more_body:
                return
            self.cycle.disconnected = True  # the rest of its body will not come
            self.cycle.message_event.set()
        answer = Problem(kind).response(self.server_state.base_path)
        head = [(b"connection", b"close"), *self.server_state.default_headers, *answer.raw_headers]
        lines = b"".join(b"%b: %b\r\n" % pair for pair in head)
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[kind.status], lines, bytes(answer.body)))
        self._is_between = False
        self._finish()

    def _finish(self) -> None:
        """Close after the last answer; while data still comes, only after reading it, or after a while."""
        self._is_deaf = True
        self._stop_expecting()
        if self._is_between or self.transport.is_closing():
            self.transport.close()
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._deadline = self.loop.call_later(self.server_state.limits.linger_s, self.transport.abort)

    def _write(self, data: bytes) -> None:
        """Write a part of an answer; dropped if the connection was closed meanwhile, which uvloop would raise."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def _forget(self) -> None:
        self.server_state.newcomers.pop(self, None)
        self.server_state.idle.pop(self, None)


class Handshake(asyncio.Protocol):
    """A connection before the end of its TLS handshake; then `Connection` takes over.

    The event loop's own TLS gives a caller a minute, and reports the connection only after the handshake: connections
    that never finish it would escape all limits. Here they are newcomers from the first byte, and have `head_s`.

    uvloop reads as soon as a connection is made, whatever `connection_made` asks for. Bytes that it reads before TLS
    starts are passed on:

        turn of the loop     what happens
        the next             reading is paused
        the one after it     `start_tls` puts TLS in this protocol's place, and asks for its start and for reading
        the third            TLS starts; reading is resumed; TLS gets the early bytes, before all others
    """

    def __init__(self, *, server_state: Connections, **named: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self._state = server_state
        self._named = named
        self._early: list[bytes] = []
        self._has_left = False
        self._transport: asyncio.Transport
        self._shaking: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._state.connections.add(cast(Any, self))  # the set that uvicorn shuts down
        self._shaking = self.loop.create_task(self._shake())
        self._state.arrived(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came before the handshake began, or the first request with its end."""
        self._early.append(data)

    def leave(self) -> None:
        self._has_left = True
        self._forget()
        self._transport.abort()

    def shutdown(self) -> None:
        self.leave()

    async def _shake(self) -> None:
        context = self._state.tls
        assert context is not None, "only with TLS"
        if self._transport.is_closing():
            self.leave()
            return
        self._transport.pause_reading()  # no more bytes come before TLS has started, which resumes it
        timeout = self._state.limits.head_s
        starting = self.loop.create_task(
            self.loop.start_tls(self._transport, self, context, server_side=True, ssl_handshake_timeout=timeout)
        )
        if self._early:
            await asyncio.sleep(0)
            self.loop.call_soon(self._pass_on, b"".join(self._early))
            self._early.clear()
        try:
            transport = await starting
        except (OSError, ssl.CertificateError):
            self.leave()
            return
        if self._has_left or transport is None or transport.is_closing():
            self.leave()
            return
        self._forget()
        connection = Connection(server_state=self._state, **self._named)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early:
            connection.data_received(data)

    def _forget(self) -> None:
        self._state.newcomers.pop(self, None)
        self._state.connections.discard(cast(Any, self))

    def _pass_on(self, data: bytes) -> None:
        """Give TLS bytes as the transport does."""
        if self._has_left:
            return
        tls = cast(asyncio.BufferedProtocol, self._transport.get_protocol())
        while data:
            buffer = memoryview(cast(bytearray, tls.get_buffer(len(data))))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            tls.buffer_updated(count)
            data = data[count:]
