"""Batches: what a handler's result means for each job, and when a gathered batch starts."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import in_time
from wheelq.base.clock import ManualClock
from wheelq.errors import BatchFailed, InvalidInput
from wheelq.model.job import Job
from wheelq.model.topic import Topic
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.places import SharedPlaces
from wheelq.worker.handlers.batch import BatchTerms, outcomes, outcomes_of_failure
from wheelq.worker.lanes.batching import Batcher

JOBS = [Job(id, "orders", None, 0, 1, "1-0", 0.0) for id in "abc"]
LINE = ServedShard(Keys().shard("orders", 0), Topic())
BAD = ValueError("bad")


def deliveries(count: int) -> list[Delivery]:
    return [Delivery(LINE, Entry(f"{n}-0", f"job-{n}", 0, 1, b"", None), 0) for n in range(count)]


# Outcomes


@pytest.mark.parametrize("result", [None, 3, [], [1, 2, 3], "abc", {"a": BAD}, [1], (1, 2, 3, 4)])
def test_a_result_without_errors_in_it_means_that_all_succeeded(result: object) -> None:
    assert outcomes(result, JOBS) == [None] * 3


@pytest.mark.parametrize("kind", [list, tuple])
def test_errors_stand_in_the_places_of_their_jobs(kind: type) -> None:
    assert outcomes(kind([1, BAD, None]), JOBS) == [None, BAD, None]


def test_errors_in_a_list_of_another_length_are_nobodys() -> None:
    with pytest.raises(InvalidInput, match="2 results"):
        outcomes([None, BAD], JOBS)


def test_an_exception_of_a_batch_handler_fails_all_its_jobs() -> None:
    assert outcomes_of_failure(BAD, JOBS) == [BAD] * 3


def test_batch_failed_is_the_failure_of_those_it_names() -> None:
    assert outcomes_of_failure(BatchFailed({"b": BAD}), JOBS) == [None, BAD, None]
    assert outcomes_of_failure(BatchFailed({}), JOBS) == [None] * 3


def test_batch_failed_with_a_stranger_is_the_failure_of_all() -> None:
    error = BatchFailed({"b": BAD, "x": BAD})
    assert outcomes_of_failure(error, JOBS) == [error] * 3


# Gathering


class Bench:
    """A batcher whose batches run until they are let go."""

    def __init__(self, max_size: int = 3, max_wait: float = 1.0, concurrency: int = 1) -> None:
        self.clock = ManualClock()
        self.started: list[int] = []
        self.may_end = asyncio.Event()
        terms = BatchTerms(max_size, max_wait, concurrency)
        self.batcher = Batcher(terms, self._run, lambda delivery, seconds: None, self.clock)
        self.places = SharedPlaces(self.batcher, WorkerSettings(concurrency=max_size), self.clock, self._end_waits)
        self.places.share(1, 100)

    async def _run(self, batch: list[Delivery], task: object) -> None:
        self.started.append(len(batch))
        await self.may_end.wait()

    async def _end_waits(self) -> None:
        raise AssertionError("no ordered lane waits for a place")

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_full_batch_starts_and_what_is_over_begins_the_next() -> None:
    bench = Bench(concurrency=2)
    bench.batcher.add(deliveries(4))
    await bench.settle()
    assert bench.started == [3]
    assert bench.batcher.free == 2


async def test_the_first_ones_time_starts_the_batch_and_not_a_moment_before(bench: Bench) -> None:
    bench.batcher.add(deliveries(1))
    bench.clock.advance(0.6)
    bench.batcher.add(deliveries(1))
    assert bench.batcher.patience_ms == 400
    bench.clock.advance(0.399)
    await bench.settle()
    assert bench.started == []
    bench.clock.advance(0.001)
    await bench.settle()
    assert bench.started == [2]
    assert bench.batcher.patience_ms is None


async def test_the_timer_of_a_batch_that_was_full_before_does_not_start_the_next() -> None:
    bench = Bench(concurrency=2)
    bench.batcher.add(deliveries(3))
    bench.clock.advance(0.9)
    bench.batcher.add(deliveries(1))
    bench.clock.advance(0.2)
    await bench.settle()
    assert bench.started == [3]


async def test_there_is_no_room_while_as_many_batches_run_as_may(bench: Bench) -> None:
    assert await bench.places.take(waits=False) == 3
    bench.places.give_back(3)
    bench.batcher.add(deliveries(3))
    assert bench.batcher.free == 0
    waiting = asyncio.create_task(bench.places.take(waits=False))
    await bench.settle()
    assert not waiting.done()
    bench.may_end.set()
    assert await in_time(waiting) == 3


async def test_a_delivery_set_aside_is_not_given_twice(bench: Bench) -> None:
    assert await bench.places.take(waits=False) == 3
    waiting = asyncio.create_task(bench.places.take(waits=False))
    await bench.settle()
    assert not waiting.done()
    bench.places.give_back(2)
    assert await in_time(waiting) == 2


async def test_idle_starts_what_was_gathered(bench: Bench) -> None:
    bench.batcher.add(deliveries(2))
    bench.may_end.set()
    await in_time(bench.batcher.idle())
    assert bench.started == [2]


async def test_abandoning_starts_nothing_any_more(bench: Bench) -> None:
    bench.batcher.add(deliveries(2))
    await bench.batcher.abandon()
    bench.clock.advance(5)
    await bench.settle()
    assert bench.started == []
