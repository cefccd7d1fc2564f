"""Which jobs are loaded, and when to load more: decided from answers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.protocol.calls.leader import Opened
from wheelq.scheduler.leader import Window
from wheelq.settings import SchedulerSettings

NOW = 1_750_000_000_000
SETTINGS = SchedulerSettings(window_ms=2_000, wheel_ids=100)


def opened(horizon: int, *, now: int = NOW, partial: bool = False) -> Opened:
    return Opened(now * 1000, horizon, partial, False, [])


@pytest.fixture
def window() -> Window:
    return Window(SETTINGS)


def test_at_first_everything_is_to_be_loaded_now(window: Window) -> None:
    assert window.loaded_to is None
    assert window.open_at <= 0
    assert not window.covers(NOW)


def test_a_window_is_moved_on_when_half_of_it_has_passed(window: Window) -> None:
    window.opened(opened(NOW + 2_000), held=5)
    assert (window.loaded_to, window.open_at) == (NOW + 2_000, NOW + 1_000)


def test_at_rest_it_sleeps_until_half_a_window_before_its_horizon(window: Window) -> None:
    window.opened(opened(NOW + 60_000), held=0)
    assert window.open_at == NOW + 59_000


def test_a_part_is_followed_by_the_next_at_once(window: Window) -> None:
    window.opened(opened(NOW + 10, partial=True), held=50)
    assert window.open_at == NOW


def test_in_front_of_a_herd_it_waits_until_the_herd_is_due(window: Window) -> None:
    """The horizon did not move: no call gets past it, and the herd will be swept."""
    window.opened(opened(NOW + 500, partial=True), held=50)
    window.opened(opened(NOW + 500, partial=True), held=50)
    assert window.open_at == NOW + 501


def test_a_full_wheel_waits_until_what_it_holds_is_due(window: Window) -> None:
    window.opened(opened(NOW + 300, partial=True), held=100)
    assert window.open_at == NOW + 301


def test_it_covers_what_will_not_be_read_again(window: Window) -> None:
    window.opened(opened(NOW + 2_000), held=5)
    assert window.covers(NOW + 2_000)
    assert not window.covers(NOW + 2_001)


def test_a_job_that_rings_from_within_the_window_is_taken(window: Window) -> None:
    window.opened(opened(NOW + 60_000), held=0)
    assert window.takes(NOW + 2_000, NOW)
    assert window.open_at == NOW + 59_000


def test_a_job_that_rings_from_beyond_it_brings_the_horizon_back(window: Window) -> None:
    """Else every job before the far horizon would send a hint and be held."""
    window.opened(opened(NOW + 60_000), held=0)
    assert not window.takes(NOW + 2_001, NOW)
    assert window.open_at == NOW


def test_loaded_jobs_can_be_forgotten(window: Window) -> None:
    window.opened(opened(NOW + 2_000), held=5)
    window.forget()
    assert (window.loaded_to, window.open_at) == (None, 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.booleans(), st.integers(0, 200), st.integers(-1, 60_000)), max_size=20)
)
def test_it_never_sleeps_past_its_horizon(answers: list[tuple[int, bool, int, int]]) -> None:
    """Beyond the horizon no job sends a hint: just behind it, at the latest, more must have been loaded."""
    window, now = Window(SETTINGS), NOW
    for passed, partial, held, ahead in answers:
        now += passed
        horizon = now + ahead
        window.opened(opened(horizon, now=now, partial=partial), held)
        assert window.open_at <= max(now, horizon + 1)
        assert window.loaded_to == horizon


def test_a_job_that_rings_while_the_window_is_opened_has_it_opened_once_more(window: Window) -> None:
    """It may have been scheduled behind the opening, and before the new horizon: the answer does not have it."""
    window.opening()
    assert not window.takes(NOW + 30_000, NOW)
    window.opened(opened(NOW + 60_000), held=0)
    assert window.open_at == NOW
    window.opening()
    window.opened(opened(NOW + 29_999, now=NOW + 1), held=0)
    assert window.open_at > NOW + 1


def test_a_job_forgotten_while_the_window_is_opened_reloads_the_whole_window(window: Window) -> None:
    """The answer has only what came since the last one, and that is gone."""
    window.opened(opened(NOW + 2_000), held=3)
    window.opening()
    window.forget()
    window.opened(opened(NOW + 3_000, now=NOW + 1_000), held=0)
    assert (window.loaded_to, window.open_at) == (None, 0.0)
