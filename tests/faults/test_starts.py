"""What runs long starts before its server does, or while that loads its data: it waits, and goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest

from loadtest.servers.nodes import free_port
from tests.running import WAITS, collecting, each_part, running, waits_out
from tests.waiting import PATIENCE, eventually, until
from wheelq import AsyncClient, Client, Scheduler, Settings, Worker
from wheelq.admin import Inspector
from wheelq.embedded import EmbeddedServer
from wheelq.errors import OutcomeUnknown, Refused, ServerBusy, Unavailable
from wheelq.protocol.call import command
from wheelq.server.run import HttpServer
from wheelq.settings import ServerSettings
from wheelq.transport import Address, AsyncTransport, Transport

Start = Callable[..., EmbeddedServer]
Make = Callable[[str, str], Scheduler | Worker]


@pytest.fixture
def server(private_server: Start) -> EmbeddedServer:
    return private_server(options={"lua-time-limit": "10"})


@asynccontextmanager
async def busy(server: EmbeddedServer) -> AsyncIterator[None]:
    """Somebody's script runs on and on, and the server says so to all others."""
    transport = AsyncTransport(Address(server.url))
    running = asyncio.create_task(transport.send(command("EVAL", "while true do end", 0, read=bool)))
    other = Transport(Address(server.url))
    await asyncio.to_thread(eventually, lambda: is_busy(other))
    yield
    other.send(command("SCRIPT KILL", read=bool))
    await asyncio.gather(running, return_exceptions=True)
    await transport.close()


def is_busy(transport: Transport) -> bool:
    try:
        transport.send(command("GET", "nothing", read=bool))
    except ServerBusy:
        return True
    except (OutcomeUnknown, Unavailable):
        pass
    return False


@asynccontextmanager
async def stopped(server: EmbeddedServer) -> AsyncIterator[None]:
    server.kill()
    yield
    server.start()


@each_part
@pytest.mark.parametrize("trouble", [busy, stopped])
async def test_a_server_that_is_busy_or_away_at_the_start_is_waited_for(
    make: Make,
    server: EmbeddedServer,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    trouble: Callable[[EmbeddedServer], AbstractAsyncContextManager[None]],
) -> None:
    """One that is away only by who is patient."""
    await waits_out(make(server.url, topic), trouble(server), caplog, patiently=trouble is stopped)


@pytest.mark.slow
async def test_a_server_that_loads_its_data_is_waited_for_and_the_job_it_loaded_runs(
    private_server: Start, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """50 milliseconds for each key, until it was met loading."""
    slow = {"key-load-delay": "50000", "rdbcompression": "no"}  # it answers after every 2 MB that it has read
    server = private_server(appendonly=False, options=slow)
    with Client.connect(server.url) as client:
        client.schedule(topic, delay=0.1, key="k")
    fill = "for n = 1, 600 do redis.call('SET', 'other-' .. n, string.rep('x', 100000)) end"
    transport = Transport(Address(server.url))
    transport.send(command("EVAL", fill, 0, read=bool))
    transport.send(command("SAVE", read=bool))
    server.kill()
    starting = asyncio.create_task(asyncio.to_thread(server.start))
    worker, ran = collecting(server.url, topic)
    await asyncio.to_thread(eventually, lambda: is_busy(transport))
    async with running(Scheduler.connect(server.url), worker):
        await until(lambda: "loading the dataset" in caplog.text)
        with contextlib.suppress(Refused):  # Redis 6.2 changes no settings while it loads; then it takes half a minute
            transport.send(command("CONFIG SET", "key-load-delay", 0, read=bool))
        await until(lambda: ran == ["k"])
    await starting


@each_part
async def test_a_waiting_process_can_be_stopped(
    make: Make, server: EmbeddedServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = make(server.url, topic)
    server.kill()
    running = asyncio.create_task(one.run(patiently=True))
    await until(lambda: WAITS in caplog.text)
    one.stop()
    async with asyncio.timeout(PATIENCE):
        await running


async def test_a_server_that_is_busy_is_not_diagnosed(server: EmbeddedServer) -> None:
    """It refuses whatever it is asked, which says nothing of what it could do."""
    async with busy(server):
        with Inspector.connect(server.url) as inspector, pytest.raises(ServerBusy):
            await asyncio.to_thread(inspector.doctor)


async def test_an_http_server_that_needs_its_keys_listens_before_it_can_read_them(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is healthy, because a restart would not help it."""
    http = HttpServer.connect(server.url, Settings(server=ServerSettings(access="keys", port=free_port())))
    server.kill()
    listening = asyncio.create_task(http.listen())
    await until(lambda: http.started and "API keys stay as they were until the server is back" in caplog.text)
    http.stop()
    async with asyncio.timeout(PATIENCE):
        await listening


async def test_jobs_run_as_soon_as_the_awaited_server_is_there(
    server: EmbeddedServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing has to be started again: jobs run as soon as the server is there."""
    worker, ran = collecting(server.url, topic)
    async with AsyncExitStack() as stack:
        async with stopped(server):
            await stack.enter_async_context(running(Scheduler.connect(server.url), worker, patiently=True))
            await until(lambda: WAITS in caplog.text)
        async with AsyncClient.connect(server.url) as client:
            await client.schedule(topic, key="k", delay=0.1)
            await until(lambda: ran == ["k"])
