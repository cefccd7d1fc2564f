"""Limits of load tests: how they are written, and what breaks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from wheelq.errors import InvalidInput
from wheelq.testing.limits import LoadLimit


class Row(NamedTuple):
    """What a limit reads of a row of Locust's table."""

    method: str
    name: str
    num_requests: int
    num_failures: int
    avg_response_time: float
    max_response_time: float
    get_response_time_percentile: Callable[[float], float]


ORDERS = Row("lateness", "orders", 200, 1, 8.0, 90.0, lambda share: 40.0 if share > 0.9 else 4.0)
MAILS = Row("lateness", "mails", 100, 0, 2.0, 3.0, lambda share: 2.0)
NOTHING = Row("schedule", "orders", 0, 0, 0.0, 0.0, lambda share: 0.0)
ROWS = [ORDERS, MAILS, NOTHING]


@pytest.mark.parametrize(
    "text",
    ["lateness p99 40", "lateness p50 4", "lateness mean 8", "lateness/mails max 3", "lateness failures 0.5"],
)
def test_a_limit_holds_up_to_its_figure(text: str) -> None:
    assert LoadLimit.parse(text).broken_by(ROWS) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lateness p99.9 39", "lateness p99.9 at most 39: 40 for orders"),
        ("lateness max 2.5", "lateness max at most 2.5: 90 for orders"),
        ("lateness/mails mean 1", "lateness/mails mean at most 1: 2 for mails"),
        ("lateness failures 0.4", "lateness failures at most 0.4: 0.5 for orders"),
        ("schedule p50 10", "schedule p50 at most 10: nothing was measured"),
        ("lateness/images p50 10", "lateness/images p50 at most 10: nothing was measured"),
    ],
)
def test_a_figure_above_it_or_missing_breaks_it(text: str, said: str) -> None:
    assert said in LoadLimit.parse(text).broken_by(ROWS)


@pytest.mark.parametrize("text", ["", "lateness", "lateness p99", "lateness p99 fast", "lateness p999 1", "p99 50"])
def test_a_wrong_limit_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="lateness p99 50"):
        LoadLimit.parse(text)
