"""When a failed job runs again, and what becomes of it in the end: pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.errors import InvalidInput
from wheelq.retry import ATTEMPTS_LIMIT, NO_RETRY, Retry
from wheelq.worker.outcome import ERROR_CHARS, Again, Buried, Reason, error_text, of_failure

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


@pytest.mark.parametrize("attempt", range(1, ATTEMPTS_LIMIT))
@pytest.mark.parametrize("factor", [2.0, 1.5, 10.0])
def test_every_attempt_that_can_be_counted_has_a_pause(factor: float, attempt: int) -> None:
    assert Retry(max_attempts=255, factor=factor).pause_ms(attempt, 0.5) is not None


def test_a_steep_backoff_ends_at_the_cap() -> None:
    assert Retry(max_attempts=255, factor=100.0, jitter=0).pause_ms(200, 0) == 300_000


def test_no_retry_means_one_attempt() -> None:
    assert NO_RETRY.pause_ms(1, 0) is None


@pytest.mark.parametrize("field", ["base", "cap", "factor"])
def test_not_a_number_is_refused(field: str) -> None:
    with pytest.raises(InvalidInput):
        Retry(**{field: float("nan")})  # type: ignore[arg-type]


# What comes of a failure


def failure() -> BaseException:
    try:
        raise RuntimeError("it broke")
    except RuntimeError as error:
        return error


def test_with_attempts_left_it_runs_again() -> None:
    assert of_failure(failure(), 1, Retry(jitter=0), 0.0) == Again(1_000)


def test_without_it_is_buried_with_the_traceback() -> None:
    outcome = of_failure(failure(), 5, Retry(), 0.0)
    assert isinstance(outcome, Buried)
    assert outcome.reason is Reason.FAILED
    assert outcome.error.startswith("Traceback")
    assert outcome.error.endswith("RuntimeError: it broke\n")


def test_of_a_long_traceback_the_end_is_kept() -> None:
    text = error_text(RuntimeError("x" * 10_000 + " the end"))
    assert len(text) == ERROR_CHARS
    assert text.endswith(" the end\n")


def test_an_error_that_is_no_text_is_made_one() -> None:
    """File names that are not UTF-8 come as lone surrogates, and so do the errors that name them."""
    assert error_text(FileNotFoundError("no file \udcff")).encode()
