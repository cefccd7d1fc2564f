"""When a failed job runs again, and what becomes of it in the end: pure functions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.errors import InvalidInput
from wheelq.model.dead import Reason
from wheelq.model.retry import Bury, Retry, RetryAfter
from wheelq.worker.outcome import (
    ERROR_CHARS,
    TRACEBACK_CHARS,
    Again,
    Buried,
    error_line,
    of_failure,
    traceback_text,
)

draws = st.floats(0, 1, exclude_max=True)
retries = st.builds(
    Retry,
    max_attempts=st.integers(1, 255),
    base=st.floats(0, 10),
    cap=st.floats(10, 1e6),
    factor=st.floats(1, 3),
    jitter=st.floats(0, 1),
)


@given(retries, st.integers(1, 300), draws)
def test_a_pause_lies_between_its_full_length_and_what_the_jitter_leaves_of_it(
    retry: Retry, attempt: int, draw: float
) -> None:
    pause_ms = retry.pause_ms(attempt, draw)
    if attempt >= retry.max_attempts:
        assert pause_ms is None
        return
    assert pause_ms is not None
    full_ms = 1000 * min(retry.cap, retry.base * retry.factor ** (attempt - 1))
    assert full_ms * (1 - retry.jitter) - 1 <= pause_ms <= full_ms + 1


@given(retries, st.integers(1, 253))
def test_pauses_grow_and_never_exceed_the_cap(retry: Retry, attempt: int) -> None:
    first, second = retry.pause_ms(attempt, 0), retry.pause_ms(attempt + 1, 0)
    if first is not None and second is not None:
        assert first <= second <= retry.cap * 1000 + 1


@given(draws)
def test_jobs_that_failed_together_do_not_come_back_together(draw: float) -> None:
    assert Retry().pause_ms(3, draw) == round(4_000 * (1 - draw / 2))


@pytest.mark.parametrize("attempt", [1, 2, 100, 254, 255, 256, 10_000])
@pytest.mark.parametrize("factor", [2.0, 1.5, 10.0])
def test_a_job_that_is_retried_for_ever_always_has_a_pause(factor: float, attempt: int) -> None:
    assert Retry(max_attempts=None, factor=factor).pause_ms(attempt, 0.5) is not None


def test_a_steep_backoff_ends_at_the_cap() -> None:
    assert Retry(max_attempts=255, factor=100.0, jitter=0).pause_ms(200, 0) == 300_000


def test_one_attempt_has_no_pause_behind_it() -> None:
    assert Retry(max_attempts=1).pause_ms(1, 0) is None


# Schedules


def test_delays_are_the_pauses_and_say_how_many_attempts_there_are() -> None:
    retry = Retry(delays=[1, 10, 0.5])
    assert [retry.pause_ms(attempt, 0.7) for attempt in (1, 2, 3, 4)] == [1_000, 10_000, 500, None]
    assert retry.max_attempts == 4


def test_the_last_delay_serves_all_further_attempts() -> None:
    assert Retry(delays=[1, 60], max_attempts=None).pause_ms(1_000, 0) == 60_000
    assert Retry(delays=[1, 60], max_attempts=4).pause_ms(3, 0) == 60_000
    assert Retry(delays=[1, 60], max_attempts=4).pause_ms(4, 0) is None


def test_fewer_attempts_than_delays_are_what_max_attempts_says() -> None:
    assert Retry(delays=[1, 2, 3], max_attempts=2).pause_ms(2, 0) is None


def test_a_function_of_attempt_and_error_can_be_the_schedule() -> None:
    retry = Retry(delays=lambda attempt, error: attempt * 2.5 if str(error) == "busy" else None)
    assert retry.pause_ms(2, 0.9, RuntimeError("busy")) == 5_000
    assert retry.pause_ms(2, 0.9, RuntimeError("broken")) is None
    assert retry.pause_ms(5, 0.9, RuntimeError("busy")) is None, "five attempts, if nothing else is said"


# Which errors


def test_an_error_that_is_not_to_be_retried_is_not() -> None:
    retry = Retry(on=(OSError, LookupError), not_on=KeyError)
    assert retry.pause_ms(1, 0, FileNotFoundError()) == 1_000
    assert retry.pause_ms(1, 0, IndexError()) == 1_000
    assert retry.pause_ms(1, 0, KeyError()) is None
    assert retry.pause_ms(1, 0, ValueError()) is None


@pytest.mark.parametrize(
    ("error", "retry", "reason", "told"),
    [
        (ValueError("bad order"), Retry(not_on=ValueError), Reason.FAILED, "ValueError: bad order"),
        (Bury("no such order"), Retry(max_attempts=None), Reason.GIVEN_UP, "no such order"),
    ],
    ids=["not to be retried", "Bury"],
)
def test_an_error_may_bury_although_attempts_are_left(
    error: Exception, retry: Retry, reason: Reason, told: str
) -> None:
    outcome = of_failure(error, 1, retry, 0)
    assert isinstance(outcome, Buried)
    assert (outcome.reason, outcome.error) == (reason, told)


# What a handler raises to decide it itself


def test_later_is_no_failure_unless_it_says_so() -> None:
    assert of_failure(RetryAfter(30), 5, Retry(), 0) == Again(30_000, None, counts=False)
    assert of_failure(RetryAfter(30, "busy"), 5, Retry(on=OSError), 0) == Again(30_000, "busy", counts=False)
    assert of_failure(RetryAfter(timedelta(minutes=1), "busy", counts=True), 1, Retry(on=OSError), 0) == Again(
        60_000, "busy"
    )
    assert isinstance(of_failure(RetryAfter(30, counts=True), 5, Retry(), 0), Buried)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "soon", None])
def test_later_must_be_a_time(delay: float) -> None:
    with pytest.raises(InvalidInput, match="delay"):
        RetryAfter(delay)


# What comes of a failure


def failure() -> BaseException:
    try:
        raise RuntimeError("it broke")
    except RuntimeError as error:
        return error


def test_with_attempts_left_it_runs_again() -> None:
    assert of_failure(failure(), 1, Retry(jitter=0), 0.0) == Again(1_000, "RuntimeError: it broke")


def test_without_it_is_buried_with_the_traceback() -> None:
    outcome = of_failure(failure(), 5, Retry(), 0.0)
    assert isinstance(outcome, Buried)
    assert outcome.reason is Reason.FAILED
    assert outcome.error == "RuntimeError: it broke"
    assert outcome.traceback.startswith("Traceback")
    assert outcome.traceback.endswith("RuntimeError: it broke\n")


def test_the_end_of_a_long_traceback_is_kept() -> None:
    error = RuntimeError("x" * 10_000 + " the end")
    assert len(traceback_text(error)) == TRACEBACK_CHARS
    assert traceback_text(error).endswith(" the end\n")
    assert len(error_line(error)) == ERROR_CHARS


def test_every_error_is_shown_on_one_line() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_line(ValueError("two\nlines")) == "ValueError: two lines"
    assert error_line(TimeoutError()) == "TimeoutError"
    assert "Silent" in error_line(Silent())


def test_an_error_that_is_no_text_is_made_one() -> None:
    """File names that are not UTF-8 come as lone surrogates, and so do the errors that name them."""
    error = FileNotFoundError("no file \udcff")
    assert traceback_text(error).encode()
    assert error_line(error).encode()


@pytest.mark.parametrize(
    ("retry", "attempts", "expected"),
    [
        (Retry(), None, 5),
        (Retry(), 2, 2),
        (Retry(), 7, 7),
        (Retry(base=9), 7, 7),
        (Retry(delays=lambda attempt, error: 1), 7, 7),
        (Retry(max_attempts=5), 7, 5),
        (Retry(max_attempts=5), 2, 2),
        (Retry(delays=[1, 2]), 7, 3),
        (Retry(max_attempts=None), 7, 7),
        (Retry(), 0, 1),
    ],
)
def test_a_jobs_own_attempts_win_over_the_default_and_are_capped_by_what_is_stated(
    retry: Retry, attempts: int | None, expected: int
) -> None:
    assert retry.for_job(attempts).max_attempts == expected
    assert retry.for_job(attempts).without_delays().max_attempts == expected


@pytest.mark.parametrize("attempts", [0, -1, -5])
def test_a_number_of_attempts_below_one_is_refused(attempts: int) -> None:
    """Also -1, which many programs take for "for ever"."""
    with pytest.raises(InvalidInput, match="max_attempts: must be at least 1, or None for ever"):
        Retry(max_attempts=attempts)
    assert (Retry().max_attempts, Retry(delays=[1, 2]).max_attempts) == (5, 3)
