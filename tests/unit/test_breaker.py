"""The circuit breaker: closed, open, half-open, by a clock that stands still until it is told to move."""

from __future__ import annotations

import pytest

from wheelq.base.clock import ManualClock
from wheelq.errors import ConfigurationError
from wheelq.producer.breaker import Breaker, BreakerState
from wheelq.settings import BreakerSettings

SETTINGS = BreakerSettings(failures=3, failing_ms=500, open_ms=1_000, open_max_ms=3_000)


class Place:
    """Something to ask, that fails as long as it is told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(SETTINGS, self.clock)

    def fail(self, times: int = 1, every: float = 0.25) -> None:
        for _ in range(times):
            assert self.breaker.refuse_for() == 0
            self.breaker.failed()
            self.clock.advance(every)

    def open(self) -> None:
        """Make it open, with all of its time before it."""
        self.fail(2)
        self.fail(1, every=0)
        assert self.breaker.state is BreakerState.OPEN


@pytest.fixture
def place() -> Place:
    return Place()


def test_calls_pass_while_it_is_closed(place: Place) -> None:
    assert place.breaker.state is BreakerState.CLOSED
    assert place.breaker.refuse_for() == 0


def test_it_opens_after_enough_failures_over_enough_time(place: Place) -> None:
    place.fail(2)
    assert place.breaker.state is BreakerState.CLOSED
    place.fail(1, every=0)
    assert place.breaker.state is BreakerState.OPEN


def test_a_hiccup_of_many_calls_at_once_does_not_open_it(place: Place) -> None:
    place.fail(100, every=0.001)
    assert place.breaker.state is BreakerState.CLOSED


def test_a_success_between_failures_keeps_it_closed(place: Place) -> None:
    for _ in range(20):
        place.fail(2)
        place.breaker.succeeded()
    assert place.breaker.state is BreakerState.CLOSED


def test_while_open_it_says_how_long_it_stays_so(place: Place) -> None:
    place.open()
    assert place.breaker.refuse_for() == pytest.approx(1.0)
    place.clock.advance(0.75)
    assert place.breaker.refuse_for() == pytest.approx(0.25)


def test_after_its_time_one_call_passes_and_the_others_wait_for_it(place: Place) -> None:
    place.open()
    place.clock.advance(1.0)
    assert place.breaker.state is BreakerState.HALF_OPEN
    assert place.breaker.refuse_for() == 0
    assert place.breaker.refuse_for() > 0


def test_a_success_closes_it(place: Place) -> None:
    place.open()
    place.clock.advance(1.0)
    assert place.breaker.refuse_for() == 0
    place.breaker.succeeded()
    assert place.breaker.state is BreakerState.CLOSED
    assert place.breaker.refuse_for() == 0


def test_a_failing_probe_opens_it_for_twice_as_long_up_to_a_limit(place: Place) -> None:
    place.open()
    for expected in (2.0, 3.0, 3.0):
        place.clock.advance(place.breaker.refuse_for())
        assert place.breaker.refuse_for() == 0
        place.breaker.failed()
        assert place.breaker.refuse_for() == pytest.approx(expected)


def test_after_it_was_closed_it_opens_for_the_first_time_again(place: Place) -> None:
    place.open()
    place.clock.advance(1.0)
    place.fail(1, every=2.0)
    place.fail(0)
    assert place.breaker.refuse_for() == 0
    place.breaker.succeeded()
    place.open()
    assert place.breaker.refuse_for() == pytest.approx(1.0)


def test_a_probe_that_never_comes_back_holds_the_others_up_for_a_while_only(place: Place) -> None:
    place.open()
    place.clock.advance(1.0)
    assert place.breaker.refuse_for() == 0  # cancelled: neither success nor failure is told
    waiting = place.breaker.refuse_for()
    assert waiting > 0
    place.clock.advance(waiting)
    assert place.breaker.refuse_for() == 0


def test_calls_that_were_under_way_when_it_opened_do_not_prolong_it(place: Place) -> None:
    place.open()
    for _ in range(10):
        place.breaker.failed()
    assert place.breaker.refuse_for() == pytest.approx(1.0)


def test_the_longest_time_open_is_at_least_the_first() -> None:
    with pytest.raises(ConfigurationError, match="open_ms must be at most open_max_ms"):
        BreakerSettings(open_ms=2_000, open_max_ms=1_000)
