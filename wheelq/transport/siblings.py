"""`Siblings`: spare connections on asyncio for calls that hold their connection up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wheelq.transport.aio import AsyncTransport

MOST = 50
"""As many as the blocking client has by default; more callers than that wait their turn."""


class Siblings:
    """Transports to the same server, each for one caller at a time. Made when needed, kept until closed."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._idle: list[AsyncTransport] = []
        self._room = asyncio.Semaphore(MOST)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AsyncTransport]:
        """A transport that nobody else uses meanwhile."""
        async with self._room:
            sibling = self._idle.pop() if self._idle else self._transport.sibling()
            try:
                yield sibling
            except BaseException:  # a call that nobody waits for any more may still hold it up
                await sibling.close()
                raise
            self._idle.append(sibling)

    async def close(self) -> None:
        """Close those that are idle; the others are closed with what they do."""
        while self._idle:
            await self._idle.pop().close()
