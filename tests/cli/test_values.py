"""What people write for moments, payloads and headers."""

from __future__ import annotations

from datetime import UTC, datetime

import msgpack
import pytest

from wheelq.base.printable import json_line
from wheelq.cli.output import plain
from wheelq.cli.values import parse_at, parse_due, parse_headers, parse_json, parse_range
from wheelq.errors import InvalidInput


def test_a_moment_has_a_time_zone() -> None:
    assert parse_at("2030-01-31T09:00:00Z") == datetime(2030, 1, 31, 9, tzinfo=UTC)
    assert parse_at("2030-01-31T10:00+01:00") == datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2030-01-31T09:00", "2030-01-31"])
def test_a_moment_without_one_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"no time zone.*append Z"):
        parse_at(text)


def test_a_payload_with_a_msgpack_timestamp_of_another_program_is_shown_in_seconds() -> None:
    assert json_line({"at": msgpack.Timestamp(5)}, plain) == '{"at": 5.0}'


def test_a_wrong_moment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not an ISO 8601 time"):
        parse_at("tomorrow")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("+30m", "2030-01-31T12:30"),
        ("2h", "2030-01-31T10:00"),
        ("-2h", "2030-01-31T10:00"),
        ("2030-02-01T00:00Z", "2030-02-01T00:00"),
        ("1896134400", "2030-02-01T00:00"),
    ],
)
def test_a_range_of_time_is_from_now_ago_or_exact(text: str, moment: str) -> None:
    noon = datetime(2030, 1, 31, 12, tzinfo=UTC)
    exact = datetime.fromisoformat(f"{moment}+00:00")
    assert parse_range(text, None, lambda: round(1000 * noon.timestamp())) == (exact, None)
    assert parse_range(None, text, lambda: round(1000 * noon.timestamp())) == (None, exact)


@pytest.mark.parametrize("text", ["99999999d", "+99999999d"])
def test_a_range_of_time_beyond_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^since: .* is beyond what a calendar has"):
        parse_range(text, None, lambda: 0)
    with pytest.raises(InvalidInput, match=r"^until: "):
        parse_range(None, "x", lambda: 0)


@pytest.mark.parametrize(
    ("at", "due"),
    [
        ("+30m", (1800.0, None)),
        (" +1h30m", (5400.0, None)),
        ("1896134400", (None, datetime(2030, 2, 1, tzinfo=UTC))),
        ("1896134400.5", (None, datetime(2030, 2, 1, 0, 0, 0, 500_000, tzinfo=UTC))),
        ("2030-02-01T01:00+01:00", (None, datetime(2030, 2, 1, tzinfo=UTC))),
    ],
)
def test_a_job_is_due_from_now_or_exactly(at: str, due: tuple[float | None, datetime | None]) -> None:
    assert parse_due(None, at) == due


@pytest.mark.parametrize("at", ["30m", "-30m", "1896134400000", "3600"])
def test_a_job_is_not_due_ago(at: str) -> None:
    with pytest.raises(InvalidInput, match="not an ISO 8601 time"):
        parse_due(None, at)


def test_text_that_is_not_json_is_shown_shortened() -> None:
    with pytest.raises(InvalidInput, match=r"'x{39}…' is not JSON"):
        parse_json("x" * 1_000_000)


def test_headers_are_names_and_values() -> None:
    assert parse_headers(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(InvalidInput, match="NAME=VALUE"):
        parse_headers(["a"])
