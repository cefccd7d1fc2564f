"""31. Debounce: many calls with one key make one run, some time after the last call.

`max_wait` bounds how long the calls may put it off. What is promoted cannot be changed any more, so a call then makes
one more job, under a second id, which later calls replace.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.running import running
from tests.spec.conftest import known
from tests.waiting import until
from wheelq import (
    AsyncClient,
    CancelOutcome,
    Client,
    InvalidInput,
    InvalidJob,
    Job,
    JobSpec,
    JobState,
    Receipt,
    Worker,
)
from wheelq.testing import WheelqTest

SECOND = "doc-7~second"


def index(client: Client, topic: str, payload: object, delay: float = 5, max_wait: float = 60) -> Receipt[Any]:
    return client.schedule(topic, payload, key="doc-7", delay=delay, on_duplicate="replace", max_wait=max_wait)


# The waiting job


def test_each_call_moves_the_job_back_and_the_last_payload_runs_once(wheelq: WheelqTest) -> None:
    found: list[object] = []
    wheelq.worker.handler("index")(lambda job: found.append((job.id, job.payload)))
    for n in range(5):
        receipt = index(wheelq.client, "index", n)
        assert (receipt.id, receipt.created, receipt.replaced) == ("doc-7", True, n > 0)
        wheelq.advance(seconds=4)
        assert found == []
    wheelq.advance(seconds=1)
    assert found == [("doc-7", 4)]
    wheelq.advance(hours=1)
    assert len(found) == 1


def test_calls_that_never_pause_put_it_off_until_max_wait_and_the_receipt_says_until_when(wheelq: WheelqTest) -> None:
    found: list[object] = []
    wheelq.worker.handler("index")(lambda job: found.append((job.payload, job.due_ms, job.scheduled_ms)))
    first = index(wheelq.client, "index", 0)
    latest = first.due_ms - 5_000 + 60_000
    for n in range(1, 15):
        wheelq.advance(seconds=4)
        receipt = index(wheelq.client, "index", n)
        assert receipt.due_ms == min(first.due_ms + 4_000 * n, latest)
    wheelq.advance(seconds=4)
    assert found == [(14, latest, latest - 60_000)]
    again = index(wheelq.client, "index", 15)
    assert again.due_ms == latest + 5_000, "a new job has a new bound"


def test_a_time_and_a_spread_beyond_the_bound_are_cut_to_it(client: Client, topic: str) -> None:
    at = datetime.now(UTC) + timedelta(days=1)
    options: dict[str, Any] = {"on_duplicate": "replace", "max_wait": 60}
    one = client.schedule(topic, key="a", at=at, **options)
    two = client.schedule(topic, key="b", delay=50, spread=100_000, **options)
    for receipt in (one, two):
        info = known(client.get(receipt))
        assert info.scheduled_ms is not None
        assert info.due_ms == receipt.due_ms == info.scheduled_ms + 60_000


def test_the_bound_survives_a_reschedule_and_counts_from_the_call_that_made_the_job(wheelq: WheelqTest) -> None:
    client = wheelq.client
    first = index(client, "index", 0)
    client.reschedule("index", "doc-7", delay=3600)
    wheelq.advance(seconds=58)
    assert index(client, "index", 1).due_ms == first.due_ms + 55_000
    client.reschedule_due("index", since=datetime.fromtimestamp(0, UTC), by=timedelta(hours=1))
    assert index(client, "index", 2).due_ms == first.due_ms + 55_000


def test_a_job_that_was_not_debounced_is_replaced_and_its_time_does_not_count(wheelq: WheelqTest) -> None:
    wheelq.client.schedule("index", 0, key="doc-7", delay=3600)
    wheelq.advance(minutes=30)
    receipt = index(wheelq.client, "index", 1)
    assert (receipt.replaced, receipt.due_ms) == (True, wheelq.client.get("index", "doc-7").due_ms)  # type: ignore[union-attr]
    assert 0 <= receipt.due_ms - wheelq.now.timestamp() * 1000 - 5_000 < 5


def test_replace_without_max_wait_is_bounded_no_more(wheelq: WheelqTest) -> None:
    index(wheelq.client, "index", 0)
    wheelq.advance(seconds=4)
    free = wheelq.client.schedule("index", 1, key="doc-7", delay=100, on_duplicate="replace")
    assert free.due_ms - wheelq.now.timestamp() * 1000 > 99_000


def test_each_job_of_many_is_debounced_also_if_an_id_comes_twice(client: Client, topic: str) -> None:
    specs = [JobSpec(n, delay=5 + n, key=f"doc-{n % 2}", max_wait=6) for n in range(2)]
    specs += [JobSpec(9, delay=6, key="doc-0", max_wait=6), JobSpec(8, delay=30, key="plain")]
    for receipts in (client.schedule_many(topic, specs, on_duplicate="replace") for _ in range(2)):
        assert [receipt.id for receipt in receipts] == ["doc-0", "doc-1", "doc-0", "plain"]
    assert known(client.get(topic, "doc-0")).payload == 9
    assert {job.id for job in client.waiting(topic).jobs} == {"doc-0", "doc-1", "plain"}


# The job is promoted already


def promoted(wheelq: WheelqTest) -> Receipt[Any]:
    """The first job of the key, ready, and nobody runs it."""
    first = index(wheelq.client, "index", "first")
    wheelq.advance(seconds=5)
    assert known(wheelq.client.get("index", "doc-7")).state is JobState.READY
    return first


def test_while_the_job_is_promoted_one_more_is_made_that_later_calls_replace(wheelq: WheelqTest) -> None:
    promoted(wheelq)
    second = index(wheelq.client, "index", "second")
    assert (second.id, second.created, second.replaced) == (SECOND, True, False)
    wheelq.advance(seconds=4)
    third = index(wheelq.client, "index", "third")
    assert (third.id, third.created, third.replaced) == (SECOND, True, True)
    assert third.due_ms == second.due_ms + 4_000
    by_key = known(wheelq.client.get("index", "doc-7"))
    assert (by_key.id, by_key.state, by_key.payload, by_key.second_id) == ("doc-7", JobState.READY, "first", SECOND)
    by_id = known(wheelq.client.get("index", SECOND))
    assert (by_id.id, by_id.state, by_id.payload, by_id.second_id) == (SECOND, JobState.WAITING, "third", None)
    assert known(wheelq.client.get(third)).due_ms == third.due_ms


def test_the_second_job_is_bounded_from_the_call_that_made_it(wheelq: WheelqTest) -> None:
    promoted(wheelq)
    second = index(wheelq.client, "index", 0)
    for _ in range(14):
        wheelq.advance(seconds=4)
        last = index(wheelq.client, "index", 1)
    assert last.due_ms == second.due_ms + 55_000


def test_the_second_job_is_found_by_later_calls_when_the_first_is_done(wheelq: WheelqTest) -> None:
    promoted(wheelq)
    index(wheelq.client, "index", "second")
    found: list[object] = []
    wheelq.worker.handler("index")(lambda job: found.append((job.id, job.payload)))
    wheelq.advance(seconds=1)
    assert found == [("doc-7", "first")]
    third = index(wheelq.client, "index", "third")
    assert (third.id, third.replaced) == (SECOND, True)
    by_key = known(wheelq.client.get("index", "doc-7"))
    assert (by_key.id, by_key.payload, by_key.second_id) == (SECOND, "third", None)
    wheelq.advance(seconds=5)
    assert found == [("doc-7", "first"), (SECOND, "third")]
    assert index(wheelq.client, "index", "fourth").id == "doc-7"


def test_if_both_are_promoted_the_call_changes_nothing_and_the_receipt_says_so(wheelq: WheelqTest) -> None:
    promoted(wheelq)
    second = index(wheelq.client, "index", "second")
    wheelq.advance(seconds=5)
    third = index(wheelq.client, "index", "third")
    assert (third.id, third.created, third.replaced, third.due_ms) == (SECOND, False, False, second.due_ms)
    assert third.life == second.life
    assert len(wheelq.client.jobs("index", state=JobState.READY).jobs) == 2


def test_a_retry_does_not_hold_up_the_next_payload(wheelq: WheelqTest) -> None:
    found: list[object] = []

    @wheelq.worker.handler("index")
    def handle(job: Job) -> None:
        found.append((job.id, job.payload))
        if len(found) == 1:
            raise ValueError("no")

    index(wheelq.client, "index", "first")
    wheelq.advance(seconds=5)
    assert known(wheelq.client.get("index", "doc-7")).state is JobState.RETRYING
    assert index(wheelq.client, "index", "second").id == SECOND
    wheelq.advance(hours=1)
    assert sorted(found[1:], key=str) == [("doc-7", "first"), (SECOND, "second")]


def test_a_dead_job_leaves_the_key_free_and_its_replay_takes_it(wheelq: WheelqTest) -> None:
    @wheelq.worker.handler("index")
    def handle(job: Job) -> None:
        if job.payload == "first" and not job.replays:
            raise ValueError("no")

    client = wheelq.client
    index(client, "index", "first")
    client.schedule("index", "first", key="doc-7", delay=5, on_duplicate="replace", max_wait=60, attempts=1)
    wheelq.advance(seconds=5)
    assert len(client.dead.list("index").jobs) == 1
    assert index(client, "index", "second").id == "doc-7"
    client.cancel("index", "doc-7")
    client.dead.replay("index", all=True)
    assert index(client, "index", "third").id == SECOND
    wheelq.advance(minutes=1)
    wheelq.assert_ran("index", "doc-7")
    wheelq.assert_ran("index", SECOND, times=1)


# Cancelling


def test_cancelling_by_key_cancels_both(wheelq: WheelqTest) -> None:
    client = wheelq.client
    index(client, "index", 0)
    assert client.cancel("index", "doc-7") is CancelOutcome.CANCELLED
    assert client.cancel("index", "doc-7") is CancelOutcome.NOT_FOUND
    promoted(wheelq)
    index(client, "index", 1)
    assert client.cancel("index", "doc-7") is CancelOutcome.RUNNING, "too late for the first"
    assert client.get("index", SECOND) is None
    wheelq.worker.handler("index")(lambda job: None)
    index(client, "index", 2)
    wheelq.advance(seconds=1)
    assert client.cancel("index", "doc-7") is CancelOutcome.CANCELLED, "only the second was left"
    wheelq.advance(minutes=5)
    wheelq.assert_not_ran("index", SECOND)


async def test_cancelling_by_key_while_both_run(worker: Worker, aclient: AsyncClient, topic: str) -> None:
    begun, cancelled = set[str](), set[str]()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        begun.add(job.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.add(job.id)
            raise

    async def debounce() -> None:
        receipt = await aclient.schedule(topic, key="a", delay=9, on_duplicate="replace", max_wait=9)
        await aclient.run_now(topic, receipt.id)

    async with running(worker):
        await debounce()
        await until(lambda: begun == {"a"})
        await debounce()
        await until(lambda: begun == {"a", "a~second"})
        assert await aclient.cancel(topic, "a", running=True) is CancelOutcome.CANCELLING
        await until(lambda: cancelled == begun)


async def test_cancelling_by_key_while_the_first_waits_and_the_second_runs(
    worker: Worker, aclient: AsyncClient, topic: str
) -> None:
    begun, first_may_end = list[str](), asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        begun.append(job.id)
        await (first_may_end.wait() if job.id == "a" else asyncio.Event().wait())

    async def debounce() -> Receipt:
        return await aclient.schedule(topic, key="a", delay=9, on_duplicate="replace", max_wait=9)

    async def is_alone() -> bool:
        info = await aclient.get(topic, "a")
        return info is not None and info.id == "a~second"

    async with running(worker):
        for n in range(2):
            await aclient.run_now(topic, (await debounce()).id)
            await until(lambda n=n: len(begun) > n)
        first_may_end.set()
        await until(is_alone)
        assert (await debounce()).id == "a"
        assert await aclient.cancel(topic, "a", running=True) is CancelOutcome.CANCELLED
        await until(lambda: worker.cancelled == 1)
    assert begun == ["a", "a~second"]


# The jobs of others


def test_a_job_that_somebody_scheduled_under_the_second_id_is_left_alone(wheelq: WheelqTest) -> None:
    client = wheelq.client
    client.schedule("index", "other", key=SECOND, delay=3600)
    assert client.get("index", "doc-7") is None
    assert client.cancel("index", "doc-7") is CancelOutcome.NOT_FOUND
    promoted(wheelq)
    kept = index(client, "index", "second")
    assert (kept.created, kept.replaced) == (False, False)
    assert known(client.get("index", "doc-7")).second_id is None
    assert client.cancel("index", "doc-7") is CancelOutcome.RUNNING
    assert known(client.get("index", SECOND)).payload == "other"


# With the rest


def test_a_typed_task_is_debounced(wheelq: WheelqTest) -> None:
    found: list[int] = []

    @wheelq.worker.task("index")
    def reindex(doc: int, words: int) -> None:
        found.append(words)

    for words in range(3):
        wheelq.client.schedule(
            reindex.job(7, words), key="doc-7", delay=5, on_duplicate="replace", max_wait=timedelta(minutes=1)
        )
        wheelq.advance(seconds=1)
    specs = [JobSpec(reindex.job(7, words), key="doc-7", delay=5, max_wait=60) for words in (3, 4)]
    wheelq.client.schedule_many(reindex, specs, on_duplicate="replace")
    wheelq.advance(hours=1)
    assert found == [4]


def test_what_follows_jobs_is_debounced(wheelq: WheelqTest) -> None:
    found: list[object] = []
    wheelq.worker.handler("index")(lambda job: found.append(job.payload))

    @wheelq.worker.handler("save")
    def save(job: Job) -> None:
        job.then("index", job.payload, key="doc-7", delay=5, on_duplicate="replace", max_wait=60)

    for n in range(4):
        wheelq.client.schedule("save", n, delay=2 * n)
    wheelq.advance(minutes=5)
    assert found == [3]


def test_a_batch_handler_and_an_ordered_one_run_debounced_jobs(wheelq: WheelqTest) -> None:
    found: list[object] = []
    wheelq.worker.handler("ordered", ordered="key")(lambda job: found.append(job.payload))

    @wheelq.worker.batch_handler("batched")
    def handle(jobs: list[Job]) -> None:
        found.extend(job.payload for job in jobs)

    for topic in ("ordered", "batched"):
        for n in range(3):
            options: dict[str, Any] = {"on_duplicate": "replace", "max_wait": 60, "partition_key": "p"}
            wheelq.client.schedule(topic, (topic, n), key="a", delay=5, **options)
    wheelq.advance(minutes=1)
    assert sorted(found, key=str) == [["batched", 2], ["ordered", 2]]


def test_the_bound_holds_where_the_number_of_shards_was_changed(wheelq: WheelqTest) -> None:
    client = wheelq.client
    keys = [f"doc-{n}" for n in range(30)]

    def call(payload: int) -> list[Receipt[Any]]:
        specs = [JobSpec(payload, key=key, delay=40, max_wait=60) for key in keys]
        return client.schedule_many("index", specs, on_duplicate="replace")

    client.configure("index")
    client.set_shards("index", 7)
    first = call(0)
    client.set_shards("index", 2)
    wheelq.advance(seconds=30)
    assert [two.due_ms - one.due_ms for one, two in zip(first, call(1), strict=True)] == [20_000] * 30
    wheelq.advance(seconds=30)
    assert {receipt.id for receipt in call(2)} == {f"{key}~second" for key in keys}
    client.set_shards("index", 5)
    wheelq.advance(seconds=20)
    assert all(receipt.replaced and receipt.id.endswith("~second") for receipt in call(3))
    assert all(known(client.get("index", f"{key}~second")).payload == 3 for key in keys)
    assert all(known(client.get("index", key)).second_id == f"{key}~second" for key in keys)
    assert {client.cancel("index", key) for key in keys} == {CancelOutcome.RUNNING}
    assert client.waiting("index").jobs == []


def test_a_group_that_comes_later_runs_both(wheelq: WheelqTest) -> None:
    promoted(wheelq)
    index(wheelq.client, "index", "second")
    wheelq.advance(seconds=5)
    wheelq.worker.handler("index")(lambda job: None)
    wheelq.advance(seconds=1)
    wheelq.assert_ran("index", "doc-7", times=1)
    wheelq.assert_ran("index", SECOND, times=1)


def test_a_topic_that_is_full_or_paused(wheelq: WheelqTest) -> None:
    client = wheelq.client
    client.configure("index", max_pending=1)
    index(client, "index", 0)
    client.pause("index")
    wheelq.advance(seconds=100)
    receipt = index(client, "index", 1)
    assert (receipt.id, receipt.replaced) == ("doc-7", True)
    assert receipt.due_ms < wheelq.now.timestamp() * 1000, "it is never put off beyond its bound"
    wheelq.worker.handler("index")(lambda job: None)
    client.resume("index")
    wheelq.advance(seconds=1)
    wheelq.assert_ran("index", "doc-7", times=1)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_wait": 0}, "max_wait"),
        ({"max_wait": -1}, "max_wait"),
        ({"max_wait": "60"}, "max_wait"),
        ({"max_wait": timedelta(days=40_000)}, "max_wait"),
        ({"max_wait": 4.9}, "max_wait"),
        ({"key": None}, "max_wait"),
        ({"on_duplicate": "keep"}, "max_wait"),
        ({"on_duplicate": "raise"}, "max_wait"),
        ({"key": "x" * 250}, "max_wait"),
        ({"key": SECOND}, "max_wait"),
    ],
)
def test_what_makes_no_sense_is_refused(client: Client, topic: str, wrong: dict[str, Any], field: str) -> None:
    options = {"key": "a", "delay": 5, "max_wait": 60, "on_duplicate": "replace"} | wrong
    with pytest.raises(InvalidInput) as refused:
        client.schedule(topic, **options)
    assert refused.value.field == field
    how = options.pop("on_duplicate")
    with pytest.raises(InvalidJob) as bad:
        client.schedule_many(topic, [JobSpec(**options)], on_duplicate=how)
    assert field in str(bad.value)


def test_the_longest_key(client: Client, topic: str) -> None:
    client.schedule(topic, key="x" * 249, delay=5, max_wait=60, on_duplicate="replace")
