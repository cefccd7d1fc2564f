"""A client in several event loops, one after the other or at a time; workers and schedulers that are run twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.transports import AsyncWith, Unreachable
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Job, JobSpec, Scheduler, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.settings import OutboxSettings

TOPIC = "orders"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


def in_a_loop(doing: Coroutine[Any, Any, None]) -> None:
    """In an event loop of its own, which is closed afterwards; what still runs in it is cancelled."""
    asyncio.run(asyncio.wait_for(doing, PATIENCE))


def in_a_loop_that_is_just_closed(doing: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.wait_for(doing, PATIENCE))
    loop.close()


def in_a_loop_that_just_stops(doing: Coroutine[Any, Any, None]) -> None:
    asyncio.new_event_loop().run_until_complete(asyncio.wait_for(doing, PATIENCE))


async def use(client: AsyncClient) -> None:
    receipts = await asyncio.gather(*(client.schedule(TOPIC, delay=60) for _ in range(10)))
    assert all(receipt.created for receipt in receipts)
    assert len(await client.schedule_many(TOPIC, [JobSpec(delay=60)] * 600)) == 600
    assert await client.get(TOPIC, receipts[0].id) is not None


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("run", [in_a_loop, in_a_loop_that_is_just_closed, in_a_loop_that_just_stops])
@pytest.mark.parametrize("with_outbox", [False, True])
def test_a_client_is_used_in_one_event_loop_after_the_other(
    server: EmbeddedServer, tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None], with_outbox: bool
) -> None:
    client = AsyncClient.connect(server.url, outbox=tmp_path / "outbox.db" if with_outbox else None)
    for _ in range(3):
        run(use(client))
    in_a_loop(client.close())


def test_a_client_is_used_in_several_event_loops_at_a_time(server: EmbeddedServer) -> None:
    client = AsyncClient.connect(server.url)
    failures: list[BaseException] = []

    def in_a_thread() -> None:
        try:
            for _ in range(3):
                in_a_loop(use(client))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=in_a_thread) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_jobs_kept_in_one_event_loop_are_delivered_in_another(server: EmbeddedServer, tmp_path: Path) -> None:
    outbox = OutboxSettings(path=str(tmp_path / "outbox.db"), retry_ms=10)
    client = AsyncClient(AsyncWith(server.url, Unreachable("schedule", times=1)), outbox=outbox)

    async def keep() -> None:
        assert (await client.schedule("later", delay=60, key="kept")).in_outbox

    async def deliver() -> None:
        async with client:
            await until(lambda: client._outbox is not None and client._outbox.is_empty)
            assert await client.get("later", "kept") is not None

    in_a_loop(keep())
    in_a_loop(deliver())


async def test_a_scheduler_that_was_run_is_not_run_again(server: EmbeddedServer) -> None:
    scheduler = Scheduler.connect(server.url)
    scheduler.stop()
    await scheduler.run()
    with pytest.raises(RuntimeError, match="this scheduler has been run before"):
        await scheduler.run()


async def test_a_worker_that_was_run_is_not_run_again(server: EmbeddedServer) -> None:
    worker = Worker.connect(server.url)

    @worker.handler(TOPIC)
    async def handle(job: Job) -> None: ...

    worker.stop()
    await worker.run()
    with pytest.raises(RuntimeError, match="this worker has been run before"):
        await worker.run()
