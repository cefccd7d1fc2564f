"""The pool: at most so many at a time, a task only for what waits, a context for each, nothing stuck."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from tests.waiting import PATIENCE, in_time, until
from wheelq.base.clock import SystemClock
from wheelq.settings import WorkerSettings
from wheelq.worker.delivery.limited import LimitedRuns
from wheelq.worker.delivery.places import LimitedPlaces, SharedPlaces
from wheelq.worker.delivery.pool import SLICE, Pool


async def idle(pool: Pool[int]) -> None:
    await in_time(pool.idle())


class Gate:
    """Deliveries that wait until they are let go."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.most = 0
        self.done: list[int] = []
        self._open: dict[int, asyncio.Event] = {}

    async def run(self, number: int, task: object) -> None:
        self.running.add(number)
        self.most = max(self.most, len(self.running))
        try:
            await self._open.setdefault(number, asyncio.Event()).wait()
            self.done.append(number)
        finally:
            self.running.discard(number)

    def let_go(self, number: int) -> None:
        self._open.setdefault(number, asyncio.Event()).set()


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def settle(turns: int = 50) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


# How many


async def test_no_more_run_than_the_concurrency_and_the_others_wait_in_order(gate: Gate) -> None:
    pool: Pool[int] = Pool(3, gate.run)
    pool.add(range(10))
    await settle()
    assert gate.running == {0, 1, 2}
    gate.let_go(1)
    await settle()
    assert gate.running == {0, 2, 3}
    for number in range(10):
        gate.let_go(number)
    await idle(pool)
    assert sorted(gate.done) == list(range(10))
    assert gate.most == 3


async def test_free_counts_what_is_queued_as_taken(gate: Gate) -> None:
    pool: Pool[int] = Pool(3, gate.run)
    assert pool.free == 3
    pool.add([1])
    assert pool.free == 2
    pool.add([2, 3, 4, 5])
    assert pool.free == 0
    for number in range(1, 6):
        gate.let_go(number)
    await idle(pool)
    assert pool.free == 3


async def end_none() -> None: ...


def shared(pool: Pool[int], concurrency: int, end_waits: Callable[[], Awaitable[None]] = end_none) -> SharedPlaces:
    """The places of a pool, for a single reader."""
    places = SharedPlaces(pool, WorkerSettings(concurrency=concurrency), SystemClock(), end_waits)
    places.share(1, 100)
    return places


async def test_room_waits_until_one_could_start(gate: Gate) -> None:
    pool: Pool[int] = Pool(2, gate.run)
    places = shared(pool, 2)
    assert await places.take(waits=False) == 2
    places.give_back(2)
    pool.add([1, 2])
    waiting = asyncio.create_task(places.take(waits=False))
    await settle()
    assert not waiting.done()
    gate.let_go(2)
    assert await in_time(waiting) == 1
    gate.let_go(1)
    await idle(pool)


async def test_room_and_idle_can_be_waited_for_at_the_same_time(gate: Gate) -> None:
    pool: Pool[int] = Pool(1, gate.run)
    pool.add([1])
    room = partial(shared(pool, 1).take, waits=False)
    waiters = [asyncio.create_task(wait()) for wait in (pool.idle, room, pool.idle)]
    await settle()
    gate.let_go(1)
    assert await in_time(asyncio.gather(*waiters)) == [None, 1, None]


async def test_a_read_that_waits_asks_all_its_shards_beside_an_ordered_lane(gate: Gate) -> None:
    """A read of fewer ends after some milliseconds, so that the others have their turn: at rest it spun."""
    pool: Pool[int] = Pool(16, gate.run)
    places = shared(pool, 16)
    places.other_lanes = 1
    assert await places.take(waits=True, shards=4) == 4
    assert await places.take(waits=True, shards=1) == 1
    assert await places.take(waits=True, shards=50) == 11
    assert places.spare == 0


async def test_no_place_is_lent_twice_and_a_loan_is_a_taken_place(gate: Gate) -> None:
    """A worker takes over jobs of several shards of a dead one at once, each with a call of its own."""
    pool: Pool[int] = Pool(3, gate.run)
    places = shared(pool, 3)
    assert [places.lend(2), places.lend(2), places.lend(1), places.can_lend, places.spare] == [2, 1, 0, 0, 0]
    waiting = asyncio.create_task(places.take(waits=False))
    await settle()
    assert not waiting.done()
    pool.add([1])
    places.end_loan(2)
    assert (await in_time(waiting), places.can_lend) == (1, 1)
    places.give_back(1)
    places.end_loan(1)
    assert (places.can_lend, places.spare) == (2, 2)
    gate.let_go(1)
    await idle(pool)


async def test_a_read_that_reserved_what_a_loan_has_filled_is_ended(gate: Gate) -> None:
    """Else it may fetch jobs that wait here, while other workers are free."""
    pool: Pool[int] = Pool(3, gate.run)
    ended: list[bool] = []

    async def end_waits() -> None:
        ended.append(True)

    places = shared(pool, 3, end_waits)
    reserved = await places.take(waits=True)
    lent = places.lend(2)
    pool.add([1])
    places.end_loan(lent)
    await places.end_filled_reads()
    assert (reserved, lent, ended) == (3, 2, [True])
    places.give_back(reserved)
    reserved, lent = await places.take(waits=True), places.lend(1)
    places.end_loan(places.lend(1))
    await places.end_filled_reads()
    assert (reserved, lent, len(ended)) == (2, 1, 1), "nothing was filled, though another call has a loan"
    places.end_loan(lent)
    places.give_back(reserved)
    gate.let_go(1)
    await idle(pool)


# A part of it


def limited_to(limit: int, gate: Gate, concurrency: int = 9) -> tuple[Any, Pool[int]]:
    """The part of a pool that a handler with this limit may fill, and the pool."""
    runs: list[Any] = []
    pool: Pool[int] = Pool(concurrency, lambda number, task: runs[0].counted(gate.run(number, task)))
    runs.append(LimitedRuns(cast("Any", pool), limit))
    return runs[0], pool


async def test_what_a_full_handler_was_given_too_much_starts_when_it_has_room(gate: Gate) -> None:
    """A job of a dead worker is taken over while a read is under way, and the read finds some, too."""
    limited, pool = limited_to(2, gate)
    limited.add([1, 2, 3, 4])
    await settle()
    assert (gate.running, limited.left, limited.free, pool.free) == ({1, 2}, 0, 0, 7)
    gate.let_go(1)
    await settle()
    assert (gate.running, limited.left) == ({2, 3}, 0)
    for number in (2, 3, 4):
        gate.let_go(number)
    await in_time(limited.idle())
    assert (gate.done, gate.most, limited.left, pool.free) == ([1, 2, 3, 4], 2, 2, 9)


async def test_a_limited_handler_has_no_more_places_than_are_free_in_the_pool(gate: Gate) -> None:
    limited, pool = limited_to(5, gate, concurrency=3)
    settings = WorkerSettings(concurrency=3)
    places = LimitedPlaces(limited, shared(pool, 3), settings, SystemClock())
    limited.add([1])
    await settle()
    assert (limited.left, limited.free, places.spare) == (4, 2, 2)
    assert await in_time(places.take(waits=False)) == 2
    waiting = asyncio.create_task(places.take(waits=False))
    await settle()
    assert (waiting.done(), places.spare) == (False, 0)
    places.give_back(2)
    assert await in_time(waiting) == 2
    places.give_back(2)
    gate.let_go(1)
    await in_time(limited.idle())
    assert places.spare == 3


async def test_what_an_ordered_handler_with_a_limit_takes_the_pool_reserves(gate: Gate) -> None:
    """And gets back: it had reserved nothing, and had more places than it has after each turn."""
    limited, pool = limited_to(2, gate, concurrency=3)
    all_places = shared(pool, 3)
    places = LimitedPlaces(limited, all_places, WorkerSettings(concurrency=2), SystemClock())
    assert await in_time(places.take_for_other()) == 2
    assert (places.spare, all_places.spare) == (0, 1)
    places.give_back(2)
    assert (places.spare, all_places.spare) == (2, 3)


async def test_what_a_limited_handler_is_lent_the_pool_lends(gate: Gate) -> None:
    limited, pool = limited_to(2, gate, concurrency=3)
    all_places = shared(pool, 3)
    places = LimitedPlaces(limited, all_places, WorkerSettings(concurrency=3), SystemClock())
    assert [places.lend(3), places.can_lend, all_places.can_lend] == [2, 0, 1]
    assert all_places.lend(3) == 1
    places.end_loan(2)
    assert (places.can_lend, all_places.can_lend, places.spare) == (2, 2, 2)
    all_places.end_loan(1)


async def test_a_turn_that_is_given_up_keeps_no_place(gate: Gate) -> None:
    pool: Pool[int] = Pool(1, gate.run)
    places = shared(pool, 1)
    pool.add([1])
    await settle()
    for turns in range(6):  # so that it is cancelled at each step of its way to the place
        waiting = asyncio.create_task(places.take_for_other())
        await settle()
        gate.let_go(turns + 1)
        await settle(turns)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            places.give_back(await waiting)
        await idle(pool)
        assert (places.spare, places.wanted) == (1, 0)
        pool.add([turns + 2])
        await settle()
    gate.let_go(7)
    await idle(pool)


async def test_an_idle_pool_is_idle_at_once() -> None:
    async def run(number: int, task: object) -> None: ...

    await idle(Pool(1, run))


@pytest.mark.parametrize("concurrency", [1, 2, 7, 50])
async def test_every_delivery_runs_once_whether_it_waits_or_not(concurrency: int) -> None:
    draw = random.Random(concurrency)
    running, most, done = 0, 0, []

    async def run(number: int, task: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(draw.choice([0, 0, 0, 1, 2, 5])):
            await asyncio.sleep(0)
        running -= 1
        done.append(number)

    pool: Pool[int] = Pool(concurrency, run)
    for start in range(0, 1_000, 100):
        pool.add(range(start, start + 100))
        await asyncio.sleep(0)
    await idle(pool)
    assert sorted(done) == list(range(1_000))
    assert most <= concurrency


# What it costs


async def test_deliveries_that_never_wait_share_one_task_and_run_in_order() -> None:
    tasks: list[asyncio.Task[None] | None] = []
    done: list[int] = []

    async def run(number: int, task: object) -> None:
        tasks.append(asyncio.current_task())
        done.append(number)

    pool: Pool[int] = Pool(100, run)
    pool.add(range(200))
    await idle(pool)
    assert done == list(range(200))
    assert len(set(tasks)) == 1


async def test_deliveries_that_come_while_others_run_need_no_task_more() -> None:
    tasks: set[object] = set()

    async def run(number: int, task: object) -> None:
        tasks.add(task)

    pool: Pool[int] = Pool(10 * SLICE, run)
    for _ in range(5):
        pool.add(range(SLICE + 1))
        await asyncio.sleep(0)
    await idle(pool)
    assert len(tasks) == 1


async def test_a_delivery_that_waits_costs_one_more_task(gate: Gate) -> None:
    tasks: set[asyncio.Task[None] | None] = set()

    async def run(number: int, task: object) -> None:
        tasks.add(asyncio.current_task())
        if number == 5:
            await gate.run(number, task)

    pool: Pool[int] = Pool(100, run)
    pool.add(range(20))
    await settle()
    assert len(tasks) == 2
    gate.let_go(5)
    await idle(pool)


async def test_many_that_never_wait_let_the_loop_breathe() -> None:
    breaths = 0
    stop = False

    async def breathe() -> None:
        nonlocal breaths
        while not stop:
            breaths += 1
            await asyncio.sleep(0)

    async def run(number: int, task: object) -> None: ...

    pool: Pool[int] = Pool(10, run)
    breathing = asyncio.create_task(breathe())
    pool.add(range(SLICE * 10))
    await idle(pool)
    stop = True
    await in_time(breathing)
    assert breaths >= 10


# Contexts


async def test_each_delivery_has_a_context_of_its_own() -> None:
    """Also after it has waited, and also when another ran in between on the same task."""
    variable = contextvars.ContextVar("variable", default=-1)
    seen: list[int] = []

    async def run(number: int, task: object) -> None:
        seen.append(variable.get())
        variable.set(number)
        if number % 3 == 0:
            await asyncio.sleep(0)
        assert variable.get() == number
        if number % 5 == 0:
            await asyncio.sleep(0.001)
        assert variable.get() == number

    pool: Pool[int] = Pool(4, run)
    pool.add(range(50))
    await idle(pool)
    assert seen == [-1] * 50
    assert variable.get() == -1


async def test_a_delivery_that_another_one_adds_later_does_not_get_its_context() -> None:
    """As the retry of an ordered job, for which the delivery that failed has set a timer."""
    variable = contextvars.ContextVar("variable", default=0)
    seen: list[int] = []

    async def run(number: int, task: object) -> None:
        seen.append(variable.get())
        variable.set(number)
        if number == 1:
            asyncio.get_running_loop().call_later(0.01, pool.add, [2])

    pool: Pool[int] = Pool(4, run)
    pool.add([1])
    await until(lambda: len(seen) == 2)
    assert seen == [0, 0]


async def test_tasks_and_timeouts_within_a_delivery_work() -> None:
    done: list[str] = []

    async def run(number: int, task: object) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            done.append("timeout")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        done.append("group")

    pool: Pool[int] = Pool(2, run)
    pool.add([1, 2])
    await idle(pool)
    assert sorted(done) == ["group", "group", "timeout", "timeout"]


# Ends


async def test_abandoning_cancels_what_runs_and_forgets_what_waits(gate: Gate) -> None:
    pool: Pool[int] = Pool(2, gate.run)
    pool.add(range(5))
    await settle()
    assert gate.running == {0, 1}
    await in_time(pool.abandon())
    assert (gate.running, gate.done, pool.free) == (set(), [], 2)
    await idle(pool)


async def test_a_delivery_may_clean_up_when_it_is_cancelled() -> None:
    cleaned = asyncio.Event()

    async def run(number: int, task: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    pool: Pool[int] = Pool(1, run)
    pool.add([1])
    await settle()
    await in_time(pool.abandon())
    assert cleaned.is_set()


async def test_abandoning_before_anything_began_is_no_trouble(gate: Gate) -> None:
    pool: Pool[int] = Pool(2, gate.run)
    pool.add(range(5))
    async with asyncio.timeout(PATIENCE):
        await pool.abandon()
        await pool.idle()
    assert gate.done == []


@pytest.mark.parametrize("waits", [False, True])
async def test_an_error_that_comes_out_does_not_stop_the_others(waits: bool) -> None:
    """`run` is not to raise; should it, the place is free again and the queue goes on."""
    done: list[int] = []

    async def run(number: int, task: object) -> None:
        if waits:
            await asyncio.sleep(0)
        if number == 3:
            raise RuntimeError("a mistake")
        done.append(number)

    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    pool: Pool[int] = Pool(1, run)
    pool.add(range(8))
    await idle(pool)
    assert done == [0, 1, 2, 4, 5, 6, 7]
    assert pool.free == 1


async def test_a_coroutine_that_swallows_a_cancellation_ends_as_it_likes() -> None:
    ended: list[str] = []

    async def run(number: int, task: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("swallowed")

    pool: Pool[int] = Pool(1, run)
    pool.add([1])
    await settle()
    await in_time(pool.abandon())
    assert ended == ["swallowed"]
    assert pool.free == 1


def test_the_pool_is_made_outside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker is, before `asyncio.run`."""

    async def run(number: int, task: object) -> None: ...

    def make() -> Callable[..., object]:
        return Pool(1, run).add

    assert make()
