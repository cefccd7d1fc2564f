"""Formats of log lines; what a worker puts into them is in tests/spec/test_16_hooks.py."""

from __future__ import annotations

import contextvars
import json
import logging
import sys

import pytest

from wheelq import logs
from wheelq.logs import JobFilter, JsonFormatter
from wheelq.model.job import Job


def job(id: str, attempt: int = 1) -> Job:
    return Job(id, "orders", None, 0, attempt, "0-1", 0.0, {}, False)


def formatted(record: logging.LogRecord, formatter: logging.Formatter, *jobs: Job) -> str:
    def run() -> str:
        logs.running(jobs)
        with logs.serving("g", "w"):
            assert JobFilter().filter(record)
        return formatter.format(record)

    return contextvars.copy_context().run(run)


def record(message: str = "hello", **more: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "levelname": "INFO", "name": "shop", **more})


@pytest.mark.parametrize(
    ("jobs", "end"),
    [
        ((), ""),
        ((job("k", 2),), " [orders k #2]"),
        ((job("a"), job("b", 3)), " [orders 2 jobs #3]"),
    ],
)
def test_plain_lines_end_with_the_job(jobs: tuple[Job, ...], end: str) -> None:
    assert formatted(record(), logging.Formatter("%(message)s%(job)s"), *jobs) == f"hello{end}"


def test_a_batch_names_all_its_jobs_in_json() -> None:
    line = json.loads(formatted(record(), JsonFormatter(), job("a"), job("b", 3)))
    assert (line["job_id"], line["attempt"], line["group"], line["worker"]) == (["a", "b"], 3, "g", "w")


def test_a_json_line_is_one_line_with_the_traceback_in_it_and_what_is_no_json_as_text() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        found = record("failed\nagain", exc_info=sys.exc_info(), order=object)
    text = JsonFormatter().format(found)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "failed\nagain"
    assert line["error"].endswith("ValueError: no")
    assert line["order"] == "<class 'object'>"
