"""`Handshake`: a new connection until TLS is established; then `Connection` takes over.

The event loop's own TLS gives a caller a minute, and reports the connection only after the handshake: connections that
never finish it would escape all limits. Here they are newcomers from the first byte, and have `head_s`.

uvloop reads as soon as a connection is made, whatever `connection_made` asks for. Bytes that it reads before TLS starts
are passed on:

    turn of the loop     what happens
    the next             reading is paused
    the one after it     `start_tls` puts TLS in this protocol's place, and asks for its start and for reading
    the third            TLS starts; reading is resumed; TLS gets the early bytes, before all others
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

from wheelq.server.connection import Connection
from wheelq.server.connections import Connections


class Handshake(asyncio.Protocol):
    """A connection before the end of its TLS handshake."""

    def __init__(self, *, server_state: Connections, **named: Any) -> None:
        """Takes the arguments with which uvicorn makes its protocols."""
        self.loop = asyncio.get_running_loop()
        self._state = server_state
        self._named = named
        self._early: list[bytes] = []
        self._has_left = False
        self._transport: asyncio.Transport
        self._shaking: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._state.connections.add(cast(Any, self))  # the set that uvicorn shuts down
        self._shaking = self.loop.create_task(self._shake())
        self._state.arrived(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came before the handshake began, or the first request with its end."""
        self._early.append(data)

    def leave(self) -> None:
        """Close the connection."""
        self._has_left = True
        self._forget()
        self._transport.abort()

    def shutdown(self) -> None:
        """The server stops."""
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
