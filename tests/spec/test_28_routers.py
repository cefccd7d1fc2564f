"""28. Routers: handlers and hooks of several modules, in one worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, ConfigurationError, InvalidInput, Job, JobSpec, Router, Settings, Worker


@pytest.fixture
def worker(url: str, settings: Settings) -> Worker:
    """A worker without handlers yet."""
    return Worker.connect(url, group="g", settings=settings)


async def test_handlers_tasks_batches_and_order_of_two_routers_run_in_one_worker(
    worker: Worker, aclient: AsyncClient, topic: str
) -> None:
    first, second, ran = Router(), Router(), list[object]()

    @first.handler(f"{topic}-plain")
    def plain(job: Job) -> None:
        ran.append(job.payload)

    @first.task(f"{topic}-task")
    async def task(number: int) -> None:
        ran.append(number)

    @second.batch_handler(f"{topic}-batch", max_size=2, max_wait=60)
    async def batch(jobs: list[Job]) -> None:
        ran.extend(job.payload for job in jobs)

    worker.include(first, second)

    @second.handler(f"{topic}-ordered", ordered=True)  # after it was included
    async def ordered(job: Job) -> None:
        ran.append(job.payload)

    async with running(worker):
        await aclient.schedule(f"{topic}-plain", 1, delay=0)
        await aclient.schedule(task.job(2), delay=0)
        await aclient.schedule_many(f"{topic}-batch", [JobSpec(3, delay=0), JobSpec(4, delay=0)])
        await aclient.schedule(f"{topic}-ordered", 5, delay=0)
        await until(lambda: sorted(map(str, ran)) == ["1", "2", "3", "4", "5"])


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_hooks_of_a_router_run_within_those_of_the_worker_and_around_its_own_handlers_only(
    worker: Worker, aclient: AsyncClient, topic: str, kind: str
) -> None:
    router, story = Router(), list[str]()

    @router.lifespan
    async def inner() -> AsyncIterator[str]:
        story.append("inner starts")
        yield "of the router"
        story.append("inner stops")

    @worker.lifespan
    def outer() -> Iterator[None]:
        story.append("outer starts")
        yield
        story.append("outer stops")

    def around(name: str) -> Callable[[Sequence[Job], Callable[[], Awaitable[Any]]], Awaitable[Any]]:
        async def run(jobs: Sequence[Job], proceed: Callable[[], Awaitable[Any]]) -> Any:
            story.append(name)
            return await proceed()

        return run

    router.middleware(around("router"))
    router.before(lambda job: story.append("before"))
    worker.include(router)
    worker.middleware(around("worker"))

    @worker.handler(f"{topic}-own")
    async def own(job: Job) -> None:
        story.append("own handler")

    if kind == "async":

        @router.handler(topic)
        async def asynchronous(job: Job) -> None:
            story.append(f"handler {inner.value}")
    else:

        @router.handler(topic)
        def plain(job: Job) -> None:
            story.append(f"handler {inner.value}")

    async with running(worker):
        await aclient.schedule(topic, delay=0)
        await until(lambda: "handler of the router" in story)
        await aclient.schedule(f"{topic}-own", delay=0)
        await until(lambda: "own handler" in story)
    assert story == [
        *("outer starts", "inner starts"),
        *("worker", "router", "before", "handler of the router"),
        *("worker", "own handler"),
        *("inner stops", "outer stops"),
    ]


async def test_handler_for_each_of_a_router_leaves_the_worker_its_own_topics(
    worker: Worker, aclient: AsyncClient, topic: str
) -> None:
    router, ran = Router(), list[tuple[str, str]]()
    found = [f"{topic}-own", f"{topic}-one"]

    async def find() -> list[str]:
        return found

    @router.handler_for_each(find)
    async def each(job: Job) -> None:
        ran.append(("each", job.topic))

    @worker.handler(f"{topic}-own")
    async def own(job: Job) -> None:
        ran.append(("own", job.topic))

    worker.include(router)
    for name in found:
        await aclient.schedule(name, delay=0)
    async with running(worker):
        await until(lambda: sorted(ran) == [("each", f"{topic}-one"), ("own", f"{topic}-own")])
        found.append(f"{topic}-later")
        await aclient.schedule(f"{topic}-later", delay=0)
        await until(lambda: ("each", f"{topic}-later") in ran)


async def test_handler_for_each_serves_a_topic_wherever_it_has_no_handler_of_its_own(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    """A router in two workers left the topic that one of them handles itself to nobody in the group of the other."""
    router, ran = Router(), list[str]()

    async def find() -> list[str]:
        return [topic]

    @router.handler_for_each(find)
    async def each(job: Job) -> None:
        ran.append("each")

    first, second = (Worker.connect(url, group=group, settings=settings) for group in ("g", "h"))

    @first.handler(topic)
    async def own(job: Job) -> None:
        ran.append("own")

    for worker in (first, second):
        worker.include(router)
    await aclient.schedule(topic, delay=0)
    async with running(first, second):
        await until(lambda: sorted(ran) == ["each", "own"])


async def test_one_router_serves_two_workers(url: str, settings: Settings, aclient: AsyncClient, topic: str) -> None:
    router, ran = Router(), list[str]()
    router.handler(topic)(lambda job: ran.append(job.id))
    workers = [Worker.connect(url, group=group, settings=settings) for group in ("g", "h")]
    for worker in workers:
        worker.include(router)
    async with running(*workers):
        await aclient.schedule(topic, delay=0, key="a")
        await until(lambda: ran == ["a", "a"])


async def test_each_worker_of_a_router_has_its_own_resources(
    url: str, settings: Settings, aclient: AsyncClient, topic: str
) -> None:
    """Also while another one runs, has stopped, or started later."""
    router, opened, used = Router(), list[str](), list[tuple[str, str]]()

    @router.lifespan
    async def resource() -> AsyncIterator[str]:
        opened.append(name := f"resource {len(opened) + 1}")
        yield name
        opened.remove(name)

    @router.handler(f"{topic}-async")
    async def asynchronous(job: Job) -> None:
        used.append((job.id, resource.value))

    @router.handler(f"{topic}-plain")
    def plain(job: Job) -> None:
        used.append((job.id, resource.value))

    first, second = (Worker.connect(url, group=group, settings=settings) for group in ("g", "h"))
    for worker in (first, second):
        worker.include(router)

    async def use(id: str, workers: int) -> list[tuple[str, str]]:
        used.clear()
        for kind in ("async", "plain"):
            await aclient.schedule(f"{topic}-{kind}", delay=0, key=f"{id}-{kind}")
        await until(lambda: len(used) == 2 * workers)
        return sorted(used)

    async with running(second):
        async with running(first):
            await use("both", 2)
            assert {name for _, name in used} == {"resource 1", "resource 2"}
        assert [name for _, name in await use("one", 1)] == ["resource 1"] * 2
    with pytest.raises(ConfigurationError, match="only while its worker runs"):
        _ = resource.value


def test_a_topic_with_two_handlers_is_refused_whoever_comes_second(worker: Worker) -> None:
    first, second = Router(), Router()
    first.handler("orders")(print)
    second.handler("mails")(print)
    worker.include(first, second)
    with pytest.raises(ConfigurationError, match="topic 'orders' already has the handler print"):
        worker.handler("orders")(len)
    with pytest.raises(ConfigurationError, match="topic 'mails' already has the handler print"):
        first.handler("mails")(len)
    with pytest.raises(ConfigurationError, match="topic 'orders' already has the handler print"):
        worker.include(first)
    assert worker.topics == ["orders", "mails"]
    assert not asyncio.run(worker._handlers.find_more())  # type: ignore[func-returns-value]
    with pytest.raises(InvalidInput, match="routers: must be Router objects, not Worker"):
        worker.include(worker)  # type: ignore[arg-type]
