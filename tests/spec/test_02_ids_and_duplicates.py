"""2. Ids: given or made, unique in a topic while the job is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.spec.conftest import Run, known
from tests.waiting import PATIENCE
from wheelq import CancelOutcome, Client, JobSpec, RescheduleOutcome, RunNowOutcome, Settings, Worker
from wheelq.errors import DuplicateJob
from wheelq.settings import TopicSettings


def test_an_id_that_is_made_sorts_by_the_time_it_was_made(client: Client, topic: str) -> None:
    ids = [client.schedule(topic, delay=60).id for _ in range(50)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 50


def test_a_key_is_the_jobs_id(client: Client, topic: str) -> None:
    assert client.schedule(topic, delay=60, key="order-42").id == "order-42"
    assert client.get(topic, "order-42") is not None


@pytest.mark.parametrize("key", ["a", "x" * 256, "mit Leerzeichen", "注文-42", "a:b{c}*?[d]", "'; DROP TABLE"])
def test_a_key_is_any_text_up_to_256_bytes(client: Client, topic: str, key: str) -> None:
    client.schedule(topic, 1, delay=60, key=key)
    info = known(client.get(topic, key))
    assert info.id == key
    assert client.cancel(topic, key) == "cancelled"


def test_a_second_job_with_the_id_of_a_live_one_changes_nothing(client: Client, topic: str) -> None:
    """`created` is False, and the receipt tells when the live one is due. This is `on_duplicate="keep"`."""
    first = client.schedule(topic, "first", delay=60, key="a")
    second = client.schedule(topic, "second", delay=120, key="a")
    assert (second.created, second.replaced, second.due_ms) == (False, False, first.due_ms)
    info = known(client.get(topic, "a"))
    assert info.payload == "first"


def test_two_equal_calls_are_two_calls(client: Client, topic: str) -> None:
    """Same id, same payload, same delay: the second finds another's job all the same."""
    client.schedule(topic, "same", delay=60, key="a")
    assert not client.schedule(topic, "same", delay=60, key="a").created


def test_replace_gives_a_waiting_job_the_new_payload_and_time(client: Client, topic: str) -> None:
    client.schedule(topic, "first", delay=60, key="a", headers={"h": "1"})
    second = client.schedule(topic, "second", delay=120, key="a", on_duplicate="replace")
    assert (second.created, second.replaced) == (True, True)
    info = known(client.get(topic, "a"))
    assert (info.payload, info.due_ms, info.headers) == ("second", second.due_ms, {})


def test_replace_comes_too_late_for_a_job_that_is_ready(client: Client, topic: str) -> None:
    first = client.schedule(topic, "first", delay=0, key="a")
    second = client.schedule(topic, "second", delay=60, key="a", on_duplicate="replace")
    assert (second.created, second.replaced, second.due_ms) == (False, False, first.due_ms)


def test_raise_tells_of_a_duplicate_with_an_error(client: Client, topic: str) -> None:
    client.schedule(topic, "first", delay=60, key="a")
    with pytest.raises(DuplicateJob, match="a") as caught:
        client.schedule(topic, "second", delay=60, key="a", on_duplicate="raise")
    assert (caught.value.topic, caught.value.ids) == (topic, ["a"])
    info = known(client.get(topic, "a"))
    assert info.payload == "first"


def test_raise_of_many_names_every_duplicate_and_schedules_the_others(client: Client, topic: str) -> None:
    client.schedule_many(topic, [JobSpec(0, delay=60, key=key) for key in ("a", "b")])
    with pytest.raises(DuplicateJob) as caught:
        client.schedule_many(topic, [JobSpec(1, delay=60, key=key) for key in ("a", "b", "c")], on_duplicate="raise")
    assert caught.value.ids == ["a", "b"]
    assert client.get(topic, "c") is not None


def test_the_first_of_many_jobs_with_one_id_counts(client: Client, topic: str) -> None:
    receipts = client.schedule_many(topic, [JobSpec(n, delay=60 + n, key="a") for n in range(3)])
    assert [receipt.created for receipt in receipts] == [True, False, False]
    assert len({receipt.due_ms for receipt in receipts}) == 1
    info = known(client.get(topic, "a"))
    assert info.payload == 0


def test_an_id_is_free_again_when_its_job_was_cancelled(client: Client, topic: str) -> None:
    client.schedule(topic, delay=60, key="a")
    client.cancel(topic, "a")
    assert client.schedule(topic, delay=60, key="a").created


def test_the_same_id_may_live_in_two_topics(client: Client, topic: str) -> None:
    assert client.schedule(topic, delay=60, key="a").created
    assert client.schedule(f"{topic}-2", delay=60, key="a").created


# With several shards


@pytest.fixture
def sharded(url: str, settings: Settings) -> Iterator[Client]:
    """A client whose topics are made with three shards."""
    with Client.connect(url, replace(settings, topic=TopicSettings(shards=3))) as client:
        yield client


def test_ids_are_unique_over_all_shards_of_a_topic(sharded: Client, topic: str) -> None:
    keys = [f"order-{n}" for n in range(100)]
    assert all(r.created for r in sharded.schedule_many(topic, [JobSpec(k, delay=60, key=k) for k in keys]))
    assert not any(r.created for r in sharded.schedule_many(topic, [JobSpec(k, delay=60, key=k) for k in keys]))
    assert {info.shard for key in keys if (info := sharded.get(topic, key))} == {0, 1, 2}
    [info] = sharded.topics()
    assert (info.shards, info.waiting) == (3, 100)


def test_jobs_with_one_partition_key_share_a_shard(sharded: Client, topic: str) -> None:
    """It takes the place of the id in choosing the shard. Given again, it finds the job at once."""
    receipts = [sharded.schedule(topic, n, delay=60, partition_key="customer-7") for n in range(20)]
    found = [sharded.get(topic, receipt.id, partition_key="customer-7") for receipt in receipts]
    assert len({info.shard for info in found if info}) == 1
    assert all(found)


async def test_a_job_with_a_partition_key_is_found_by_its_id_alone(
    sharded: Client, topic: str, make_worker: Callable[..., Worker], run: Run
) -> None:
    """Wherever its key has placed it: `get` and `wait` by id or receipt, and every call that changes one job."""
    sharded.configure(topic, keep_done_ms=60_000)
    receipts = [sharded.schedule(topic, n, delay=60, partition_key=f"customer-{n}") for n in range(12)]
    ids = [receipt.id for receipt in receipts]
    assert {known(sharded.get(topic, id)).shard for id in ids} == {0, 1, 2}
    assert all(sharded.get(receipt) for receipt in receipts)
    assert {sharded.reschedule(topic, id, delay=30) for id in ids} == {RescheduleOutcome.RESCHEDULED}
    assert {sharded.cancel(topic, id) for id in ids[:6]} == {CancelOutcome.CANCELLED}
    assert {sharded.cancel(topic, id) for id in ids[:6]} == {CancelOutcome.NOT_FOUND}
    assert {sharded.run_now(topic, id) for id in ids[6:]} == {RunNowOutcome.PROMOTED}
    run(make_worker())
    for receipt in receipts[6:]:
        assert await asyncio.to_thread(sharded.wait, receipt, timeout=PATIENCE) is None


def test_a_topic_keeps_the_number_of_shards_it_was_made_with(sharded: Client, client: Client, topic: str) -> None:
    sharded.schedule(topic, delay=60)
    client.schedule(topic, delay=60)
    [info] = client.topics()
    assert (info.shards, info.waiting) == (3, 2)
