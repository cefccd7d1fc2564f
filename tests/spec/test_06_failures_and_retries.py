"""6. Failures: errors that a handler raises, retries with their pauses, and burial at the end."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest

from tests.spec.conftest import Run, counts_are, known, state_is
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Job, JobSpec, JobState, Retry, RetryAfter, Scheduler, Settings, Worker
from wheelq.errors import BatchFailed, InvalidInput

Handler = Callable[[Job], Awaitable[None]]


@pytest.fixture
def work(url: str, settings: Settings, topic: str, run: Run) -> Callable[..., Worker]:
    """Runs a worker with this handler."""

    def start(handler: Callable[[Job], object], retry: Retry | None = None, timeout: float | None = None) -> Worker:
        worker = Worker.connect(url, group="g", settings=settings)
        worker.handler(topic, retry=retry, timeout=timeout)(handler)
        run(worker)
        return worker

    return start


async def test_a_job_whose_handler_raises_runs_again(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    """With the same id and payload, and the number of the attempt, from 1."""
    runs: list[tuple[str, object, int]] = []

    async def handle(job: Job) -> None:
        runs.append((job.id, job.payload, job.attempt))
        if job.attempt < 3:
            raise RuntimeError("not yet")

    worker = work(handle, Retry(max_attempts=5, base=0.02))
    await aclient.schedule(topic, {"id": 42}, delay=0.05, key="a")

    await until(lambda: len(runs) == 3)
    await counts_are(aclient, topic, (0, 0, 0))
    assert runs == [("a", {"id": 42}, 1), ("a", {"id": 42}, 2), ("a", {"id": 42}, 3)]
    assert await aclient.get(topic, "a") is None
    assert (worker.handled, worker.failed) == (1, 2)


async def test_between_two_attempts_there_is_a_pause(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    """With base 0.2 s and no jitter: at least 0.2 s, then 0.4 s. The due time of an attempt is its own."""
    runs: list[Job] = []

    async def handle(job: Job) -> None:
        runs.append(job)
        if job.attempt < 3:
            raise RuntimeError("not yet")

    work(handle, Retry(base=0.2, jitter=0))
    await aclient.schedule(topic, delay=0)

    async def ran_three_times() -> bool:
        return len(runs) == 3

    await until(ran_three_times)
    assert runs[1].due_ms - runs[0].due_ms >= 200
    assert runs[2].due_ms - runs[1].due_ms >= 400
    assert all(job.promoted_ms >= job.due_ms for job in runs)


async def test_a_job_whose_attempts_are_used_up_is_buried(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    """It stays among the dead for a decision; its id is free."""
    attempts: list[int] = []

    async def handle(job: Job) -> None:
        attempts.append(job.attempt)
        raise RuntimeError("never")

    work(handle, Retry(max_attempts=3, base=0))
    await aclient.schedule(topic, delay=0, key="a")

    await counts_are(aclient, topic, (0, 0, 1))
    assert attempts == [1, 2, 3]
    info = known(await aclient.get(topic, "a"))
    assert info.state is JobState.DEAD
    assert (await aclient.schedule(topic, delay=60, key="a")).created


async def test_without_a_word_a_job_has_five_attempts() -> None:
    """Pauses of 1, 2, 4, 8 s, each of which is cut by up to a half at random, and never more than 5 minutes."""
    assert Retry() == Retry(max_attempts=5, base=1.0, cap=300.0, factor=2.0, jitter=0.5)
    assert [Retry().pause_ms(attempt, 0.0) for attempt in range(1, 6)] == [1_000, 2_000, 4_000, 8_000, None]
    assert [Retry().pause_ms(attempt, 0.999_999) for attempt in (1, 2)] == [500, 1_000]
    assert Retry(max_attempts=20).pause_ms(15, 0.0) == 300_000


SENSELESS: dict[str, list[object]] = {
    "max_attempts": [0],
    "base": [-1, float("nan"), 301],
    "cap": [float("nan")],
    "factor": [0.5, float("nan")],
    "jitter": [-0.1, 1.1, 2, float("nan")],
    "delays": [[], [1, -1], [float("nan")], ["1"], [1e9]],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in SENSELESS for value in SENSELESS[field]], ids=str
)
def test_a_retry_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    """At least one attempt, 0 <= base <= cap, factor at least 1, jitter from 0 to 1; delays are times."""
    with pytest.raises(InvalidInput, match=field):
        Retry(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_handler_that_exits_has_failed_and_its_worker_goes_on(
    aclient: AsyncClient, topic: str, work: Callable[..., Worker], kind: str
) -> None:
    """As one does that calls the `main()` of a program. Unless it is caught, sys.exit() would end the process."""

    def leave(job: Job) -> None:
        if job.payload == "exit":
            sys.exit(3)

    async def leave_on_the_loop(job: Job) -> None:
        leave(job)

    worker = work(leave_on_the_loop if kind == "async" else leave, Retry(max_attempts=1))
    await aclient.schedule(topic, "exit", delay=0)
    await until(lambda: worker.failed == 1)
    await aclient.schedule(topic, "stay", delay=0)
    await until(lambda: worker.handled == 1)
    [dead] = (await aclient.dead.list(topic)).jobs
    assert dead.error == "RuntimeError: the handler called sys.exit(3)"


class Odd(BaseException):
    """No Exception, and its own."""


class Mute(RetryAfter):
    """Made without a pause."""

    def __init__(self) -> None:
        pass


ODD = [Odd, GeneratorExit, KeyboardInterrupt, pytest.fail.Exception, asyncio.CancelledError, Mute]


@pytest.mark.parametrize("error", ODD)
@pytest.mark.parametrize("kind", ["async", "plain", "batch", "hook", "ordered"])
async def test_any_exception_of_a_handler_fails_its_job_alone(
    url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run, error: type[BaseException], kind: str
) -> None:
    """The job used to stay running for ever, or its worker to end, and the next one that got it too."""
    worker, once = Worker.connect(url, settings=settings), Retry(max_attempts=1)

    def go_wrong(job: Job) -> None:
        if job.payload == "bad":
            raise error()

    async def go_wrong_on_the_loop(job: Job) -> None:
        go_wrong(job)

    async def go_wrong_together(jobs: list[Job]) -> None:
        for job in jobs:
            go_wrong(job)

    match kind:
        case "async" | "ordered":
            worker.handler(topic, retry=once, ordered=kind == "ordered")(go_wrong_on_the_loop)
        case "plain":
            worker.handler(topic, retry=once)(go_wrong)
        case "batch":
            worker.batch_handler(topic, retry=once, max_size=1, max_wait=0)(go_wrong_together)
        case "hook":
            worker.handler(topic, retry=once)(lambda job: None)
            worker.before(go_wrong)
    running = run(Scheduler.connect(url, settings), worker)
    await aclient.schedule(topic, "bad", delay=0)
    await until(lambda: worker.failed == 1)
    await aclient.schedule(topic, "good", delay=0)
    await until(lambda: worker.handled == 1)

    await counts_are(aclient, topic, (0, 0, 1))
    [dead] = (await aclient.dead.list(topic)).jobs
    assert error.__name__ in dead.error
    assert not running.done()


async def test_a_batch_may_fail_with_texts(
    worker: Worker, url: str, settings: Settings, aclient: AsyncClient, topic: str, run: Run
) -> None:

    @worker.batch_handler(topic, retry=Retry(max_attempts=1), max_size=2, max_wait=0.2)
    async def handle(jobs: list[Job]) -> None:
        raise BatchFailed({"bad": "no such order"})

    run(Scheduler.connect(url, settings), worker)
    await aclient.schedule_many(topic, [JobSpec(delay=0, key="bad"), JobSpec(delay=0, key="good")])
    await until(lambda: (worker.failed, worker.handled) == (1, 1))
    [dead] = (await aclient.dead.list(topic)).jobs
    assert (dead.id, dead.error) == ("bad", "RuntimeError: no such order")


async def test_one_attempt_means_none_again(aclient: AsyncClient, topic: str, work: Callable[..., Worker]) -> None:
    async def handle(job: Job) -> None:
        raise RuntimeError("never")

    work(handle, Retry(max_attempts=1))
    await aclient.schedule(topic, delay=0)

    await counts_are(aclient, topic, (0, 0, 1))


async def test_a_job_that_waits_for_its_retry_says_so(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    """Its id is still taken, and it can no longer be cancelled or moved."""

    async def handle(job: Job) -> None:
        raise RuntimeError("not yet")

    work(handle, Retry(base=60, cap=60))
    await aclient.schedule(topic, delay=0, key="a")

    await state_is(aclient, topic, "a", "retrying")
    assert not (await aclient.schedule(topic, delay=60, key="a")).created
    assert await aclient.cancel(topic, "a") == "running"
    assert await aclient.reschedule(topic, "a", delay=5) == "running"
    assert await aclient.run_now(topic, "a") == "running"


class ClosedAtFirst:
    """A handler whose first attempt fails."""

    def __init__(self) -> None:
        self.runs: list[Job] = []

    async def __call__(self, job: Job) -> None:
        self.runs.append(job)
        if job.attempt == 1:
            raise RuntimeError("the bank is closed")


async def test_the_last_error_can_be_seen_while_a_job_is_retried(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    """By `get`, with the number of the next attempt."""
    work(ClosedAtFirst(), Retry(delays=[3600]))
    await aclient.schedule(topic, delay=0, key="a")

    await state_is(aclient, topic, "a", "retrying")
    info = known(await aclient.get(topic, "a"))
    assert (info.attempt, info.last_error) == (2, "RuntimeError: the bank is closed")


async def test_a_retry_is_told_the_last_error_and_when_the_job_was_first_due(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    work(handler := ClosedAtFirst(), Retry(delays=[0.5]))
    receipt = await aclient.schedule(topic, delay=0)
    await until(lambda: len(handler.runs) == 2)
    first, second = handler.runs
    assert (first.last_error, second.last_error) == (None, "RuntimeError: the bank is closed")
    assert first.first_due_ms == second.first_due_ms == receipt.due_ms
    assert second.due_ms >= receipt.due_ms + 500


async def test_a_handler_can_ask_to_run_again_later_which_is_no_failure(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    """`raise RetryAfter(seconds)`: however often, the attempt stays the same."""
    runs: list[int] = []

    async def handle(job: Job) -> None:
        runs.append(job.attempt)
        if len(runs) < 4:
            raise RetryAfter(0.01, "not open yet")

    worker = work(handle, Retry(max_attempts=2))
    await aclient.schedule(topic, delay=0, key="a")

    await until(lambda: len(runs) == 4)
    await counts_are(aclient, topic, (0, 0, 0))
    assert runs == [1, 1, 1, 1]
    assert (worker.handled, worker.failed) == (1, 0)


async def test_a_handler_can_say_how_long_to_wait_after_a_failure(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    """`raise RetryAfter(seconds, counts=True)`: an attempt like any other, but for the pause."""
    runs: list[Job] = []

    async def handle(job: Job) -> None:
        runs.append(job)
        raise RetryAfter(0.3, "too many requests", counts=True)

    work(handle, Retry(max_attempts=2, base=60))
    await aclient.schedule(topic, delay=0)

    await counts_are(aclient, topic, (0, 0, 1))
    assert [job.attempt for job in runs] == [1, 2]
    assert 300 <= runs[1].due_ms - runs[0].due_ms < 30_000


async def test_an_error_that_is_not_to_be_retried_buries_the_job_at_once(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    async def handle(job: Job) -> None:
        raise KeyError(job.id)

    work(handle, Retry(not_on=(KeyError, ValueError)))
    await aclient.schedule(topic, delay=0)

    await counts_are(aclient, topic, (0, 0, 1))
    [job] = (await aclient.dead.list(topic)).jobs
    assert (job.attempt, job.reason) == (1, "failed")


async def test_a_schedule_that_fails_itself_costs_no_job(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    """A function as `delays` that raises, or returns something that is not a time: pauses grow instead, and the log
    says so.
    """
    runs: list[int] = []

    async def handle(job: Job) -> None:
        runs.append(job.attempt)
        if job.attempt < 3:
            raise RuntimeError("not yet")

    def delays(attempt: int, error: BaseException) -> float:
        return 1 / (attempt - 1) if attempt == 1 else -5.0

    work(handle, Retry(delays=delays, base=0.01))
    await aclient.schedule(topic, delay=0)
    await until(lambda: runs == [1, 2, 3])


async def test_a_handler_that_takes_longer_than_its_timeout_has_failed(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker]
) -> None:
    cancelled = asyncio.Event()
    attempts: list[int] = []

    async def handle(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    worker = work(handle, Retry(base=0), timeout=0.05)
    await aclient.schedule(topic, delay=0)

    await until(lambda: attempts == [1, 2])
    await counts_are(aclient, topic, (0, 0, 0))
    assert cancelled.is_set()
    assert (worker.handled, worker.failed) == (1, 1)


async def test_a_plain_function_has_a_timeout_too(
    aclient: AsyncClient,
    topic: str,
    scheduler: Scheduler,
    work: Callable[..., Worker],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The job runs again; the thread itself cannot be stopped, ends in its own time, and the log warns of it."""
    attempts: list[int] = []
    may_end = threading.Event()

    def handle(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            may_end.wait(PATIENCE)

    work(handle, Retry(max_attempts=50, base=0), timeout=1)  # enough for a thread to begin
    await aclient.schedule(topic, delay=0)

    await until(lambda: attempts[:2] == [1, 2])
    await counts_are(aclient, topic, (0, 0, 0))
    may_end.set()
    assert "cannot be stopped in its thread" in caplog.text


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("x"), asyncio.CancelledError(), TimeoutError(), StopIteration()]
)
async def test_a_failing_handler_stops_neither_its_worker_nor_other_jobs(
    aclient: AsyncClient, topic: str, scheduler: Scheduler, work: Callable[..., Worker], error: BaseException
) -> None:
    """The worker and the other jobs go on."""
    done: list[int] = []

    async def handle(job: Job) -> None:
        if job.payload == 3 and job.attempt == 1:
            raise error
        done.append(job.payload)

    work(handle, Retry(base=0))
    await aclient.schedule_many(topic, [JobSpec(n, delay=0) for n in range(6)])

    await counts_are(aclient, topic, (0, 0, 0))
    assert sorted(done) == list(range(6))
