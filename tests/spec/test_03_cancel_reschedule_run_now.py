"""3. Waiting jobs: cancel one, give it another time, run it now."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.spec.conftest import known
from wheelq import CancelOutcome, Client, RescheduleOutcome, RunNowOutcome
from wheelq.errors import InvalidInput


def test_a_waiting_job_can_be_cancelled(client: Client, topic: str) -> None:
    """It will never run, and its id is free."""
    client.schedule(topic, delay=60, key="a")
    assert client.cancel(topic, "a") is CancelOutcome.CANCELLED
    assert client.get(topic, "a") is None


def test_a_job_that_is_ready_can_no_longer_be_cancelled_or_rescheduled(client: Client, topic: str) -> None:
    """It is with the workers: queued, running, or waiting for a retry."""
    client.schedule(topic, delay=0, key="a")
    assert client.cancel(topic, "a") is CancelOutcome.RUNNING
    assert client.reschedule(topic, "a", delay=60) is RescheduleOutcome.RUNNING
    assert client.get(topic, "a") is not None


def test_an_outcome_is_neither_true_nor_false(client: Client, topic: str) -> None:
    """Every outcome would be true, `NOT_FOUND` too: `if client.cancel(…)` raises, and says what to write."""
    for outcome in (client.cancel(topic, "a"), client.reschedule(topic, "a", delay=1), client.run_now(topic, "a")):
        with pytest.raises(TypeError, match=rf"compare it, as in `outcome is {type(outcome).__name__}\.[A-Z]+`"):
            assert outcome


@pytest.mark.parametrize("was_there", [False, True], ids=["never scheduled", "cancelled"])
def test_a_job_that_is_not_there_is_not_found(client: Client, topic: str, was_there: bool) -> None:
    if was_there:
        client.schedule(topic, delay=60, key="a")
        client.cancel(topic, "a")
    assert client.cancel(topic, "a") is CancelOutcome.NOT_FOUND
    assert client.reschedule(topic, "a", delay=60) is RescheduleOutcome.NOT_FOUND
    assert client.run_now(topic, "a") is RunNowOutcome.NOT_FOUND


def test_a_waiting_job_can_be_given_a_new_delay(client: Client, topic: str) -> None:
    """It counts from now, not from the old due time; the payload stays."""
    client.schedule(topic, "payload", delay=60, key="a")
    before = time.time_ns() // 1_000_000
    assert client.reschedule(topic, "a", delay=600) is RescheduleOutcome.RESCHEDULED
    info = known(client.get(topic, "a"))
    assert info.payload == "payload"
    assert before + 600_000 <= info.due_ms <= time.time_ns() // 1_000_000 + 600_001  # rounded up


def test_a_waiting_job_can_be_given_a_new_moment(client: Client, topic: str) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    client.schedule(topic, delay=60, key="a")
    client.reschedule(topic, "a", at=at)
    info = known(client.get(topic, "a"))
    assert info.due == at


def test_a_waiting_job_can_be_run_now(client: Client, topic: str) -> None:
    """It becomes ready without a scheduler, with the present as its due time."""
    client.schedule(topic, "payload", delay=3600, key="a")
    before = time.time_ns() // 1_000_000
    assert client.run_now(topic, "a") is RunNowOutcome.PROMOTED
    info = known(client.get(topic, "a"))
    assert (info.state, info.payload) == ("ready", "payload")
    assert before <= info.due_ms <= time.time_ns() // 1_000_000
    assert info.promoted_ms is not None
    assert info.promoted_ms >= info.due_ms


def test_a_job_that_is_ready_is_not_run_twice(client: Client, topic: str) -> None:
    client.schedule(topic, delay=3600, key="a")
    client.run_now(topic, "a")
    assert client.run_now(topic, "a") is RunNowOutcome.RUNNING
    [info] = client.topics()
    assert info.ready == 1


def test_outcomes_are_also_plain_words() -> None:
    """They compare equal to their words, so they go into JSON and logs as they are."""
    assert [*CancelOutcome] == ["cancelled", "cancelling", "running", "not_found"]
    assert [*RescheduleOutcome] == ["rescheduled", "running", "changed", "not_found"]
    assert [*RunNowOutcome] == ["promoted", "paused", "held_back", "running", "not_found"]


@pytest.mark.parametrize("wrong", ["", "abc", True, 1.5])
def test_a_wrong_expected_due_time_moves_nothing(client: Client, topic: str, wrong: object) -> None:
    """An empty text moved the job whatever its due time was."""
    due_ms = client.schedule(topic, key="a", delay=60).due_ms
    with pytest.raises(InvalidInput, match="if_due_ms: must be whole milliseconds"):
        client.reschedule(topic, "a", delay=90, if_due_ms=wrong)  # type: ignore[arg-type]
    assert known(client.get(topic, "a")).due_ms == due_ms
