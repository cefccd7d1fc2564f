"""What runs long starts before its server does, or while that loads its data: it waits, and goes on by itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.waiting import PATIENCE, eventually, until
from wheelq import AsyncClient, Client, Job, Scheduler, Settings, Worker
from wheelq.admin import Inspector
from wheelq.embedded import EmbeddedServer
from wheelq.errors import AuthenticationFailed, OutcomeUnknown, Refused, ServerBusy, Unavailable
from wheelq.protocol.call import command
from wheelq.server.run import HttpServer
from wheelq.settings import ServerSettings
from wheelq.transport import Address, AsyncTransport, Transport

Start = Callable[..., EmbeddedServer]
WAITS = "waiting until the server can be used"


def node(url: str, topic: str) -> Scheduler:
    return Scheduler.connect(url)


def worker(url: str, topic: str) -> Worker:
    found = Worker.connect(url)
    found.handler(topic)(lambda job: None)
    return found


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


async def said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    await until(lambda: words in caplog.text)


@contextlib.contextmanager
def stopped(server: EmbeddedServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@pytest.mark.parametrize("make", [node, worker])
async def test_a_server_that_is_busy_at_the_start_is_waited_for(
    make: Callable[[str, str], Scheduler | Worker], server: EmbeddedServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = make(server.url, topic)
    async with busy(server):
        running = asyncio.create_task(one.run())
        await said(caplog, WAITS)
    caplog.set_level("INFO")
    await said(caplog, "the server can be used, after")
    one.stop()
    await running


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
    seen = asyncio.Event()
    found = Worker.connect(server.url)

    @found.handler(topic)
    async def handle(job: Job) -> None:
        seen.set()

    scheduler = Scheduler.connect(server.url)
    await asyncio.to_thread(eventually, lambda: is_busy(transport))
    running = [asyncio.create_task(found.run()), asyncio.create_task(scheduler.run())]
    await said(caplog, "loading the dataset")
    with contextlib.suppress(Refused):  # Redis 6.2 changes no settings while it loads; then it takes half a minute
        transport.send(command("CONFIG SET", "key-load-delay", 0, read=bool))
    async with asyncio.timeout(PATIENCE):
        await seen.wait()
    found.stop()
    scheduler.stop()
    await asyncio.gather(*running, starting)


@pytest.mark.parametrize("make", [node, worker])
async def test_the_patient_wait_for_a_server_that_is_away(
    make: Callable[[str, str], Scheduler | Worker], server: EmbeddedServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = make(server.url, topic)
    with stopped(server):
        running = asyncio.create_task(one.run(patiently=True))
        await said(caplog, WAITS)
    caplog.set_level("INFO")
    await said(caplog, "the server can be used, after")
    one.stop()
    await running


@pytest.mark.parametrize("make", [node, worker])
async def test_a_waiting_process_can_be_stopped(
    make: Callable[[str, str], Scheduler | Worker], server: EmbeddedServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = make(server.url, topic)
    server.kill()
    running = asyncio.create_task(one.run(patiently=True))
    await said(caplog, WAITS)
    one.stop()
    async with asyncio.timeout(PATIENCE):
        await running


@pytest.mark.parametrize("make", [node, worker])
async def test_patience_does_not_wait_for_what_it_cannot_mend(
    make: Callable[[str, str], Scheduler | Worker], private_server: Start, topic: str
) -> None:
    url = private_server(password="right").url
    with pytest.raises(AuthenticationFailed):
        await make(url.replace("right", "wrong"), topic).run(patiently=True)


async def test_a_server_that_is_busy_is_not_diagnosed(server: EmbeddedServer) -> None:
    """It refuses whatever it is asked, which says nothing of what it could do."""
    async with busy(server):
        with Inspector.connect(server.url) as inspector, pytest.raises(ServerBusy):
            await asyncio.to_thread(inspector.doctor)


async def test_an_http_server_that_needs_its_keys_waits_for_them(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot know whom to let in before it has read them once."""
    http = HttpServer.connect(server.url, Settings(server=ServerSettings(access="keys")))
    server.kill()
    listening = asyncio.create_task(http.listen())
    await said(caplog, WAITS)
    http.stop()
    async with asyncio.timeout(PATIENCE):
        await listening


async def test_jobs_run_as_soon_as_the_awaited_server_is_there(
    server: EmbeddedServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing has to be started again: jobs run as soon as the server is there."""
    seen = asyncio.Event()
    found = Worker.connect(server.url)

    @found.handler(topic)
    async def handle(job: Job) -> None:
        seen.set()

    scheduler = Scheduler.connect(server.url)
    with stopped(server):
        running = [asyncio.create_task(one.run(patiently=True)) for one in (found, scheduler)]
        await said(caplog, WAITS)
    async with AsyncClient.connect(server.url) as client:
        await client.schedule(topic, delay=0.1)
        async with asyncio.timeout(PATIENCE):
            await seen.wait()
    found.stop()
    scheduler.stop()
    await asyncio.gather(*running)
