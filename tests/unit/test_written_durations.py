"""Durations, as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.errors import InvalidInput
from wheelq.model.durations import exact_span, parse_duration, span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("90s", 90),
        ("1h30m", 5400),
        ("1h 30min", 5400),
        ("30 m", 1800),
        ("500ms", 0.5),
        ("1d", 86_400),
        ("1d2h3m4s5ms", 93_784.005),
        ("1.5h", 5400),
        ("90", 90),
        ("0.25", 0.25),
        (" 30m ", 1800),
        ("0", 0),
        ("+1h", 3600),
        ("-1h 30m", -5400),
        ("-5", -5),  # where it cannot be negative, the client refuses it, and says why
    ],
)
def test_a_duration_is_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text, "delay") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "soon", "m30", "30x", "1h-5m", "1 week", "inf", "nan", "1e3", "--5", "9" * 80, "9" * 80 + "q"]
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^delay: .{,62} is not a duration: write 30m"):
        parse_duration(text, "delay")


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (-3, "0ms"), (999, "999ms"), (1_000, "1s"), (5_399_999, "1h 30m"), (90_061_000, "1d 1h")],
)
def test_a_duration_is_shown_in_two_units(ms: float, text: str) -> None:
    assert span(ms) == text


@given(st.integers(0, 300 * 366 * 86_400_000))
def test_an_exact_duration_is_read_as_what_it_was(ms: int) -> None:
    assert round(1000 * parse_duration(exact_span(ms), "keep_done_ms")) == ms


def test_an_exact_duration_has_the_units_that_people_use() -> None:
    assert [exact_span(ms) for ms in (7_776_000_000, 5_400_500, 250, 0)] == ["90d", "1h 30m 500ms", "250ms", "0"]


@given(st.integers(0, 366 * 86_400_000))
def test_what_is_shown_can_be_written(ms: int) -> None:
    assert span(round(1000 * parse_duration(span(ms), "delay"))) == span(ms)
