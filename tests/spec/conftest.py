"""Fixtures of the manual: a wheelq of its own for every test, clients, and a way to run schedulers and workers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Client, Job, JobInfo, JobState, Scheduler, Settings, Worker
from wheelq.settings import WorkerSettings

Run = Callable[..., asyncio.Task[None]]


async def nothing_is_left(client: AsyncClient, topic: str) -> None:
    """Wait until every job is finished."""

    async def is_empty() -> bool:
        return (await counts(client, topic))[:2] == (0, 0)

    await until(is_empty)


async def counts(client: AsyncClient, topic: str) -> tuple[int, int, int]:
    """Jobs that wait, for their due time or a retry; that are ready or running; that are dead."""
    [info] = [info for info in await client.topics() if info.name == topic]
    return info.waiting + info.retrying, info.ready + info.running, info.dead


async def counts_are(client: AsyncClient, topic: str, expected: tuple[int, int, int]) -> None:
    """Wait until `counts` says so."""

    async def is_so() -> bool:
        return await counts(client, topic) == expected

    await until(is_so)


async def state_is(client: AsyncClient, topic: str, id: str, state: JobState | str) -> None:
    """Wait until a job is in this state."""

    async def is_so() -> bool:
        info = await client.get(topic, id)
        return info is not None and info.state == state

    await until(is_so)


def known(info: JobInfo | None) -> JobInfo:
    """What `get` tells of a job, which is there."""
    assert info is not None, "there is no such job"
    return info


class Inbox:
    """Jobs as a handler got them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self._changed = asyncio.Event()

    def put(self, job: Job) -> None:
        self.jobs.append(job)
        self._changed.set()

    async def wait_for(self, count: int) -> list[Job]:
        async with asyncio.timeout(PATIENCE):
            while len(self.jobs) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.jobs


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
    """Runs schedulers and workers on the test's loop; at its end they are stopped in good order.

    If one ended with an error, the test fails.
    """
    running: list[tuple[Scheduler | Worker, asyncio.Task[None]]] = []

    def start(*what: Scheduler | Worker) -> asyncio.Task[None]:
        running.extend((one, asyncio.create_task(one.run())) for one in what)
        return running[-1][1]

    yield start
    for one, _ in running:
        one.stop()
    async with asyncio.timeout(PATIENCE):
        ended = await asyncio.gather(*(task for _, task in running), return_exceptions=True)
    if errors := [error for error in ended if isinstance(error, Exception)]:
        raise ExceptionGroup("a scheduler or a worker ended with an error", errors)


@pytest.fixture
async def scheduler(url: str, settings: Settings, run: Run) -> Scheduler:
    """A scheduler that runs."""
    scheduler = Scheduler.connect(url, settings)
    run(scheduler)
    return scheduler


@pytest.fixture
def worker(url: str, settings: Settings) -> Worker:
    """A worker without handlers yet."""
    return Worker.connect(url, settings=settings)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def make_worker(url: str, settings: Settings, topic: str, inbox: Inbox) -> Callable[..., Worker]:
    """A worker that puts what it gets into the inbox."""

    def make(group: str = "g", into: Inbox = inbox, concurrency: int | None = None) -> Worker:
        worker = Worker.connect(url, group=group, settings=settings, concurrency=concurrency)

        @worker.handler(topic)
        async def handle(job: Job) -> None:
            into.put(job)

        return worker

    return make
