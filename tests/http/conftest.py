"""Fixtures: the delay service in this process, on a wheelq of its own, and callers of it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtest.servers.nodes import free_port
from tests.transports import AsyncWith, Fault
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Settings
from wheelq.admin import metrics
from wheelq.base.clock import wall_ms
from wheelq.protocol.call import Call
from wheelq.protocol.calls import access as calls
from wheelq.protocol.keys import Keys
from wheelq.server import readiness
from wheelq.server.access import ApiKey, new_key
from wheelq.server.app import make_app
from wheelq.server.connection import Limits
from wheelq.server.run import HttpServer
from wheelq.server.service import Service
from wheelq.settings import OutboxSettings, ServerSettings, TopicSettings
from wheelq.transport import Address, AsyncTransport

BASE = "http://127.0.0.1:7380"
Http = httpx.AsyncClient
Give = Callable[..., Awaitable[tuple[ApiKey, str]]]


@pytest.fixture(autouse=True)
def has_time_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows more time for a look at the fleet, which may take long on a busy machine."""
    for module in (readiness, metrics):
        monkeypatch.setattr(module, "DEADLINE_S", PATIENCE)


@pytest.fixture
def settings() -> Settings:
    """A prefix that no other test uses."""
    return Settings(prefix=f"http-{secrets.token_hex(6)}", topic=TopicSettings(shards=2))


@pytest.fixture
async def serve(url: str, settings: Settings) -> AsyncIterator[Callable[..., Any]]:
    """`await serve(**settings)` runs a service with these server settings, and answers a caller of it.

    `faults` go between it and Redis; `token` is sent with every request; `outbox` is the file of its outbox.
    """
    async with AsyncExitStack() as stack:

        async def start(*faults: Fault, token: str | None = None, outbox: Path | None = None, **server: Any) -> Http:
            transport = AsyncWith(url, *faults) if faults else AsyncTransport(Address(url))
            kept = OutboxSettings(path=str(outbox)) if outbox is not None else OutboxSettings()
            own = replace(settings, server=ServerSettings(**server), outbox=kept)
            http = await stack.enter_async_context(calling(Service(transport, own)))
            http.headers.update({"authorization": f"Bearer {token}"} if token else {})
            return http

        yield start


@asynccontextmanager
async def calling(service: Service) -> AsyncIterator[Http]:
    """Runs a service for the block, and gives a caller of it."""
    asgi = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
    async with service.running(), Http(transport=asgi, base_url=BASE) as http:
        http.service = service  # type: ignore[attr-defined]  # for tests that look behind
        yield http


@pytest.fixture
async def transport(url: str) -> AsyncIterator[AsyncTransport]:
    transport = AsyncTransport(Address(url))
    yield transport
    await transport.close()


@pytest.fixture
def give(transport: AsyncTransport, settings: Settings) -> Give:
    """Makes a key with these scopes, as `wheelq keys create` does."""

    async def make(*scopes: str, expires_ms: int = 0) -> tuple[ApiKey, str]:
        key, token = new_key("test", scopes, wall_ms(), expires_ms)
        await transport.send(calls.put_api_key(Keys(settings.prefix), key.id, key.stored()))
        return key, token

    return make


class Counting(Fault):
    """Strikes nothing, and counts what is sent."""

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        return [call]


class Listening:
    """A server that listens at a port of this machine, and raw connections to it."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.port = int(server.servers[0].sockets[0].getsockname()[1])
        self.base = f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Opens a connection to the server."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def said(self, *parts: bytes) -> bytes:
        """Sends these bytes; returns everything that the server answers until it closes the connection."""
        async with self.connection() as (reader, writer):
            for part in parts:
                writer.write(part)
            async with asyncio.timeout(PATIENCE):
                return await reader.read()


@pytest.fixture
async def listen(url: str, settings: Settings) -> AsyncIterator[Callable[..., Any]]:
    """`await listen(limits, **settings)` runs a server that listens, in this event loop; gives a `Listening`."""
    async with AsyncExitStack() as stack:

        async def start(limits: Limits | None = None, **server: Any) -> Listening:
            own = Settings(
                prefix=settings.prefix, topic=settings.topic, server=ServerSettings(port=free_port(), **server)
            )
            listening = HttpServer(Service.connect(url, own), limits)
            running = asyncio.create_task(listening.listen())

            async def end() -> None:
                listening.stop()
                await running

            stack.push_async_callback(end)
            await until(lambda: listening.started)
            return Listening(listening)

        yield start


@pytest.fixture
async def http(serve: Callable[..., Any]) -> Http:
    """A caller of an open service."""
    found: Http = await serve()
    return found


@pytest.fixture
async def aclient(url: str, settings: Settings) -> AsyncIterator[AsyncClient]:
    """A client of the library, which sees the same jobs."""
    async with AsyncClient.connect(url, settings) as client:
        yield client
