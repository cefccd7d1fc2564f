"""Fixtures: the delay service in this process, on a wheelq of its own, and callers of it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.transports import AsyncWith, Fault
from wheelq import AsyncClient, Settings
from wheelq.server.app import make_app
from wheelq.server.service import Service
from wheelq.settings import ServerSettings, TopicSettings
from wheelq.transport import Address, AsyncTransport

BASE = "http://127.0.0.1:7380"
Http = httpx.AsyncClient


@pytest.fixture
def settings() -> Settings:
    """A prefix that no other test uses."""
    return Settings(prefix=f"http-{secrets.token_hex(6)}", topic=TopicSettings(shards=2))


@pytest.fixture
async def serve(url: str, settings: Settings) -> AsyncIterator[Callable[..., Any]]:
    """`await serve(**settings)` runs a service with these server settings, and answers a caller of it.

    `faults` go between it and Redis; `token` is sent with every request.
    """
    async with AsyncExitStack() as stack:

        async def start(*faults: Fault, token: str | None = None, **server: Any) -> Http:
            transport = AsyncWith(url, *faults) if faults else AsyncTransport(Address(url))
            own = Settings(prefix=settings.prefix, topic=settings.topic, server=ServerSettings(**server))
            service = Service(transport, own)
            await stack.enter_async_context(service.running())
            asgi = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
            headers = {"authorization": f"Bearer {token}"} if token else {}
            http = Http(transport=asgi, base_url=BASE, headers=headers)
            http.service = service  # type: ignore[attr-defined]  # for tests that look behind
            return await stack.enter_async_context(http)

        yield start


@pytest.fixture
async def http(serve: Callable[..., Any]) -> Http:
    """A caller of an open service."""
    found: Http = await serve()
    return found


@pytest.fixture
async def aclient(url: str, settings: Settings) -> AsyncIterator[AsyncClient]:
    """The library beside it, on the same jobs."""
    async with AsyncClient.connect(url, settings) as client:
        yield client
