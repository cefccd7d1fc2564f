"""The server refuses something for a while: nothing ends because of it, and work goes on when it is over.

Only at its start may a process end by itself, because sign-in, TLS, database number or version is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers.nodes import free_port
from tests.faults.test_starts import busy
from tests.running import each_part, waits_out
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Job, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.errors import AuthenticationFailed, Refused, ServerError, ServerTooOld, WrongDatabase, is_wrong_setup
from wheelq.protocol.call import command
from wheelq.server.run import HttpServer
from wheelq.settings import ServerSettings, WorkerSettings
from wheelq.transport import Address, AsyncTransport

REFUSED_S = 1.5
"""How long the server refuses. Every loop meets it several times."""

Refusal = Callable[[EmbeddedServer, AsyncTransport], AbstractAsyncContextManager[None]]


async def ask(transport: AsyncTransport, *words: str | int) -> Any:
    return await transport.send(command(str(words[0]), *words[1:], read=lambda reply: reply))


@asynccontextmanager
async def too_few_replicas(server: EmbeddedServer, admin: AsyncTransport) -> AsyncIterator[None]:
    await ask(admin, "CONFIG", "SET", "min-replicas-to-write", 1)
    yield
    await ask(admin, "CONFIG", "SET", "min-replicas-to-write", 0)


@asynccontextmanager
async def no_snapshot(server: EmbeddedServer, admin: AsyncTransport) -> AsyncIterator[None]:
    """Every write is refused with MISCONF, as on a full disk."""
    folder = (await ask(admin, "CONFIG", "GET", "dir"))[1].decode()
    in_the_way = Path(folder) / "dump.rdb" / "x"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    await ask(admin, "CONFIG", "SET", "save", "3600 1000000")
    await ask(admin, "BGSAVE")

    async def has_failed() -> bool:
        return b"rdb_last_bgsave_status:err" in await ask(admin, "INFO", "persistence")

    await until(has_failed)
    yield
    in_the_way.unlink()
    in_the_way.parent.rmdir()
    await ask(admin, "CONFIG", "SET", "save", "")


@asynccontextmanager
async def a_script_that_runs_on(server: EmbeddedServer, admin: AsyncTransport) -> AsyncIterator[None]:
    async with busy(server):
        yield


@asynccontextmanager
async def another_password(server: EmbeddedServer, admin: AsyncTransport) -> AsyncIterator[None]:
    """It is changed, and all connections are closed, as by an operator who rotates it."""
    await ask(admin, "ACL", "SETUSER", "default", "resetpass", ">another")
    for kind in ("normal", "pubsub"):
        await ask(admin, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    yield
    await ask(admin, "ACL", "SETUSER", "default", "resetpass", ">right")


@pytest.fixture
def server(private_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    return private_server(password="right", options={"lua-time-limit": "10"})


@pytest.fixture
async def admin(server: EmbeddedServer) -> AsyncIterator[AsyncTransport]:
    transport = AsyncTransport(Address(server.url))
    await ask(transport, "PING")
    yield transport
    await transport.close()


Make = Callable[[str], Scheduler | Worker]
ALL: list[Refusal] = [too_few_replicas, no_snapshot, a_script_that_runs_on, another_password]


@pytest.mark.every_server
@pytest.mark.parametrize("refusal", ALL)
async def test_a_refusal_while_a_part_runs_is_waited_out_and_reported_once(
    server: EmbeddedServer, admin: AsyncTransport, refusal: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker for plain and ordered topics, and a scheduler: jobs from before and from after the refusal are done."""
    done: set[str] = set()
    settings = Settings(worker=WorkerSettings(renew_ms=100, block_ms=200))
    worker, scheduler = Worker.connect(server.url, settings=settings), Scheduler.connect(server.url)

    async def work(job: Job) -> None:
        job.progress(0.5)
        done.add(job.id)

    worker.handler("plain")(work)
    worker.handler("ordered", ordered=True)(work)
    running = [asyncio.create_task(part.run()) for part in (worker, scheduler)]
    async with AsyncClient.connect(server.url) as client:
        for topic in ("plain", "ordered"):
            await client.schedule(topic, delay=0, key=f"{topic} first")
        await until(lambda: len(done) == 2)
        for topic in ("plain", "ordered"):
            await client.schedule(topic, delay=REFUSED_S / 2, key=f"{topic} before")
        async with refusal(server, admin):
            await asyncio.sleep(REFUSED_S)
        assert not any(task.done() for task in running)
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        said = [(record.name, record.getMessage().rpartition(": ")[2]) for record in warnings]
        assert len(said) == len(set(said)), "each is said once"
        await until(lambda: len(done) == 4)
        for topic in ("plain", "ordered"):
            await client.schedule(topic, delay=0.1, key=f"{topic} after")
        await until(lambda: len(done) == 6)
        await until(lambda: worker._hints.is_listening)
    for part in (worker, scheduler):
        part.stop()
    await asyncio.gather(*running)


@pytest.mark.every_server
@each_part
@pytest.mark.parametrize("refusal", [too_few_replicas, no_snapshot])
async def test_a_refusal_at_the_start_is_waited_out(
    server: EmbeddedServer,
    admin: AsyncTransport,
    refusal: Refusal,
    make: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with AsyncClient.connect(server.url) as client:
        await client.schedule("orders", delay=60)
    await waits_out(make(server.url), refusal(server, admin), caplog)


async def too_old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks like a Redis 5: it knows INFO, and no HELLO."""
    while line := await reader.readline():
        words = []
        for _ in range(int(line[1:])):
            size = int((await reader.readline())[1:])
            words.append((await reader.readexactly(size + 2))[:-2].upper())
        said = b"redis_version:5.0.14\r\n" if words[0] == b"INFO" else b""
        writer.write(b"$%d\r\n%s\r\n" % (len(said), said) if said else b"-ERR unknown command 'X'\r\n")


@pytest.mark.every_server
@each_part
@pytest.mark.parametrize("wrong", ["password", "database", "version"])
async def test_a_wrong_setup_is_not_waited_out(server: EmbeddedServer, make: Make, wrong: str) -> None:
    old = await asyncio.start_server(too_old, "127.0.0.1", 0)
    urls: dict[str, tuple[str, type[ServerError]]] = {
        "password": (server.url.replace("right", "wrong"), AuthenticationFailed),
        "database": (f"{server.url}?db=99", WrongDatabase),
        "version": (f"redis://127.0.0.1:{old.sockets[0].getsockname()[1]}", ServerTooOld),
    }
    url, error = urls[wrong]
    async with old:
        with pytest.raises(error) as raised:
            await make(url).run(patiently=True)
        assert is_wrong_setup(raised.value)
        http = HttpServer.connect(url, Settings(server=ServerSettings(port=free_port())))
        with pytest.raises(error):
            await http.listen()


async def wrong_password(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node of a cluster, or a sentinel, that lets nobody in."""
    while await reader.read(1_000):
        writer.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n")


@each_part
@pytest.mark.parametrize(
    "url",
    ["redis+cluster://u:p@127.0.0.1:{port},127.0.0.1:1", "redis+sentinel://127.0.0.1:{port},127.0.0.1:1/shop{login}"],
)
async def test_a_wrong_password_is_not_hidden_by_nodes_and_sentinels_that_are_away(make: Make, url: str) -> None:
    async with await asyncio.start_server(wrong_password, "127.0.0.1", 0) as nobody_in:
        port = nobody_in.sockets[0].getsockname()[1]
        login = "?sentinel_username=u&sentinel_password=p"
        with pytest.raises(AuthenticationFailed):
            await make(url.format(port=port, login=login)).run(patiently=True)


# Background tasks


async def ends() -> None:
    await asyncio.sleep(0.05)


async def raises() -> None:
    await asyncio.sleep(0.05)
    raise KeyError("unexpected")


async def is_cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(0.05, task.cancel)
    await asyncio.sleep(60)


@pytest.mark.parametrize(("end", "error"), [(ends, RuntimeError), (raises, KeyError), (is_cancelled, RuntimeError)])
@each_part
async def test_a_background_task_that_dies_ends_what_runs_with_an_error(
    url: str,
    make: Make,
    end: Callable[[], Any],
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = make(url)
    dying: Any = one._janitor if isinstance(one, Worker) else one._draining
    monkeypatch.setattr(dying, "run", lambda *arguments: end())
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(error):
            await one.run()


async def test_a_background_task_that_dies_ends_the_http_server_with_an_error(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(server=ServerSettings(access="keys", port=free_port()))
    http = HttpServer.connect(url, settings)
    monkeypatch.setattr(http._service.keyring, "run", raises)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(KeyError, match="unexpected"):
            await http.listen()


def test_a_refusal_is_no_wrong_setup() -> None:
    assert not is_wrong_setup(Refused("NOREPLICAS"))
