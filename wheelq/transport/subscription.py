"""`Subscription`: a connection that listens to channels.

A message may be lost whenever the connection breaks, so nothing may rest on one. In a cluster what is published on any
node reaches the subscribers on every node, so any living one will do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any

from wheelq.errors import ServerError, Unavailable
from wheelq.protocol.calls import registry
from wheelq.transport.address import Address
from wheelq.transport.failures import REDIS_FAILURES, not_sent
from wheelq.transport.slots import Node


class Subscription:
    """Listens to channels of a server, or of any node of a cluster."""

    def __init__(self, where: Callable[[], Awaitable[Sequence[Address]]]) -> None:
        """`where` tells the servers of which one is to be listened to, the best first."""
        self._where = where
        self._node: Node | None = None
        self._connection: Any = None
        self._shown = ""
        self._silence = 0.0
        self.name = ""
        """ "run id:client id", by which others can see whether this connection is still open."""

    async def open(self, channels: Sequence[str]) -> None:
        """Connect and listen to `channels`. Raises: Unavailable, Refused."""
        failure: ServerError | None = None
        for address in await self._where():
            try:
                await self._open(address, channels)
            except ServerError as error:
                failure = error
            else:
                return
        raise failure or Unavailable("no server is known to listen to")

    async def _open(self, address: Address, channels: Sequence[str]) -> None:
        connection: Any = address.connection()
        try:
            async with asyncio.timeout(address.settings.connect_timeout_ms / 1000):
                await connection.connect()
                await connection.send_command("CLIENT", "ID", check_health=False)
                number = int(await connection.read_response())
                await connection.send_command("INFO", "server", check_health=False)
                run_id = registry.info().read(await connection.read_response())["run_id"]
                if channels:
                    await connection.send_command("SUBSCRIBE", *channels, check_health=False)
        except REDIS_FAILURES as error:
            await connection.disconnect(nowait=True)
            raise not_sent(error, address.shown) from error
        self._connection, self._shown, self._node = connection, address.shown, address.nodes[0]
        self._silence = address.settings.reply_timeout_ms / 1000
        self.name = f"{run_id}:{number}"

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
                message = await self._next()
            except REDIS_FAILURES as error:
                await self.close()
                raise not_sent(error, self._shown) from error
            match message:
                case [b"message", channel, data]:
                    yield channel.decode(), data
                case [b"subscribe", channel, _]:
                    yield channel.decode(), None
                case _:  # other channels are heard no more, or the server lives
                    pass

    async def _next(self) -> Any:
        """What comes next; when nothing has come for as long as a reply may take, the server is asked if it lives."""
        try:
            async with asyncio.timeout(self._silence):
                return await self._connection.read_response(disconnect_on_error=False)
        except TimeoutError:
            await self._connection.send_command("PING", check_health=False)
        async with asyncio.timeout(self._silence):
            return await self._connection.read_response(disconnect_on_error=False)

    async def leave_unless(self, nodes: Collection[Node]) -> None:
        """Close the connection, if it leads to none of these: nothing is published there any more."""
        if self._node not in nodes:
            await self.close()

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
            raise not_sent(error, self._shown) from error
