"""What a worker's log says of runs: a line per job if that is asked for, and the first traceback of each kind."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from wheelq.base.clock import ManualClock, ServerClock
from wheelq.logs import JsonFormatter
from wheelq.model.dead import Reason
from wheelq.model.job import Job
from wheelq.model.retry import RetryAfter
from wheelq.model.topic import Topic
from wheelq.protocol.calls.worker import Entry
from wheelq.protocol.keys import Keys
from wheelq.worker.delivery.held import Delivery, ServedShard
from wheelq.worker.delivery.run_log import KINDS, TRACEBACK_AGAIN_MS, RunLog
from wheelq.worker.outcome import DONE, Again, Buried, Outcome


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ServerClock:
    server = ServerClock(clock)
    server.observe(server.instant(), 1_750_000_000_000_000)
    return server


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    loggers = [logging.getLogger("wheelq"), logging.getLogger("wheelq.jobs")]
    before = [one.level for one in loggers]
    loggers[0].setLevel(logging.INFO)
    yield
    for one, level in zip(loggers, before, strict=True):
        one.setLevel(level)


def delivery(due_ms: int, started_ms: float, attempt: int = 1) -> Delivery:
    entry = Entry("0-1", "order-42", due_ms, attempt, b"", None)
    return Delivery(ServedShard(Keys().shard("orders", 0), Topic()), entry, 0, started_ms=started_ms)


def job(topic: str = "orders", attempt: int = 1) -> Job:
    return Job("order-42", topic, None, 0, attempt, "0-1", 0.0)


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    """How many the worker logged. Garbage of another test may log here too."""
    return sum(record.exc_info is not None for record in caplog.records if record.name == "wheelq.worker")


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (DONE, "is done"),
        (Again(5), "failed"),
        (Again(5, counts=False), "runs again later"),
        (Buried(Reason.FAILED, "no"), "is buried"),
    ],
)
def test_a_line_per_job_has_id_topic_attempt_lateness_and_duration(
    server: ServerClock, caplog: pytest.LogCaptureFixture, outcome: Outcome, said: str
) -> None:
    log = RunLog(server, log_jobs=True)
    assert log.has_lines()
    now_ms = server.now_ms()
    log.decided(delivery(int(now_ms) - 15, int(now_ms) - 12, attempt=2), outcome)
    [record] = caplog.records
    assert record.getMessage() == f"job order-42 of orders {said}: attempt 2, 3 ms late, took 12 ms"
    line = json.loads(JsonFormatter().format(record))
    assert (line["lateness_ms"], line["duration_ms"]) == (3, 12)


def test_without_the_setting_lines_per_job_come_at_debug_only(server: ServerClock) -> None:
    log = RunLog(server, log_jobs=False)
    assert not log.has_lines()
    logging.getLogger("wheelq.jobs").setLevel(logging.DEBUG)
    assert log.has_lines()


def test_the_first_failure_of_each_kind_comes_with_its_traceback(
    server: ServerClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RunLog(server, log_jobs=False)
    for _ in range(3):
        for topic in ("orders", "mails"):
            for error in (ValueError("no"), KeyError("no")):
                log.failed(job(topic), Again(1_000, "no"), error)
    assert len(caplog.records) == 12
    assert tracebacks(caplog) == 4


def test_a_kind_of_failure_comes_with_its_traceback_again_after_ten_minutes(
    clock: ManualClock, server: ServerClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RunLog(server, log_jobs=False)
    for _ in range(21):
        log.failed(job(), Again(1_000, "no"), ValueError("no"))
        clock.advance(TRACEBACK_AGAIN_MS / 10_000)
    assert tracebacks(caplog) == 3


def test_a_burial_always_comes_with_its_traceback_and_what_is_asked_for_never(
    server: ServerClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = RunLog(server, log_jobs=False)
    for _ in range(2):
        log.failed(job(), Buried(Reason.FAILED, "no"), ValueError("no"))
    assert tracebacks(caplog) == 2
    log.failed(job(), Again(1_000, counts=False), RetryAfter(1))
    log.failed(job(), Again(1_000), RetryAfter(1, counts=True))
    assert tracebacks(caplog) == 2


def test_kinds_are_forgotten_when_there_are_too_many(server: ServerClock, caplog: pytest.LogCaptureFixture) -> None:
    log = RunLog(server, log_jobs=False)
    for n in range(KINDS + 1):
        log.failed(job(f"t{n}"), Again(1_000, "no"), ValueError("no"))
    log.failed(job("t0"), Again(1_000, "no"), ValueError("no"))
    assert tracebacks(caplog) == KINDS + 2
