"""10. Handlers: functions that can be handlers, how many run at a time, and their arguments."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.spec.conftest import Inbox, Run, nothing_is_left
from tests.waiting import PATIENCE, in_time
from wheelq import AsyncClient, Job, JobSpec, Retry, Settings, Worker
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.settings import TopicSettings


async def test_plain_functions_run_in_threads(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, inbox: Inbox
) -> None:
    """So that they may block; the event loop is free meanwhile."""
    loop = asyncio.get_running_loop()
    both_there = threading.Barrier(2, timeout=PATIENCE)

    @worker.handler(topic)
    def handle(job: Job) -> None:
        both_there.wait()  # only passes if two run at the same time
        assert threading.current_thread() is not threading.main_thread()
        loop.call_soon_threadsafe(inbox.put, job)

    run(worker)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(2)])
    await inbox.wait_for(2)
    await nothing_is_left(aclient, topic)


async def test_a_plain_function_runs_on_the_event_loop_with_inline(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, inbox: Inbox
) -> None:
    """For functions that take well below a millisecond; tasks, batches and hooks around them, too."""
    ran_in: list[threading.Thread] = []

    @worker.before
    def note(job: Job) -> None:
        ran_in.append(threading.current_thread())

    @worker.handler(f"{topic}-handler", inline=True)
    def handle(job: Job) -> None:
        ran_in.append(threading.current_thread())
        inbox.put(job)

    @worker.task(f"{topic}-task", inline=True)
    def add(job: Job, a: int, b: int = 2) -> int:
        handle(job)
        return a + b

    @worker.batch_handler(f"{topic}-batch", inline=True)
    def handle_all(jobs: list[Job]) -> None:
        for job in jobs:
            handle(job)

    @worker.handler(f"{topic}-later", inline=True)
    def later(job: Job) -> Coroutine[Any, Any, None]:
        async def run_it() -> None:
            handle(job)

        return run_it()

    run(worker)
    await aclient.schedule(add.job(1), delay=0)
    for kind in ("handler", "batch", "later"):
        await aclient.schedule(f"{topic}-{kind}", 1, delay=0)
    await inbox.wait_for(4)
    assert set(ran_in) == {threading.current_thread()}
    for kind in ("handler", "task", "batch", "later"):
        await nothing_is_left(aclient, f"{topic}-{kind}")


async def test_an_inline_handler_that_raises_has_failed(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, inbox: Inbox
) -> None:

    @worker.handler(topic, inline=True, retry=Retry(max_attempts=1))
    def handle(job: Job) -> None:
        inbox.put(job)
        if job.payload == "ends the process":
            raise SystemExit(1)

    run(worker)
    for payload in ("ends the process", "runs after it"):
        await aclient.schedule(topic, payload, delay=0)
    await inbox.wait_for(2)
    await nothing_is_left(aclient, topic)
    [dead] = (await aclient.dead.list(topic)).jobs
    assert dead.error == "RuntimeError: the handler called sys.exit(1)"


def test_inline_is_refused_where_it_cannot_be(url: str) -> None:
    worker = Worker.connect(url)

    async def runs_on_the_loop(job: Job) -> None: ...

    def plain(job: Job) -> None: ...

    async def of_a_batch(jobs: list[Job]) -> None: ...

    with pytest.raises(InvalidInput, match="inline: is for plain functions: an async handler runs on the event loop"):
        worker.handler("orders", inline=True)(runs_on_the_loop)
    with pytest.raises(InvalidInput, match="inline: is for plain functions"):
        worker.task("orders", inline=True)(runs_on_the_loop)
    with pytest.raises(InvalidInput, match="inline: is for plain functions"):
        worker.batch_handler("orders", inline=True)(of_a_batch)
    with pytest.raises(InvalidInput, match="timeout: cannot be kept with inline=True"):
        worker.handler("orders", inline=True, timeout=1)(plain)
    assert worker.topics == []


async def test_an_object_with_an_async_call_is_a_handler_too(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, inbox: Inbox
) -> None:
    class Handler:
        async def __call__(self, job: Job) -> None:
            inbox.put(job)

    worker.handler(topic)(Handler())
    run(worker)
    await aclient.schedule(topic, 1, delay=0)
    assert [job.payload for job in await inbox.wait_for(1)] == [1]


async def test_a_plain_function_that_returns_a_coroutine_has_it_run(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, inbox: Inbox
) -> None:
    """As `lambda job: close_order(job)` does, and many a decorator."""

    async def close_order(job: Job) -> None:
        inbox.put(job)

    worker.handler(topic)(lambda job: close_order(job))
    run(worker)
    await aclient.schedule(topic, 1, delay=0)
    assert [job.payload for job in await inbox.wait_for(1)] == [1]


async def test_no_more_than_concurrency_handlers_run_at_a_time(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """3 here; the other jobs stay in the stream, for workers that are free."""
    worker = Worker.connect(url, settings=settings, concurrency=3)
    running, most, done = 0, 0, 0
    all_done = asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        done += 1
        if done == 30:
            all_done.set()

    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(30)])
    run(worker)
    await in_time(all_done.wait())
    assert most == 3


async def test_a_worker_reads_no_more_than_it_can_start(
    url: str, settings: Settings, topic: str, run: Run, make_worker: Callable[..., Worker]
) -> None:
    """Also with several shards: what it cannot start yet another worker could."""
    worker = Worker.connect(url, settings=settings, concurrency=4)
    began: list[str] = []
    four_began, may_end = asyncio.Event(), asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        began.append(job.id)
        if len(began) == 4:
            four_began.set()
        await may_end.wait()

    async with AsyncClient.connect(url, replace(settings, topic=TopicSettings(shards=4))) as client:
        receipts = await client.schedule_many(topic, [JobSpec(n, delay=0) for n in range(40)])
        run(worker)
        await in_time(four_began.wait())
        infos = [await client.get(topic, receipt.id) for receipt in receipts]
        may_end.set()
        assert sum(info is not None and info.state == "running" for info in infos) == 4


async def test_each_run_has_a_context_of_its_own(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:
    """A context variable set by one job is not seen by the next."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="fresh")
    worker = Worker.connect(url, settings=settings, concurrency=1)
    seen: list[str] = []
    all_seen = asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        seen.append(variable.get())
        variable.set(job.id)
        if job.payload % 2:
            await asyncio.sleep(0)
        assert variable.get() == job.id
        if len(seen) == 10:
            all_seen.set()

    run(worker)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])
    await in_time(all_seen.wait())
    assert seen == ["fresh"] * 10


async def test_a_worker_counts_what_it_has_done(
    aclient: AsyncClient, topic: str, run: Run, make_worker: Callable[..., Worker], inbox: Inbox
) -> None:
    worker = make_worker()
    run(worker)
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(10)])
    await inbox.wait_for(10)
    await nothing_is_left(aclient, topic)
    assert (worker.handled, worker.failed, worker.lateness.count, worker.topics) == (10, 0, 10, [topic])


def test_a_topic_has_one_handler(url: str, topic: str) -> None:
    worker = Worker.connect(url)
    worker.handler(topic)(print)
    with pytest.raises(ConfigurationError, match="already"):
        worker.handler(topic)(print)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_more_than_nothing(url: str, topic: str, timeout: float) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        Worker.connect(url).handler(topic, timeout=timeout)(print)


def test_a_handlers_topic_must_be_one(url: str) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        Worker.connect(url).handler("no topic")


@pytest.mark.parametrize("decorator", ["handler", "batch_handler"])
def test_a_decorator_without_a_topic_is_told(url: str, decorator: str) -> None:
    def handle(job: Job) -> None: ...

    with pytest.raises(InvalidInput, match="topic: is the function"):
        getattr(Worker.connect(url), decorator)(handle)


def test_a_handler_is_a_function_and_its_retry_a_retry(url: str, topic: str) -> None:
    with pytest.raises(InvalidInput, match="function: must be a function"):
        Worker.connect(url).handler(topic)("close_order")  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="retry: must be a Retry"):
        Worker.connect(url).handler(topic, retry=3)(print)  # type: ignore[arg-type]


def test_the_decorator_leaves_the_function_as_it_is(url: str, topic: str) -> None:
    def handle(job: Job) -> None: ...

    assert Worker.connect(url).handler(topic)(handle) is handle


async def test_a_worker_without_handlers_does_not_start(url: str) -> None:
    with pytest.raises(ConfigurationError, match="handler"):
        await Worker.connect(url).run()
