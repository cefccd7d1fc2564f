"""`KafkaSink` against a mock cluster: what is sent, what is confirmed, what is refused, and brokers that are away."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadtest.servers.kafka import INIT_PRODUCER_ID, PRODUCE, KafkaCluster
from tests.kafka import cluster_of_one, sent
from tests.waiting import in_time, until
from wheelq import Bury, Job, reminders, sinks
from wheelq.base.clock import SystemClock
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.retry import Postponed, Retry
from wheelq.sinks import KafkaSink, kafka
from wheelq.worker.outcome import Again, of_failure

MESSAGE_TOO_LARGE, INVALID_TOPIC, NOT_ENOUGH_REPLICAS, NO_PERMISSION, NO_PERMISSION_IN_CLUSTER = 10, 17, 19, 29, 31
TOPIC = "orders-due"


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with cluster_of_one() as cluster:
        cluster.make_topic(TOPIC, 1)
        yield cluster


@pytest.fixture
def sink(cluster: KafkaCluster) -> KafkaSink:
    return KafkaSink(cluster.servers, TOPIC)


def job(id: str, payload: Any = None, **more: Any) -> Job:
    return replace(Job(id, "orders", payload, 1_700_000_000_500, 1, "1-0", 0.0), **more)


def jobs(count: int) -> list[Job]:
    return [job(f"job-{n}", {"n": n}) for n in range(count)]


async def ids(cluster: KafkaCluster, at_least: int) -> list[str]:
    return [one.job for one in await sent(cluster.servers, TOPIC, at_least, 1)]


async def goes(sink: KafkaSink, job: Job) -> bool:
    """Whether it is confirmed now."""
    try:
        await sink(job)
    except Postponed:
        return False
    return True


def kinds(found: object) -> list[type[object]]:
    assert isinstance(found, list)
    return [type(one) for one in found]


# What is sent


async def test_a_message_has_the_jobs_headers_its_id_due_time_and_attempt(
    cluster: KafkaCluster, sink: KafkaSink
) -> None:
    given = job("order-42", headers={"tenant": "ä"}, attempt=3, first_due_ms=1_700_000_000_123, partition_key="cart-7")
    assert await sink(given) is None
    [message] = await sent(cluster.servers, TOPIC, 1, 1)
    assert message.key == b"cart-7"
    assert message.headers == [
        ("tenant", "ä".encode()),
        ("wheelq-topic", b"orders"),
        ("wheelq-job", b"order-42"),
        ("wheelq-due", b"1700000000123"),
        ("wheelq-attempt", b"3"),
    ]


async def test_a_header_of_the_job_does_not_hide_one_of_the_sinks(cluster: KafkaCluster, sink: KafkaSink) -> None:
    """A job that was made from another job's message may have its headers."""
    await sink(job("second", headers={"wheelq-job": "first"}))
    [message] = await sent(cluster.servers, TOPIC, 1, 1)
    assert [text for name, text in message.headers if name == "wheelq-job"] == [b"second"]


@pytest.mark.parametrize(
    ("payload", "alone", "content"),
    [
        ({"n": 1, "name": "ä"}, '{"n":1,"name":"ä"}'.encode(), '{"n":1,"name":"ä"}'),
        ("text", b'"text"', "text"),
        (None, b"null", "null"),
        (b"\x00\xff", b"\x00\xff", '"AP8="'),
    ],
)
async def test_a_value_is_the_payload_or_the_classic_envelope(
    cluster: KafkaCluster, payload: object, alone: bytes, content: str
) -> None:
    await KafkaSink(cluster.servers, TOPIC)(job("a", payload))
    await KafkaSink(cluster.servers, TOPIC, envelope=True)(job("b", payload))
    plain, wrapped = await sent(cluster.servers, TOPIC, 2, 1)
    assert (plain.value, plain.key) == (alone, None)
    assert json.loads(wrapped.value) == {"topic": "orders", "content": content}


# Confirmed


async def test_it_returns_when_the_broker_has_confirmed(cluster: KafkaCluster, sink: KafkaSink) -> None:
    await sink(job("first"))
    with cluster.away():
        sending = asyncio.create_task(sink(jobs(50)))
        done, _ = await asyncio.wait([sending], timeout=0.3)
        assert not done
    assert await in_time(sending) == [None] * 50
    assert await ids(cluster, 51) == ["first", *(f"job-{n}" for n in range(50))]


async def test_messages_that_the_queue_has_no_room_for_are_postponed(cluster: KafkaCluster) -> None:
    sink = KafkaSink(cluster.servers, TOPIC, config={"queue.buffering.max.messages": 10})
    found = await in_time(sink(jobs(30)))
    assert kinds(found) == [*[type(None)] * 10, *[Postponed] * 20]
    assert len(await ids(cluster, 10)) == 10


async def test_no_thread_is_left_when_all_is_confirmed(sink: KafkaSink) -> None:
    await sink(jobs(10))
    await until(lambda: not [one for one in threading.enumerate() if one.name == "wheelq-kafka"])


async def test_many_single_jobs_are_sent_at_the_same_time(cluster: KafkaCluster, sink: KafkaSink) -> None:
    await in_time(asyncio.gather(*(sink(one) for one in jobs(200))))
    assert sorted(await ids(cluster, 200)) == sorted(one.id for one in jobs(200))


# Refused for good


async def test_a_message_that_is_too_large_buries_its_own_job_only(cluster: KafkaCluster) -> None:
    sink = KafkaSink(cluster.servers, TOPIC, config={"message.max.bytes": 1_000})
    found = await sink([job("a"), job("b", "x" * 2_000), job("c")])
    assert kinds(found) == [type(None), Bury, type(None)]
    assert "too large" in str(found[1])
    assert await ids(cluster, 2) == ["a", "c"]


@pytest.mark.parametrize("error", [MESSAGE_TOO_LARGE, INVALID_TOPIC])
async def test_a_request_that_the_broker_refuses_is_repeated_message_by_message(
    cluster: KafkaCluster, error: int
) -> None:
    """Ten messages, which wait long enough to go together, are refused; then the first of them alone."""
    sink = KafkaSink(cluster.servers, TOPIC, config={"linger.ms": 500})
    await sink(job("before"))
    cluster.refuse(PRODUCE, error, error)
    found = await in_time(sink(jobs(10)))
    assert kinds(found) == [Bury, *[type(None)] * 9]
    assert sorted(await ids(cluster, 10)) == ["before", *(f"job-{n}" for n in range(1, 10))]
    assert await sink(job("after")) is None


async def test_a_single_job_that_is_refused_is_buried(cluster: KafkaCluster, sink: KafkaSink) -> None:
    cluster.refuse(PRODUCE, INVALID_TOPIC, INVALID_TOPIC)
    with pytest.raises(Bury, match="Kafka refuses the message"):
        await sink(job("a"))


# Away


async def test_messages_that_are_not_confirmed_in_time_are_postponed_for_longer_each_time(
    cluster: KafkaCluster,
) -> None:
    sink = KafkaSink(cluster.servers, TOPIC, timeout=1)
    await until(lambda: goes(sink, job("first")))  # on a busy machine, connecting may take longer than the timeout
    with cluster.away():
        found = [await in_time(sink(jobs(2))) for _ in range(2)]
    failures = [one.failures for some in found for one in some or [] if isinstance(one, Postponed)]
    assert failures[:2] == [1, 1]
    assert len(failures) == 4
    assert min(failures[2:]) >= 2
    await until(lambda: goes(sink, job("after")))
    with cluster.away(), pytest.raises(Postponed) as again:
        await in_time(sink(job("later")))
    assert again.value.failures == 1
    assert [*dict.fromkeys(await ids(cluster, 2))] == ["first", "after"]


async def test_an_error_that_is_not_of_the_message_postpones_its_job_and_is_logged(
    cluster: KafkaCluster, sink: KafkaSink, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refuse(PRODUCE, NO_PERMISSION)
    with pytest.raises(Postponed, match="authorization"):
        await in_time(sink(job("a")))
    await until(lambda: goes(sink, job("a")))
    assert "authorization" in caplog.text


async def test_an_error_that_passes_is_not_seen(cluster: KafkaCluster, sink: KafkaSink) -> None:
    cluster.refuse(PRODUCE, *[NOT_ENOUGH_REPLICAS] * 3)
    assert await in_time(sink(jobs(10))) == [None] * 10
    assert await ids(cluster, 10) == [f"job-{n}" for n in range(10)]


async def test_a_topic_that_does_not_exist_yet_postpones_its_jobs(cluster: KafkaCluster) -> None:
    cluster.fail_topic("missing", 3)
    sink = KafkaSink(cluster.servers, "missing", timeout=1, config={"topic.metadata.propagation.max.ms": 500})
    with pytest.raises(Postponed):
        await in_time(sink(job("a")))
    cluster.fail_topic("missing", 0)
    await until(lambda: goes(sink, job("a")))


async def test_a_producer_with_a_fatal_error_is_replaced(cluster: KafkaCluster, sink: KafkaSink) -> None:
    """It may not have a producer id, at first."""
    cluster.refuse(INIT_PRODUCER_ID, NO_PERMISSION_IN_CLUSTER)
    with pytest.raises(Postponed):
        await in_time(sink(job("a")))
    assert await in_time(sink(job("a"))) is None


async def test_a_call_that_is_cancelled_sends_nothing_later(cluster: KafkaCluster, sink: KafkaSink) -> None:
    await sink(job("first"))
    with cluster.away():
        sending = asyncio.create_task(sink(jobs(20)))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    await in_time(sink(job("last")))
    assert await ids(cluster, 2) == ["first", "last"]


async def test_brokers_that_are_away_are_told_of_once(
    cluster: KafkaCluster, sink: KafkaSink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "SLOW_S", 0.02)
    caplog.set_level(logging.DEBUG, "wheelq.sinks")
    with reminders.kept(SystemClock()):
        with cluster.away():
            sending = asyncio.gather(*(sink(one) for one in jobs(20)))
            await until(lambda: len(caplog.records) > 100)
        await in_time(sending)
    assert len(await ids(cluster, 20)) == 20
    [told] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert told.startswith(f"jobs wait for Kafka at {cluster.servers}: messages are not confirmed (")


@pytest.mark.parametrize(
    ("retry", "pauses"),
    [
        (Retry(max_attempts=1, base=1, cap=5, jitter=0), [1_000, 2_000, 4_000, 5_000]),
        (Retry(delays=[2, 7]), [2_000, 7_000, 7_000, 7_000]),
    ],
)
def test_what_is_postponed_pauses_as_its_handler_says_and_loses_no_attempt(retry: Retry, pauses: list[int]) -> None:
    found = [of_failure(Postponed("away", failures), 1, retry, 0.5) for failures in range(1, 5)]
    assert found == [Again(pause, "away", counts=False) for pause in pauses]


# Given wrongly


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topic": "no spaces"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": ".."}, "topic"),
        ({"timeout": 0}, "timeout"),
        ({"config": {"acks": "1"}}, "must not have 'acks'"),
        ({"config": {"transactional.id": "x"}}, "must not have 'transactional.id'"),
        ({"config": {"delivery.report.only.error": True}}, "must not have 'delivery.report.only.error'"),
        ({"config": {"bootstrap.servers": "elsewhere"}}, "must not have 'bootstrap.servers'"),
        ({"config": {"no.such": 1}}, 'No such configuration property: "no.such"'),
        ({"config": {"max.in.flight": 20}}, "max.in.flight"),
    ],
)
def test_mistakes_are_refused_when_the_sink_is_made(given: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidInput, ConfigurationError), match=words):
        KafkaSink("127.0.0.1:1", **{"topic": "orders", **given})


def test_the_module_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="RabbitSink"):
        _ = sinks.RabbitSink  # type: ignore[attr-defined]


def test_confirmations_take_part_in_no_closed_loop(cluster: KafkaCluster, sink: KafkaSink) -> None:
    """A sink may outlive the event loop of a call that was given up."""

    async def give_up(work: Sequence[Job]) -> None:
        sending = asyncio.create_task(sink(work))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(give_up(jobs(10)))
    assert asyncio.run(sink(jobs(1))) == [None]
