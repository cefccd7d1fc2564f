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


@pytest.mark.parametrize(
    ("answers", "held", "open_at"),
    [
        pytest.param([opened(NOW + 2_000)], 5, NOW + 1_000, id="moved on when half of it has passed"),
        pytest.param([opened(NOW + 60_000)], 0, NOW + 59_000, id="at rest, half a window before its horizon"),
        pytest.param([opened(NOW + 10, partial=True)], 50, NOW, id="a part is followed by the next at once"),
        pytest.param([opened(NOW + 500, partial=True)] * 2, 50, NOW + 501, id="a herd, which will be swept, when due"),
        pytest.param([opened(NOW + 300, partial=True)], 100, NOW + 301, id="a full wheel, when what it holds is due"),
    ],
)
def test_a_window_is_opened_again_in_time(window: Window, answers: list[Opened], held: int, open_at: int) -> None:
    """Where the horizon did not move, no call gets past the herd in front of it."""
    for answer in answers:
        window.opened(answer, held)
    assert (window.loaded_to, window.open_at) == (answers[-1].horizon_ms, open_at)


def test_a_window_stays_shorter_than_a_shard_rests() -> None:
    window = Window(SchedulerSettings(window_ms=500, idle_ms=4_000))
    for _ in range(5):
        window.opened(opened(NOW + 4_000), held=0)
    assert window.length_ms == 1_000
    assert window.open_at == NOW + 3_750


def test_a_long_window_is_moved_on_when_half_of_it_has_passed_and_a_shard_at_rest_sleeps_as_long_as_before(
    window: Window,
) -> None:
    for _ in range(3):
        window.opened(opened(NOW + window.length_ms), held=1)
    window.opened(opened(NOW + 16_000), held=1)
    assert window.open_at == NOW + 8_000
    window.opened(opened(NOW + 80_000), held=0)
    assert window.open_at == NOW + 79_000


def test_it_covers_what_will_not_be_read_again(window: Window) -> None:
    window.opened(opened(NOW + 2_000), held=5)
    assert window.covers(NOW + 2_000)
    assert not window.covers(NOW + 2_001)


def test_a_job_that_rings_from_within_the_window_is_taken(window: Window) -> None:
    window.opened(opened(NOW + 60_000), held=0)
    assert window.takes(NOW + 4_000, NOW, held=0)
    assert window.open_at == NOW + 59_000


@pytest.mark.parametrize(("held", "ahead_ms"), [(0, 4_001), (33, 2_001)])
def test_a_job_that_rings_from_beyond_it_brings_the_horizon_back(window: Window, held: int, ahead_ms: int) -> None:
    """Else every job before the far horizon would send a hint and be held; when many do, the window is short again."""
    window.opened(opened(NOW + 60_000), held=0)
    assert not window.takes(NOW + ahead_ms, NOW, held)
    assert window.open_at == NOW


def test_a_window_with_few_jobs_becomes_longer_up_to_eight_times_and_one_with_many_is_short_at_once(
    window: Window,
) -> None:
    lengths = []
    held_and_partial = [
        (5, False),
        (16, False),
        (0, False),
        (1, False),
        (17, False),
        (33, False),
        (2, False),
        (2, True),
    ]
    for held, partial in held_and_partial:
        window.opened(opened(NOW + 2_000, partial=partial), held)
        lengths.append(window.length_ms)
    assert lengths == [4_000, 8_000, 16_000, 16_000, 16_000, 2_000, 4_000, 2_000]


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
    assert not window.takes(NOW + 30_000, NOW, held=0)
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
