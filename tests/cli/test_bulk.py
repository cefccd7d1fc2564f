"""cancel and reschedule with a range in place of an id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.commands import wheelq
from wheelq import Client, JobSpec, Retry
from wheelq.testing import WheelqTest

MOMENT = datetime(2031, 1, 1, tzinfo=UTC)


@pytest.fixture
def filled(url: str, topic: str) -> str:
    """A topic with a job for each of ten hours."""
    with Client.connect(url) as client:
        client.schedule_many(topic, [JobSpec(key=f"j{n}", at=MOMENT + timedelta(hours=n)) for n in range(10)])
    return topic


def due(url: str, topic: str) -> list[str]:
    jobs = wheelq("jobs", topic, "--json", url=url).json["jobs"]
    return [f"{job['id']} {job['at'][:16]}" for job in jobs]


def test_cancel_asks_and_says_how_many(url: str, filled: str) -> None:
    answer = wheelq(
        "cancel", filled, "--since", "2031-01-01T02:00Z", "--until", "2031-01-01T04:00Z", url=url, stdin="y\n"
    )
    assert answer.code == 0
    assert answer.out.endswith(f"2 jobs of {filled} cancelled\n")
    assert f"Cancel 2 jobs that wait in {filled} in this range?" in answer.err
    refused = wheelq("cancel", filled, "--since", "2031-01-01T04:00Z", url=url, stdin="n\n")
    assert refused.code == 1
    assert len(due(url, filled)) == 8


def test_the_question_tells_that_retries_are_counted_and_stay(url: str) -> None:
    with WheelqTest() as wheelq_test:
        wheelq_test.worker.handler("orders", retry=Retry(delays=[600]))(lambda job: 1 / 0)
        wheelq_test.client.schedule("orders", delay=1)
        wheelq_test.advance(2)
        wheelq_test.client.schedule("orders", delay=60)
        answer = wheelq("cancel", "orders", "--since", wheelq_test.now.isoformat(), url=wheelq_test.url, stdin="y\n")
        assert "Cancel up to 2 jobs that wait in orders in this range?" in answer.err
        assert answer.out.endswith("1 job of orders cancelled\n")


def test_running_jobs_are_cancelled_one_by_one(url: str, filled: str) -> None:
    answer = wheelq("cancel", filled, "--since", "2031-01-01T02:00Z", "--running", "--yes", url=url)
    assert (answer.code, answer.err) == (2, "--running: is for one job: a range has waiting jobs only\n")
    assert len(due(url, filled)) == 10


def test_reschedule_moves_a_range_without_asking(url: str, filled: str) -> None:
    answer = wheelq("reschedule", filled, "--until", "2031-01-01T01:00Z", "--by", "1d", "--yes", "--json", url=url).json
    assert (answer["jobs"], answer["is_done"]) == (1, True)
    assert due(url, filled)[-1] == "j0 2031-01-02T00:00"
    wheelq("reschedule", filled, "--since", "2031-01-02T00:00Z", "--by=-1d", "--yes", url=url)
    assert due(url, filled)[0] == "j0 2031-01-01T00:00"


@pytest.mark.parametrize("asked", [[], ["j1", "--since", "2h"], ["--since", "sometime", "--yes"]])
def test_an_id_or_a_range_is_needed(url: str, filled: str, asked: list[str]) -> None:
    assert wheelq("cancel", filled, *asked, url=url).code == 2
    assert wheelq("reschedule", filled, *asked, "--delay", "1h", url=url).code == 2
    assert len(due(url, filled)) == 10
