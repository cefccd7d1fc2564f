"""`Spares`: spare connections on asyncio for calls that block their connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wheelq.transport.aio import AsyncTransport

MOST = 50
"""The default number of the blocking client's connections; further callers wait their turn."""


class Spares:
    """Transports to the same server, each for one caller at a time. Made when needed, kept until closed."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._idle: list[AsyncTransport] = []
        self._room = asyncio.Semaphore(MOST)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AsyncTransport]:
        """Lend a transport for exclusive use."""
        async with self._room:
            spare = self._idle.pop() if self._idle else self._transport.spare()
            try:
                yield spare
            except BaseException:  # an abandoned call may still block it
                await spare.close()
                raise
            self._idle.append(spare)

    async def close(self) -> None:
        """Close the idle ones; each of the others is closed after its call."""
        while self._idle:
            await self._idle.pop().close()
