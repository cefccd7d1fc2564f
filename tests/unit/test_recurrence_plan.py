"""What a scheduler makes of a recurring job: the next occurrence ahead of its time, and what was missed."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelq.model.cron import Cron
from wheelq.model.recurring import MOST_MISSED, Missed, Plan, Rule, plan

MINUTE = 60_000


def every_minute(missed: Missed = "coalesce", grace_ms: int | None = None, jitter_ms: int = 0) -> Rule:
    return Rule(every_ms=MINUTE, missed=missed, grace_ms=grace_ms, jitter_ms=jitter_ms)


def test_the_next_one_is_made_ahead_of_its_time() -> None:
    assert plan(every_minute(), "a", 2 * MINUTE, MINUTE + 50_000) == Plan((2 * MINUTE,), 3 * MINUTE, is_late=False)


def test_missed_ones_coalesce_to_the_last() -> None:
    assert plan(every_minute(), "a", 2 * MINUTE, 10 * MINUTE + 5) == Plan((10 * MINUTE,), 11 * MINUTE, is_late=True)


def test_missed_occurrences_are_skipped_except_one_that_is_hardly_late() -> None:
    rule = Rule(every_ms=10 * MINUTE, missed="skip")
    assert plan(rule, "a", 10 * MINUTE, 30 * MINUTE + 60_000) == Plan((30 * MINUTE,), 40 * MINUTE, is_late=True)
    assert plan(rule, "a", 10 * MINUTE, 30 * MINUTE + 60_001) == Plan((), 40 * MINUTE, is_late=True)


def test_all_missed_occurrences_run_in_order() -> None:
    expected = Plan(tuple(n * MINUTE for n in range(2, 11)), 11 * MINUTE, is_late=True)
    assert plan(every_minute("all"), "a", 2 * MINUTE, 10 * MINUTE + 5) == expected


def test_the_last_hundred_of_many_missed_occurrences_run() -> None:
    made = plan(every_minute("all"), "a", 2 * MINUTE, 10_000 * MINUTE).made
    assert len(made) == MOST_MISSED
    assert (made[0], made[-1]) == (9_901 * MINUTE, 10_000 * MINUTE)


def test_an_occurrence_later_than_the_grace_does_not_run() -> None:
    now = 10 * MINUTE + 30_000
    assert plan(every_minute("all", 2 * MINUTE), "a", MINUTE, now).made == (9 * MINUTE, 10 * MINUTE)
    assert plan(every_minute("coalesce", 30_000), "a", MINUTE, now).made == (10 * MINUTE,)
    assert plan(every_minute("coalesce", 29_999), "a", MINUTE, now) == Plan((), 11 * MINUTE, is_late=True)


def test_after_the_last_one_nothing_follows() -> None:
    rule = Rule(every_ms=MINUTE, end_ms=3 * MINUTE)
    assert plan(rule, "a", 3 * MINUTE, 3 * MINUTE - 1).following is None
    assert plan(rule, "a", 2 * MINUTE, 99 * MINUTE) == Plan((3 * MINUTE,), None, is_late=True)


def test_a_year_of_minutes_is_made_up_for_in_no_time() -> None:
    rule = Rule(cron="* * * * *", tz="Europe/Berlin")
    year = 525_600 * MINUTE
    assert plan(rule, "a", MINUTE, year).made == (year,)


def test_days_of_seconds_are_made_up_for_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler does this on its event loop."""
    steps = 0
    after = Cron.after

    def counted(cron: Cron, at: int) -> int | None:
        nonlocal steps
        steps += 1
        return after(cron, at)

    monkeypatch.setattr(Cron, "after", counted)
    now = 3 * 86_400_000
    made = plan(Rule(cron="* * * * * *", missed="all"), "a", 1_000, now).made
    assert made == tuple(range(now - 99_000, now + 1, 1_000))
    assert steps < 3_000


@settings(deadline=None)
@given(
    missed=st.sampled_from(get_args(Missed)),
    grace_ms=st.one_of(st.none(), st.integers(0, 10 * MINUTE)),
    jitter_ms=st.integers(0, MINUTE),
    next_minute=st.integers(1, 40),
    now_ms=st.integers(0, 40 * MINUTE),
)
def test_a_plan_agrees_with_going_through_all_occurrences(
    missed: Missed, grace_ms: int | None, jitter_ms: int, next_minute: int, now_ms: int
) -> None:
    rule = every_minute(missed, grace_ms, jitter_ms)
    made, following, is_late = plan(rule, "a", next_minute * MINUTE, now_ms)
    late = [n * MINUTE for n in range(next_minute, 50) if rule.due_ms("a", n * MINUTE) <= now_ms]
    assert is_late == bool(late)
    if not late:
        assert (made, following) == ((next_minute * MINUTE,), (next_minute + 1) * MINUTE)
        return
    assert following == late[-1] + MINUTE
    grace = grace_ms if grace_ms is not None else MINUTE if missed == "skip" else now_ms
    in_time = [at for at in late if now_ms - rule.due_ms("a", at) <= grace]
    if missed == "all":
        assert list(made) == in_time
    else:
        assert list(made) == [at for at in in_time if at == late[-1]]
