"""Formats of log lines; what a worker puts into them is in tests/spec/test_16_hooks.py."""

from __future__ import annotations

import contextvars
import json
import logging
import sys

import httpx
import pytest

from wheelq import logs
from wheelq.logs import JobFilter, JsonFormatter, TextFormatter
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


def test_the_log_names_no_address_of_a_receiver_with_its_query(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.NOTSET)
    logs.set_up(logging.INFO, "text")
    with httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(204))) as client:
        client.post("http://shop.example/paid?token=secret")
    logging.getLogger("shop").info("paid")
    assert "paid" in (told := capsys.readouterr().err)
    assert "secret" not in told


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


FORGED = "no\n2031-01-01 00:00:00,000 INFO    shop: all is paid \x1b[2J\x9b31m\x85\u2028\u202e\r"


def test_only_the_first_line_of_a_record_begins_at_the_margin_and_nothing_steers_the_terminal() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        found = record(FORGED, exc_info=sys.exc_info())
    text = formatted(found, TextFormatter(), job("k\x9b", 2))
    first, *others = text.splitlines()
    assert first.endswith("INFO    shop: no")
    assert others[0] == (
        r"    2031-01-01 00:00:00,000 INFO    shop: all is paid \x1b[2J\x9b31m\x85\u2028\u202e\r [orders k\x9b #2]"
    )
    assert others[1] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in others)


def test_a_json_line_is_one_line_for_every_reader() -> None:
    text = formatted(record(FORGED), JsonFormatter(), job("k\x85"))
    assert (len(text.splitlines()), text.isprintable()) == (1, True)
    assert json.loads(text)["message"] == FORGED
