"""Handlers whose task is cancelled, by themselves or by what they left behind, and errors that cannot be read.

Whatever they do, their job is settled, and no other job notices: a delivery that is not settled is held for ever.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tests.running import running
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, CancelOutcome, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.errors import BatchFailed
from wheelq.model.dead import Reason
from wheelq.protocol.call import Call
from wheelq.protocol.calls.order import HeldEntries
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.transport import Address, AsyncTransport

T = TypeVar("T")

TWICE = Retry(max_attempts=2, base=0)
KINDS = ["async", "ordered", "batch", "hook"]


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


class Fleet:
    """A scheduler and a worker on the test's loop, whose handler is the coroutine function given to `start`."""

    def __init__(self, url: str) -> None:
        self.settings = Settings(prefix=f"runs-{secrets.token_hex(6)}", worker=WorkerSettings(block_ms=500))
        self.worker = Worker.connect(url, settings=self.settings, concurrency=10)
        self.client = AsyncClient.connect(url, self.settings)
        self._parts: list[Scheduler | Worker] = [Scheduler.connect(url, self.settings), self.worker]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(part.run()) for part in self._parts]

    def handle(self, kind: str, handle: Callable[[Job], Any], topic: str = "t") -> None:
        """Decorate `handle`, an async function, as a handler of this kind."""

        async def handle_all(jobs: list[Job]) -> None:
            for job in jobs:
                await handle(job)

        async def nothing(job: Job) -> None: ...

        match kind:
            case "batch":
                self.worker.batch_handler(topic, retry=TWICE, max_size=1, max_wait=0)(handle_all)
            case "hook":
                self.worker.before(handle)
                self.worker.handler(topic, retry=TWICE)(nothing)
            case _:
                self.worker.handler(topic, retry=TWICE, ordered=kind == "ordered")(handle)

    async def is_settled(self, handled: int, dead: int = 0) -> None:
        """Wait until so many jobs are done and so many dead, and none is left."""

        async def is_so() -> bool:
            [info] = await self.client.topics()
            left = info.waiting + info.retrying + info.ready + info.running
            return (self.worker.handled, info.dead, left) == (handled, dead, 0)

        await until(is_so)

    async def close(self) -> None:
        for part in self._parts:
            part.stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._tasks)
        await self.client.close()


@pytest.fixture
async def fleet(url: str) -> Any:
    fleet = Fleet(url)
    yield fleet
    await fleet.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_cancels_its_own_task_and_waits_has_failed(fleet: Fleet, kind: str) -> None:
    attempts: list[int] = []

    async def handle(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            this_task().cancel()
            await asyncio.sleep(60)

    fleet.handle(kind, handle)
    fleet.start()
    await fleet.client.schedule("t", delay=0)
    await fleet.is_settled(handled=1)
    assert (attempts, fleet.worker.failed, fleet.worker.cancelled) == ([1, 2], 1, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_cancels_its_own_task_and_returns_does_no_harm_to_the_next(
    fleet: Fleet, kind: str
) -> None:
    attempts: list[tuple[str, int]] = []

    async def handle(job: Job) -> None:
        attempts.append((job.payload, job.attempt))
        if job.payload == "cancels":
            this_task().cancel()
        else:
            await asyncio.sleep(0.001)

    fleet.handle(kind, handle)
    await fleet.client.schedule_many("t", [JobSpec("cancels", delay=0), JobSpec("waits", delay=0)])
    fleet.start()
    await fleet.is_settled(handled=2)
    assert sorted(attempts) == [("cancels", 1), ("waits", 1)]
    assert fleet.worker.failed == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_somebody_else_cancels_has_failed(fleet: Fleet, kind: str) -> None:
    running: list[asyncio.Task[Any]] = []

    async def handle(job: Job) -> None:
        if job.attempt == 1:
            running.append(this_task())
            await asyncio.sleep(60)

    fleet.handle(kind, handle)
    fleet.start()
    await fleet.client.schedule("t", delay=0)
    await until(lambda: bool(running))
    running[0].cancel()
    await fleet.is_settled(handled=1)
    assert fleet.worker.failed == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", range(4))
async def test_a_failure_is_recorded_though_the_task_is_cancelled_meanwhile(
    fleet: Fleet, kind: str, steps: int
) -> None:
    """`steps` is how many steps of the loop later: before the failure is reported, and while it is."""
    attempts: list[int] = []

    async def handle(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            cancel_later(this_task(), steps)
            raise ValueError("no price")

    def cancel_later(task: asyncio.Task[Any], steps: int) -> None:
        if steps:
            asyncio.get_running_loop().call_soon(cancel_later, task, steps - 1)
        else:
            task.cancel()

    fleet.handle(kind, handle)
    fleet.start()
    await fleet.client.schedule("t", delay=0)
    await fleet.is_settled(handled=1)
    assert attempts == [1, 2]


async def test_a_client_cancels_a_handler_that_cancels_itself_too(fleet: Fleet) -> None:
    running: list[asyncio.Task[Any]] = []

    async def handle(job: Job) -> None:
        running.append(this_task())
        try:
            await asyncio.sleep(60)
        finally:
            this_task().cancel()

    fleet.handle("async", handle)
    fleet.start()
    await fleet.client.schedule("t", key="a", delay=0)
    await until(lambda: bool(running))
    await fleet.client.cancel("t", "a", running=True)
    await fleet.is_settled(handled=0, dead=1)
    assert (fleet.worker.cancelled, fleet.worker.failed) == (1, 0)


# Errors that cannot be read


class Closed(Exception):
    """Lets nobody read its attributes."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Hides(Exception):
    """Was raised while a `Closed` was handled."""


def closed() -> None:
    raise Closed


def hides() -> None:
    try:
        raise Closed
    except Closed:
        raise Hides  # noqa: B904  # its context is the case


@pytest.mark.parametrize("error", [closed, hides])
@pytest.mark.parametrize(
    "kind", ["async", "plain", "inline", "ordered", "batch", "batch_list", "batch_failed", "hooks"]
)
async def test_an_error_that_cannot_be_read_is_a_failure_like_any_other(
    fleet: Fleet, kind: str, error: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    worker, attempts = fleet.worker, 0

    def plain(job: Job) -> None:
        nonlocal attempts
        attempts += 1
        error()

    async def on_the_loop(job: Job) -> None:
        plain(job)

    async def together(jobs: list[Job]) -> list[BaseException]:
        try:
            plain(jobs[0])
        except Exception as problem:
            if kind == "batch_list":
                return [problem]
            if kind == "batch_failed":
                raise BatchFailed({jobs[0].id: problem}) from None
            raise
        return []

    match kind:
        case "async" | "ordered":
            worker.handler("t", retry=TWICE, ordered=kind == "ordered")(on_the_loop)
        case "plain" | "inline":
            worker.handler("t", retry=TWICE, inline=kind == "inline")(plain)
        case "hooks":
            worker.on_error(lambda job, error: None)
            worker.handler("t", retry=TWICE)(on_the_loop)
        case _:
            worker.batch_handler("t", retry=TWICE, max_size=1, max_wait=0)(together)
    fleet.start()
    await fleet.client.schedule("t", delay=0)
    await fleet.is_settled(handled=0, dead=1)
    assert (attempts, worker.failed) == (2, 2)
    assert "is buried after attempt 2" in caplog.text


class Overtaken(AsyncTransport):
    """A worker's connections, on which the first deliveries arrive after what `meanwhile` does."""

    def __init__(self, url: str, meanwhile: list[Callable[[], Awaitable[None]]]) -> None:
        super().__init__(Address(url))
        self._url, self._meanwhile = url, meanwhile

    def spare(self) -> AsyncTransport:
        return Overtaken(self._url, self._meanwhile)

    async def send(self, call: Call[T]) -> T:
        reply = await super().send(call)
        is_read = call.name == "XREADGROUP" and any(reply)  # type: ignore[call-overload]
        if self._meanwhile and (is_read or (isinstance(reply, HeldEntries) and reply.entries)):
            await self._meanwhile.pop()()
        return reply


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_request_to_cancel_that_overtakes_the_delivery_is_heard(
    url: str, prefix: str, aclient: AsyncClient, topic: str, ordered: bool
) -> None:
    """The server has delivered the job, so the caller is told CANCELLING; the worker hears of that first."""
    heard, ran = asyncio.Event(), list[str]()

    async def cancel() -> None:
        assert await aclient.cancel(topic, "a", running=True) is CancelOutcome.CANCELLING
        await heard.wait()

    worker = Worker(Overtaken(url, [cancel]), keys=Keys(prefix), settings=WorkerSettings(block_ms=500))

    @worker.handler(topic, ordered=ordered)
    async def note(job: Job) -> None:
        ran.append(job.id)

    hints = worker._hints
    own = hints._cancel

    asked = list[str]()

    def cancel_heard(ready: str, entry_id: str) -> None:
        own(ready, entry_id)
        asked.append(entry_id)
        heard.set()

    hints._cancel = cancel_heard
    await aclient.configure(topic)
    async with running(worker):
        await until(lambda: hints.is_listening)
        await aclient.schedule(topic, delay=0, key="a")
        await until(heard.is_set)
        await aclient.schedule(topic, delay=0, key="b")
        await until(lambda: "b" in ran)
    assert ran == ["b"]
    [dead] = (await aclient.dead.list(topic)).jobs
    assert (dead.id, dead.reason) == ("a", Reason.CANCELLED)
    assert len(asked) == 1
