"""Both faces of the client as one, so that one test proves the blocking client and the asyncio client.

@both_faces
async def test_…(face: Face, url: str) -> None:
    async with face.connect(url) as client:
        await client.schedule("orders", delay=60)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import Any

import pytest

from tests.transports import AsyncWith, BlockingWith, Fault
from wheelq import AsyncClient, Client, Settings


class Awaited:
    """A blocking client whose calls are awaited; each runs in a thread."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(asyncio.to_thread, getattr(self._client, name))


class Face(StrEnum):
    """A kind of client."""

    BLOCKING = "blocking"
    ASYNCIO = "asyncio"

    @asynccontextmanager
    async def connect(self, url: str, settings: Settings | None = None, **options: Any) -> AsyncIterator[Any]:
        """A client of this kind, closed at the end of the block."""
        if self is Face.BLOCKING:
            with Client.connect(url, settings, **options) as client:
                yield Awaited(client)
        else:
            async with AsyncClient.connect(url, settings, **options) as aclient:
                yield aclient

    @asynccontextmanager
    async def struck(self, url: str, *faults: Fault, **options: Any) -> AsyncIterator[Any]:
        """A client of this kind with faults between it and the server."""
        if self is Face.BLOCKING:
            with Client(BlockingWith(url, *faults), **options) as client:
                yield Awaited(client)
        else:
            async with AsyncClient(AsyncWith(url, *faults), **options) as aclient:
                yield aclient


both_faces = pytest.mark.parametrize("face", Face)
