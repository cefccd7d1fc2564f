"""16. Hooks: code around handlers, resources that live as long as the worker, and log lines that name their job."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.spec.conftest import Run
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Job, JobSpec, Retry, RetryAfter, Settings, Worker
from wheelq.errors import BatchFailed, ConfigurationError
from wheelq.logs import JobFilter, JsonFormatter, current_jobs

ONCE = Retry(max_attempts=1)


@pytest.fixture
def worker(url: str, settings: Settings) -> Worker:
    """A worker without handlers yet."""
    return Worker.connect(url, group="g", settings=settings)


class Story(list[str]):
    """What happened, in order."""

    async def comes_to(self, *events: str) -> None:
        await until(lambda: len(self) >= len(events))
        assert self == list(events)


@pytest.fixture
def story() -> Story:
    return Story()


# around handlers


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_before_and_after_enclose_the_handler(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story, kind: str
) -> None:
    """`before` in the order they were added, `after` the other way round; for async handlers and plain ones."""

    @worker.before
    def first(job: Job) -> None:
        story.append(f"first {job.id}")

    @worker.before
    async def second(job: Job) -> None:
        story.append(f"second {job.id}")

    @worker.after
    def outer(job: Job) -> None:
        story.append(f"outer {job.id}")

    @worker.after
    async def inner(job: Job) -> None:
        story.append(f"inner {job.id}")

    @worker.on_error
    def error(job: Job, error: Exception) -> None:
        story.append("error")

    if kind == "async":

        @worker.handler(topic)
        async def handle(job: Job) -> None:
            story.append(f"handle {job.id}")
    else:

        @worker.handler(topic)
        def handle_in_thread(job: Job) -> None:
            story.append(f"handle {job.id}")

    run(worker)
    await aclient.schedule(topic, key="k", delay=0)
    await story.comes_to("first k", "second k", "handle k", "inner k", "outer k")


async def test_exceptions_and_timeouts_call_on_error_and_not_after(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    @worker.after
    def after(job: Job) -> None:
        story.append("after")

    @worker.on_error
    async def on_error(job: Job, error: Exception) -> None:
        story.append(f"{job.payload}: {type(error).__name__}")

    @worker.handler(topic, retry=ONCE, timeout=0.05)
    async def handle(job: Job) -> None:
        if job.payload == "slow":
            await asyncio.sleep(PATIENCE)
        raise KeyError("no")

    run(worker)
    await aclient.schedule(topic, "bad", delay=0)
    await until(lambda: len(story) == 1)
    await aclient.schedule(topic, "slow", delay=0)
    await story.comes_to("bad: KeyError", "slow: TimeoutError")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_single_handler_may_return_errors_and_has_succeeded_all_the_same(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story, kind: str
) -> None:
    """`return await asyncio.gather(…, return_exceptions=True)`: only a batch handler speaks of its jobs by a list."""

    @worker.after
    def after(job: Job) -> None:
        story.append("after")

    @worker.on_error
    def on_error(job: Job, error: Exception) -> None:
        story.append("error")

    async def gather(job: Job) -> list[object]:
        return [KeyError("one"), "two", KeyError("three")]

    worker.handler(topic, retry=ONCE)(gather if kind == "async" else lambda job: [KeyError("one")])
    run(worker)
    await aclient.schedule(topic, delay=0)
    await until(lambda: (worker.handled, worker.failed) == (1, 0))
    await story.comes_to("after")


async def test_a_single_handler_that_raises_batch_failed_calls_on_error(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    @worker.on_error
    def on_error(job: Job, error: Exception) -> None:
        story.append(type(error).__name__)

    @worker.handler(topic, retry=ONCE)
    async def handle(job: Job) -> None:
        raise BatchFailed({})

    run(worker)
    await aclient.schedule(topic, delay=0)
    await story.comes_to("BatchFailed")


async def test_an_error_of_a_before_hook_fails_the_run_and_one_of_an_error_hook_does_not_count(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.on_error
    def on_error(job: Job, error: Exception) -> None:
        raise RuntimeError("the hook is broken")

    @worker.before
    def before(job: Job) -> None:
        raise PermissionError("not this one")

    @worker.handler(topic, retry=ONCE)
    async def handle(job: Job) -> None:
        pytest.fail("it must not run")

    run(worker)
    await aclient.schedule(topic, key="k", delay=0)
    await until(lambda: "is buried" in caplog.text)
    assert "PermissionError: not this one" in caplog.text
    assert "the hook is broken" in caplog.text


async def test_middleware_is_given_the_jobs_and_what_runs_them(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    """It may swallow what the handler raises: then the job is done. The first one added is the outermost."""

    @worker.middleware
    async def forgiving(jobs: Sequence[Job], proceed: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await proceed()
        except ValueError:
            story.append(f"forgiven {[job.id for job in jobs]}")

    @worker.middleware
    async def inner(jobs: Sequence[Job], proceed: Callable[[], Awaitable[Any]]) -> Any:
        story.append("inner")
        return await proceed()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        raise ValueError

    run(worker)
    await aclient.schedule(topic, key="k", delay=0)
    await story.comes_to("inner", "forgiven ['k']")
    await until(lambda: worker.handled == 1)
    assert worker.failed == 0


async def test_hooks_are_called_for_each_job_of_a_batch_by_its_own_outcome(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    """Middleware is called once for all. To ask for another time is no failure."""

    @worker.middleware
    async def around(jobs: Sequence[Job], proceed: Callable[[], Awaitable[Any]]) -> Any:
        story.append(f"{len(jobs)} jobs")
        return await proceed()

    @worker.before
    def before(job: Job) -> None:
        story.append(f"before {job.id}")

    @worker.after
    def after(job: Job) -> None:
        story.append(f"after {job.id}")

    @worker.on_error
    def on_error(job: Job, error: Exception) -> None:
        story.append(f"{job.id}: {error}")

    @worker.batch_handler(topic, max_size=3, max_wait=PATIENCE, retry=ONCE)
    async def handle(jobs: list[Job]) -> list[Exception | None]:
        outcomes = {"good": None, "bad": ValueError("no"), "later": RetryAfter(3600)}
        return [outcomes[job.id] for job in jobs]

    await aclient.schedule_many(topic, [JobSpec(delay=0, key=key) for key in ("good", "bad", "later")])
    run(worker)
    await story.comes_to("3 jobs", "before good", "before bad", "before later", "bad: no", "after good")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_context_variables_set_before_are_the_handlers_and_no_other_jobs(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story, kind: str
) -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")

    @worker.before
    def set_tenant(job: Job) -> None:
        if job.payload:
            tenant.set(job.payload)

    async def handle(job: Job) -> None:
        story.append(tenant.get())

    worker.handler(topic)(handle if kind == "async" else lambda job: story.append(tenant.get()))
    run(worker)
    for payload in ("a", None, "b"):
        count = len(story)
        await aclient.schedule(topic, payload, delay=0)
        await until(lambda count=count: len(story) > count)  # type: ignore[misc]
    await story.comes_to("a", "nobody", "b")


# threads


async def test_plain_hooks_run_in_the_thread_of_a_plain_handler(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    """So they can open and close what belongs to a thread. Here two jobs run at a time, with async hooks between."""
    of_thread = threading.local()
    both = threading.Barrier(2, timeout=PATIENCE)

    @worker.before
    def open_connection(job: Job) -> None:
        of_thread.connection = job.id
        both.wait()

    @worker.middleware
    async def around(jobs: Sequence[Job], proceed: Callable[[], Awaitable[Any]]) -> Any:
        assert threading.current_thread() is threading.main_thread()
        return await proceed()

    @worker.before
    async def on_the_loop(job: Job) -> None:
        assert threading.current_thread() is threading.main_thread()

    @worker.on_error
    def roll_back(job: Job, error: Exception) -> None:
        story.append(f"{job.id}: roll back {of_thread.connection}")

    @worker.after
    def commit(job: Job) -> None:
        story.append(f"{job.id}: commit {of_thread.connection}")

    @worker.handler(topic, retry=ONCE)
    def handle(job: Job) -> None:
        both.wait()
        if job.id == "bad":
            raise ValueError(of_thread.connection)

    run(worker)
    await aclient.schedule_many(topic, [JobSpec(delay=0, key=key) for key in ("good", "bad")])
    await until(lambda: len(story) == 2)
    assert sorted(story) == ["bad: roll back bad", "good: commit good"]


async def test_the_event_loop_goes_on_while_a_plain_hook_of_a_plain_handler_blocks(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    began, may_end = threading.Event(), threading.Event()

    @worker.before
    def block(job: Job) -> None:
        began.set()
        story.append(f"the loop went on: {may_end.wait(PATIENCE)}")

    @worker.handler(topic)
    def handle(job: Job) -> None: ...

    run(worker)
    await aclient.schedule(topic, delay=0)
    await until(began.is_set)
    may_end.set()
    await story.comes_to("the loop went on: True")


async def test_plain_hooks_of_an_async_handler_run_on_the_event_loop(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    @worker.before
    def before(job: Job) -> None:
        assert asyncio.get_running_loop()
        story.append("on the loop")

    @worker.handler(topic)
    async def handle(job: Job) -> None: ...

    run(worker)
    await aclient.schedule(topic, delay=0)
    await story.comes_to("on the loop")


async def test_after_a_time_out_a_plain_error_hook_runs_in_another_thread(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    """The handler's thread is still busy with the handler, which nothing can stop."""
    handlers: list[threading.Thread] = []
    gate = threading.Event()

    @worker.on_error
    def on_error(job: Job, error: Exception) -> None:
        is_elsewhere = threading.current_thread() not in (*handlers, threading.main_thread())
        story.append(f"{type(error).__name__}, elsewhere: {is_elsewhere}")

    @worker.handler(topic, retry=ONCE, timeout=2)  # enough for a thread to begin
    def handle(job: Job) -> None:
        handlers.append(threading.current_thread())
        gate.wait()

    @worker.before
    def before(job: Job) -> None:
        handlers.append(threading.current_thread())

    run(worker)
    try:
        await aclient.schedule(topic, delay=0)
        await story.comes_to("TimeoutError, elsewhere: True")
        assert handlers[0] is handlers[1]
    finally:
        gate.set()


async def test_plain_and_async_hooks_of_a_plain_handler_share_context_variables(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    user = contextvars.ContextVar("user", default="nobody")
    tokens: dict[str, contextvars.Token[str]] = {}

    @worker.before
    def plain(job: Job) -> None:
        tokens[job.id] = tenant.set("acme")

    @worker.middleware
    async def around(jobs: Sequence[Job], proceed: Callable[[], Awaitable[Any]]) -> Any:
        story.append(f"middleware: {tenant.get()}")
        return await proceed()

    @worker.before
    async def later(job: Job) -> None:
        user.set("anna")

    @worker.after
    def after(job: Job) -> None:
        tenant.reset(tokens[job.id])
        story.append(f"after: {tenant.get()}, {user.get()}")

    @worker.handler(topic)
    def handle(job: Job) -> None:
        story.append(f"handler: {tenant.get()}, {user.get()}")
        user.set("ben")

    run(worker)
    await aclient.schedule(topic, delay=0)
    await story.comes_to("middleware: acme", "handler: acme, anna", "after: nobody, ben")


async def test_plain_hooks_of_a_plain_batch_handler_run_in_its_thread(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, story: Story
) -> None:
    """A plain function that returns a coroutine has it run before the next job's turn."""

    def name() -> str:
        return "loop" if threading.current_thread() is threading.main_thread() else "thread"

    async def finish(job: Job) -> None:
        story.append(f"finish {job.id}: {name()}")

    @worker.before
    def before(job: Job) -> object:
        story.append(f"before {job.id}: {name()}")
        return finish(job) if job.id == "a" else None

    @worker.on_error
    def on_error(job: Job, error: Exception) -> None:
        story.append(f"error {job.id}: {name()}")
        raise RuntimeError("it is logged, and the next job has its turn")

    @worker.batch_handler(topic, max_size=3, max_wait=PATIENCE, retry=ONCE)
    def handle(jobs: list[Job]) -> list[Exception | None]:
        return [ValueError() if job.id != "b" else None for job in jobs]

    await aclient.schedule_many(topic, [JobSpec(delay=0, key=key) for key in "abc"])
    run(worker)
    await story.comes_to(
        "before a: thread",
        "finish a: loop",
        "before b: thread",
        "before c: thread",
        "error a: thread",
        "error c: thread",
    )


# lifespan


async def test_a_lifespan_starts_before_the_first_job_and_ends_after_the_last(
    worker: Worker, aclient: AsyncClient, topic: str, story: Story
) -> None:
    """Its value is typed and reachable by handlers; several start in order and end in the opposite one."""

    @worker.lifespan
    async def database() -> AsyncIterator[str]:
        story.append("connect")
        yield "a database"
        story.append("disconnect")

    @worker.lifespan
    def cache() -> Iterator[int]:
        story.append(f"fill, with {database.value}")
        yield 42
        story.append("clear")

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        story.append(f"{database.value}, {cache.value}")

    await aclient.schedule(topic, delay=0)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.handled == 1)
    worker.stop()
    await running
    await story.comes_to("connect", "fill, with a database", "a database, 42", "clear", "disconnect")
    with pytest.raises(ConfigurationError, match="database has a value only while its worker runs"):
        print(database.value)


async def test_a_function_that_returns_a_context_manager_is_a_lifespan_too(worker: Worker, story: Story) -> None:
    @worker.lifespan
    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        yield "pool"

    async with worker._hooks.alive():
        assert pool.value == "pool"


async def test_a_start_up_that_raises_ends_run_and_ends_what_was_started(
    worker: Worker, topic: str, story: Story
) -> None:
    @worker.lifespan
    def first() -> Iterator[None]:
        try:
            yield
        finally:
            story.append("first is shut down")

    @worker.lifespan
    async def second() -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    @worker.handler(topic)
    async def handle(job: Job) -> None: ...

    with pytest.raises(OSError, match="no database"):
        await worker.run()
    assert story == ["first is shut down"]


# logs


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_log_records_of_a_handler_name_its_job(
    worker: Worker, aclient: AsyncClient, topic: str, run: Run, kind: str
) -> None:
    lines: list[dict[str, Any]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(self.format(record)))

    collector = Collector()
    collector.addFilter(JobFilter())
    collector.setFormatter(JsonFormatter())
    log = logging.getLogger(f"shop.{topic}")
    log.addHandler(collector)

    def say(job: Job) -> None:
        log.warning("charging %s", "a card", extra={"order": 42})
        assert current_jobs() == (job,)

    async def handle(job: Job) -> None:
        say(job)

    worker.handler(topic)(handle if kind == "async" else say)
    run(worker)
    await aclient.schedule(topic, key="k", delay=0)
    await until(lambda: bool(lines))
    log.warning("outside")
    inside, outside = lines
    assert inside.pop("time").endswith("+00:00")
    assert inside == {
        "level": "warning",
        "logger": log.name,
        "message": "charging a card",
        "topic": topic,
        "job_id": "k",
        "attempt": 1,
        "group": "g",
        "worker": worker.name,
        "order": 42,
    }
    assert not outside.keys() & {"topic", "job_id", "attempt", "group", "worker"}
    assert current_jobs() == ()
