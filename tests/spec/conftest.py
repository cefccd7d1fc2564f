"""Fixtures of the manual: a wheelq of its own for every test, clients, and a way to run schedulers and workers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from wheelq import AsyncClient, Client, Scheduler, Settings, Worker
from wheelq.settings import WorkerSettings

Run = Callable[..., asyncio.Task[None]]

PATIENCE = 15.0
"""Seconds after which a test gives up waiting; what it waits for takes far less."""


async def until(fact: Callable[[], bool | Awaitable[bool]], within: float = PATIENCE) -> None:
    """Wait for what others do in their own time, and no event tells."""
    async with asyncio.timeout(within):
        while True:
            found = fact()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


async def nothing_is_left(client: AsyncClient, topic: str) -> None:
    """Wait until all that was acked is gone: nothing waits, and nothing is ready."""

    async def is_empty() -> bool:
        [info] = [info for info in await client.topics() if info.name == topic]
        return (info.delayed, info.ready) == (0, 0)

    await until(is_empty)


@pytest.fixture
def settings() -> Settings:
    """A prefix that no other test uses: schedulers and workers serve all topics of one wheelq."""
    return Settings(prefix=f"spec-{secrets.token_hex(6)}", worker=WorkerSettings(block_ms=500, grace_ms=5_000))


@pytest.fixture
def client(url: str, settings: Settings) -> Iterator[Client]:
    """A blocking client."""
    with Client.connect(url, settings) as client:
        yield client


@pytest.fixture
async def aclient(url: str, settings: Settings) -> AsyncIterator[AsyncClient]:
    """A client on asyncio."""
    async with AsyncClient.connect(url, settings) as client:
        yield client


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """Runs schedulers and workers on the test's loop; at its end they are stopped in good order."""
    running: list[tuple[Scheduler | Worker, asyncio.Task[None]]] = []

    def start(*what: Scheduler | Worker) -> asyncio.Task[None]:
        running.extend((one, asyncio.create_task(one.run())) for one in what)
        return running[-1][1]

    yield start
    for one, _ in running:
        one.stop()
    async with asyncio.timeout(20):
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)


@pytest.fixture
async def scheduler(url: str, settings: Settings, run: Run) -> Scheduler:
    """A scheduler that runs."""
    scheduler = Scheduler.connect(url, settings)
    run(scheduler)
    return scheduler
