"""A percentile is right within an eighth, however many values were counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.base.metrics import Histogram, Lateness

values = st.lists(st.integers(0, 10**12) | st.integers(0, 200), min_size=1, max_size=200)


def counted(values: list[int]) -> Histogram:
    histogram = Histogram()
    histogram.add_all(values)
    return histogram


@given(values, st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_percentile_is_that_of_the_sorted_list_or_up_to_an_eighth_more(values: list[int], share: float) -> None:
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert exact <= counted(values).percentile(share) <= exact * 1.125


@given(values)
def test_below_16_milliseconds_it_is_exact(values: list[int]) -> None:
    small = [value % 16 for value in values]
    assert counted(small).percentile(0.5) == sorted(small)[math.ceil(len(small) / 2) - 1]


@given(values)
def test_the_highest_is_exact(values: list[int]) -> None:
    histogram = counted(values)
    assert histogram.percentile(1.0) == histogram.max_ms == max(values)
    assert histogram.count == len(values)


@given(values)
def test_rows_hold_every_value_below_their_upper_edge(values: list[int]) -> None:
    rows = list(counted(values).rows())
    assert sum(count for _, count in rows) == len(values)
    edges = [edge for edge, _ in rows]
    assert edges == sorted(set(edges))
    below = 0
    for edge, count in rows:
        below += count
        assert sum(value <= edge for value in values) == below


@pytest.mark.parametrize("value", [0, 1, 15, 16, 17, 31, 32, 1_000, 2**40 - 1, 2**40])
def test_one_value_is_every_percentile(value: int) -> None:
    histogram = counted([value])
    assert histogram.percentile(0.0) == histogram.percentile(0.5) == histogram.percentile(1.0) == value


def test_an_empty_one_says_nothing() -> None:
    histogram = Histogram()
    assert (histogram.count, histogram.max_ms, histogram.percentile(0.99), list(histogram.rows())) == (0, 0, 0, [])


def test_fractions_count_as_the_millisecond_they_lie_in_and_negative_ones_as_0() -> None:
    histogram = Histogram()
    histogram.add_all((-5.5, 0.9, 1.9))
    assert list(histogram.rows()) == [(0, 2), (1, 1)]


# Lateness

counts = st.lists(st.integers(0, 1_000), max_size=20).map(tuple)


@given(counts, counts)
def test_two_latenesses_make_one(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    both = Lateness(5, first) + Lateness(7, second)
    assert (both.total_ms, both.jobs) == (12, sum(first) + sum(second))
    assert len(both.counts) == max(len(first), len(second))


def test_a_percentile_of_lateness_is_a_bound_that_so_many_keep() -> None:
    """90 jobs less than 1 ms late, 10 between 4 and 8 ms."""
    found = Lateness(50, (90, 0, 0, 10))
    assert [found.percentile(share) for share in (0.5, 0.9, 0.91, 1.0)] == [1, 1, 8, 8]
    assert Lateness().percentile(0.99) == 0
