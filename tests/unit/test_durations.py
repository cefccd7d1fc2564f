"""`Durations`: counted many at once, and none is lost or counted twice."""

from __future__ import annotations

from wheelq.base.metrics import HANDLER_BOUNDS, MOST_KEPT, Durations, Histogram, Measured


def test_a_histogram_includes_everything_measured_until_then() -> None:
    durations = Durations("g")
    for late_ms in (0.4, 3.0, 3.9, 2_000.0):
        durations.started("orders", late_ms)
    assert (durations.lateness.count, durations.lateness.max_ms) == (4, 2_000)
    durations.started("orders", 1.0)
    assert durations.lateness.count == 5


def test_durations_are_sent_once_by_topic_and_kind() -> None:
    durations = Durations("g")
    durations.started("orders", 8.0)
    durations.ended("orders", 0.005)
    durations.ended("mail", 700.0)
    sent = durations.observations.to_send()
    assert sent is not None
    number, series = sent
    assert set(series) == {
        (Measured.START, "orders", "g"),
        (Measured.HANDLER, "orders", "g"),
        (Measured.HANDLER, "mail", "g"),
    }
    assert series[Measured.HANDLER, "orders", "g"][:2] == [5_000, 1], "the bound itself counts below it"
    assert series[Measured.HANDLER, "mail", "g"] == [700_000_000, *[0] * len(HANDLER_BOUNDS), 1]
    durations.observations.sent(number)
    assert durations.observations.to_send() is None


def test_no_more_than_a_thousand_are_kept_until_somebody_asks() -> None:
    durations = Durations("g")
    for _ in range(MOST_KEPT):
        durations.ended("orders", 0.001)
    assert not any(durations._seconds.values())


def test_many_values_make_the_same_histogram_as_one_by_one() -> None:
    values = [-1.0, 0.0, 0.9, 15.2, 16.9, 17.0, 1_000.0, 1_000.0, 65_536.5]
    one_by_one, together = Histogram(), Histogram()
    for value in values:
        one_by_one.add_all([value])
    together.add_all(values)
    assert (together.rows(), together.count, together.max_ms) == (
        one_by_one.rows(),
        one_by_one.count,
        one_by_one.max_ms,
    )
