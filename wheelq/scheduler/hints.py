"""`HintSubscription`: the one connection on which a node listens to its shards and to changes.

If this connection ends, the node counts as gone. Every lease names the connection's id, so it is opened before any
lease is taken. Hints may be lost while it is closed, so after it is reopened every shard starts afresh.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from wheelq.errors import ServerError
from wheelq.reminders import Loop
from wheelq.scheduler.parts import NodeParts
from wheelq.transport import Subscription

logger = logging.getLogger("wheelq.scheduler")


class HintSubscription:
    """Listens on one connection, and opens it again when it breaks."""

    def __init__(
        self,
        parts: NodeParts,
        channels: Callable[[], Iterable[str]],
        enter: Callable[[], Awaitable[None]],
        hear: Callable[[str, bytes | None], None],
    ) -> None:
        """`channels()` are the channels; `enter()` opens the connection again, and sends a heartbeat.

        `hear(channel, message)` takes each message, or None when messages of the channel may have been missed.
        """
        self._parts = parts
        self._channels = channels
        self._enter = enter
        self._hear = hear
        self._open: Subscription | None = None

    async def open(self) -> None:
        """Open or reopen the connection. Raises: ServerError; the call may then be repeated."""
        former, self._open = self._open, None  # channels of shards that start now are added below
        if former is not None:
            await former.close()
        subscription = self._parts.transport.subscription()
        channels = list(self._channels())
        await subscription.open(channels)
        self._open = subscription
        self._parts.connection = subscription.name
        if missed := set(self._channels()) - set(channels):
            await subscription.listen(*missed)

    async def run(self) -> None:
        """Listen until cancelled."""
        loop = Loop(self._parts.clock, logger, "hints are not heard until the server is back")

        async def listen() -> None:
            try:
                if self._open is None:
                    await self._enter()
                assert self._open is not None
                async for channel, data in self._open.messages():
                    loop.backoff.failures = 0  # not earlier: a server that refuses this user does so only now
                    self._hear(channel, data)
            except ServerError:
                self._open = None
                raise

        await loop.run(listen)

    async def listen(self, channel: str) -> None:
        """Listen to one more channel; if the connection is closed, the next connection will listen to it."""
        if self._open is not None:
            await self._open.listen(channel)

    async def ignore(self, channel: str) -> None:
        if self._open is not None:
            await self._open.ignore(channel)

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()
