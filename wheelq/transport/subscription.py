"""`Subscription`: a connection that listens to channels.

A message may be lost whenever the connection breaks, so nothing may depend on it. In a cluster a message published on
any node reaches the subscribers of every node, so any live node will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any

from wheelq.errors import ServerError, Unavailable
from wheelq.protocol.calls.server import info
from wheelq.transport.address import Address
from wheelq.transport.failures import WRITE_FAILURES, broken_off, not_sent
from wheelq.transport.slots import Node


class Subscription:
    """Listens to channels of a server, or of any node of a cluster."""

    def __init__(self, where: Callable[[], Awaitable[tuple[Sequence[Address], int]]]) -> None:
        """`where` returns the servers to try, the best first, and the milliseconds to spend on each."""
        self._where = where
        self._node: Node | None = None
        self._connection: Any = None
        self._address: Any = None  # of the open connection
        self._silence = 0.0
        self.name = ""
        """ "run id:client id", by which others can see whether this connection is still open."""

    async def open(self, channels: Sequence[str]) -> None:
        """Connect and listen to `channels`. Raises: Unavailable, Refused."""
        failure: ServerError | None = None
        addresses, greeting_ms = await self._where()
        for address in addresses:
            try:
                await self._open(address, channels, greeting_ms)
            except ServerError as error:
                failure = error
            else:
                return
        raise failure or Unavailable("no server is known to listen to")

    async def _open(self, address: Address, channels: Sequence[str], greeting_ms: int) -> None:
        connection: Any = address.connection()
        try:
            async with asyncio.timeout(greeting_ms / 1000):
                await connection.connect()
                await connection.send_command("CLIENT", "ID", check_health=False)
                number = int(await connection.read_response())
                await connection.send_command("INFO", "server", check_health=False)
                run_id = info().read(await connection.read_response())["run_id"]
                if channels:
                    await connection.send_command("SUBSCRIBE", *channels, check_health=False)
        except WRITE_FAILURES as error:
            await connection.disconnect(nowait=True)
            raise not_sent(error, address) from error
        self._connection, self._address, self._node = connection, address, address.nodes[0]
        self._silence = address.settings.reply_timeout_ms / 1000
        self.name = f"{run_id}:{number}"

    async def listen(self, *channels: str) -> None:
        """Listen to more channels. Raises: Unavailable."""
        await self._command("SUBSCRIBE", channels)

    async def ignore(self, *channels: str) -> None:
        """Stop listening to these channels. Raises: Unavailable."""
        await self._command("UNSUBSCRIBE", channels)

    async def messages(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """Yield channel and data of each message; data None: the subscription to this channel has begun.

        Raises: Unavailable when the connection breaks.
        """
        while True:
            try:
                message = await self._next()
            except WRITE_FAILURES as error:
                await self.close()
                raise broken_off(error, self._address) from error
            match message:
                case [b"message", channel, data]:
                    yield channel.decode(), data
                case [b"subscribe", channel, _]:
                    yield channel.decode(), None
                case _:  # an unsubscription, or the reply to a ping
                    pass

    async def _next(self) -> Any:
        """Returns the next message. Pings the server when none has come for the time that a reply may take."""
        try:
            async with asyncio.timeout(self._silence):
                return await self._connection.read_response(disconnect_on_error=False)
        except TimeoutError:
            await self._connection.send_command("PING", check_health=False)
        async with asyncio.timeout(self._silence):
            return await self._connection.read_response(disconnect_on_error=False)

    async def leave_unless(self, nodes: Collection[Node]) -> None:
        """Close the connection unless it leads to one of these nodes: nothing is published elsewhere."""
        if self._node not in nodes:
            await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)

    async def _command(self, name: str, channels: Sequence[str]) -> None:
        if self._connection is None:
            raise Unavailable("the subscription is not open")
        try:
            await self._connection.send_command(name, *channels, check_health=False)
        except WRITE_FAILURES as error:
            raise broken_off(error, self._address) from error
