"""1. Scheduling: say what and when, and get a receipt."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.spec.conftest import known
from wheelq import AsyncClient, Client, JobSpec, JobState

CLOCK_SLACK_MS = 20_000
"""The test and the server share a machine; so much may pass between two looks at the clock."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_job_is_scheduled_with_a_delay_in_seconds(client: Client, topic: str) -> None:
    """The receipt tells the id, the due time in milliseconds since the Unix epoch, and that the job is new."""
    before = now_ms()
    receipt = client.schedule(topic, {"order": 42}, delay=1800)
    assert receipt.created
    assert not receipt.replaced
    assert len(receipt.id) == 26
    assert 0 <= receipt.due_ms - (before + 1_800_000) < CLOCK_SLACK_MS


def test_a_delay_may_be_a_fraction_of_a_second(client: Client, topic: str) -> None:
    before = now_ms()
    assert 0 <= client.schedule(topic, delay=0.25).due_ms - (before + 250) < CLOCK_SLACK_MS


def test_a_delay_may_be_a_timedelta(client: Client, topic: str) -> None:
    before = now_ms()
    receipt = client.schedule(topic, delay=timedelta(minutes=30))
    assert 0 <= receipt.due_ms - (before + 1_800_000) < CLOCK_SLACK_MS


def test_a_job_is_scheduled_at_a_moment(client: Client, topic: str) -> None:
    """`at` is an aware datetime; a fraction of a millisecond is rounded up, never down."""
    at = datetime.now(UTC).replace(microsecond=1) + timedelta(hours=9)
    receipt = client.schedule(topic, at=at)
    assert receipt.due - at == timedelta(microseconds=999)


def test_a_moment_in_another_time_zone_is_the_same_moment(client: Client, topic: str) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    tokyo = at.astimezone(timezone(timedelta(hours=9)))
    assert client.schedule(topic, at=at).due_ms == client.schedule(topic, at=tokyo).due_ms


def test_a_moment_that_has_passed_means_at_once(client: Client, topic: str) -> None:
    """The job is ready without a scheduler; its due time stays the one asked for."""
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    receipt = client.schedule(topic, at=at)
    info = known(client.get(topic, receipt.id))
    assert (info.state, info.due) == (JobState.READY, at)


def test_a_delay_of_nothing_means_at_once(client: Client, topic: str) -> None:
    receipt = client.schedule(topic, delay=0)
    info = known(client.get(topic, receipt.id))
    assert info.state == "ready"


PAYLOADS = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    "text, auch auf Deutsch, 中文, 🚀",
    b"\x00\xff bytes",
    [],
    {},
    {"order": {"id": 42, "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2.5}]}, "vip": False, "note": None},
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: repr(payload)[:20])
def test_a_payload_is_any_json_value_or_bytes(client: Client, topic: str, payload: object) -> None:
    """None, bool, int of 64 bits, float, str, bytes, and lists and string-keyed dicts of these."""
    receipt = client.schedule(topic, payload, delay=60)
    info = known(client.get(topic, receipt.id))
    assert info.payload == payload
    assert type(info.payload) is type(payload)


def test_headers_travel_beside_the_payload(client: Client, topic: str) -> None:
    """Strings by name: for a trace id, a tenant and the like."""
    receipt = client.schedule(topic, 1, delay=60, headers={"trace": "4bf92f35"})
    info = known(client.get(topic, receipt.id))
    assert info.headers == {"trace": "4bf92f35"}


def test_a_waiting_job_can_be_looked_up(client: Client, topic: str) -> None:
    receipt = client.schedule(topic, {"id": 42}, delay=60, key="order-42")
    info = known(client.get(topic, "order-42"))
    assert (info.id, info.topic, info.state, info.due_ms) == ("order-42", topic, JobState.WAITING, receipt.due_ms)
    assert (info.payload, info.headers, info.attempt, info.promoted_ms) == ({"id": 42}, {}, 1, None)
    assert info.due == receipt.due


def test_a_missing_job_is_none(client: Client, topic: str) -> None:
    """Never scheduled, finished, or cancelled; also in a topic that was never used, which is not made by asking."""
    assert client.get(topic, "order-42") is None
    assert client.topics() == []


def test_many_jobs_are_scheduled_together_and_answered_in_order(client: Client, topic: str) -> None:
    """One round trip for 500; a receipt for each, also where they differ in kind."""
    specs = [JobSpec({"n": n}, delay=60 + n) for n in range(1_234)]
    specs[7] = JobSpec("seven", at=datetime.now(UTC) + timedelta(days=1), key="order-7", headers={"a": "b"})
    receipts = client.schedule_many(topic, specs)
    assert len(receipts) == len({receipt.id for receipt in receipts}) == 1_234
    assert all(receipt.created for receipt in receipts)
    assert receipts[7].id == "order-7"
    for place in (0, 7, 499, 500, 1_233):
        info = known(client.get(topic, receipts[place].id))
        assert info.payload == specs[place].payload


def test_many_jobs_may_come_from_a_generator(client: Client, topic: str) -> None:
    """They are packed while the server works; the whole list is never in memory."""
    assert len(client.schedule_many(topic, (JobSpec(n, delay=60) for n in range(600)))) == 600


def test_no_jobs_make_no_receipts(client: Client, topic: str) -> None:
    assert client.schedule_many(topic, []) == []


def test_topics_come_into_being_with_their_first_job(client: Client, topic: str) -> None:
    """`topics()` tells what each holds: waiting, ready and dead jobs, and when the first is due."""
    assert client.topics() == []
    client.schedule(topic, delay=0)
    first = client.schedule(topic, delay=60)
    client.schedule(topic, delay=120)
    client.schedule(f"{topic}-2", delay=60)
    [info, other] = client.topics()
    assert (info.name, info.shards, info.waiting, info.ready, info.dead) == (topic, 1, 2, 1, 0)
    assert (info.first_due_ms, info.first_due, info.overdue_ms) == (first.due_ms, first.due, 0)
    assert (other.name, other.waiting) == (f"{topic}-2", 1)


async def test_everything_is_there_on_asyncio_too(aclient: AsyncClient, topic: str) -> None:
    """`AsyncClient` has the same methods with the same answers."""
    receipt = await aclient.schedule(topic, {"id": 42}, delay=60, key="order-42")
    assert receipt.created
    receipts = await aclient.schedule_many(topic, [JobSpec(n, delay=60) for n in range(700)])
    assert len(receipts) == 700
    info = known(await aclient.get(topic, "order-42"))
    assert info.payload == {"id": 42}
    assert await aclient.reschedule(topic, "order-42", delay=90) == "rescheduled"
    assert await aclient.run_now(topic, "order-42") == "promoted"
    assert await aclient.cancel(topic, receipts[0].id) == "cancelled"
    [found] = await aclient.topics()
    assert (found.name, found.waiting, found.ready) == (topic, 699, 1)
