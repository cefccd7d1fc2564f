"""What people write for spans and moments of time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from wheelq.cli.values import parse_at, parse_delay, parse_headers, parse_json, span
from wheelq.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("90s", 90),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1d", 86_400),
        ("1d2h3m4s5ms", 93_784.005),
        ("1.5h", 5400),
        ("90", 90),
        ("0.25", 0.25),
        (" 30m ", 1800),
        ("0", 0),
        ("-5", -5),  # the client refuses it, and says why
    ],
)
def test_a_delay_is_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_delay(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "30 m", "m30", "30x", "1h-5m", "inf", "nan", "1e3"])
def test_anything_else_is_no_delay(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a delay: write 30m"):
        parse_delay(text)


def test_a_moment_has_a_time_zone() -> None:
    assert parse_at("2030-01-31T09:00:00Z") == datetime(2030, 1, 31, 9, tzinfo=UTC)
    assert parse_at("2030-01-31T10:00+01:00") == datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2030-01-31T09:00", "2030-01-31"])
def test_a_moment_without_one_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"no time zone.*append Z"):
        parse_at(text)


def test_what_is_no_moment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not an ISO 8601 time"):
        parse_at("tomorrow")


def test_what_is_no_json_is_shown_shortened() -> None:
    with pytest.raises(InvalidInput, match=r"'x{39}…' is not JSON"):
        parse_json("x" * 1_000_000)


def test_headers_are_names_and_values() -> None:
    assert parse_headers(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(InvalidInput, match="NAME=VALUE"):
        parse_headers(["a"])


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (-3, "0ms"), (999, "999ms"), (1_000, "1s"), (5_399_999, "1h 30m"), (90_061_000, "1d 1h")],
)
def test_a_span_is_shown_in_two_units(ms: float, text: str) -> None:
    assert span(ms) == text
