"""The zones of the simulator: the product's cron and the oracle's own reckoning agree on every occurrence."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from loadtest.simulation.operations.crons import EXPRESSIONS
from loadtest.simulation.world import EPOCH_S
from loadtest.simulation.zones import SHIFTS_S, occurrences, zone_info
from wheelq.model import cron


@pytest.mark.parametrize("zone", ["UTC", *SHIFTS_S])
@pytest.mark.parametrize("expression", [*EXPRESSIONS, "3,33 1 0,1 * * *", "20 0 1 * * *", "15 59 23 * * *"])
def test_an_expression_occurs_in_the_seconds_that_the_guide_tells(expression: str, zone: str) -> None:
    with patch.object(cron, "ZoneInfo", zone_info):
        rule, found, at_ms = cron.Cron(expression, cron.zone_of(zone)), list[int](), int(EPOCH_S) * 1000 - 1
        while (at_ms := rule.after(at_ms) or 0) and at_ms < (EPOCH_S + 4_000) * 1000:
            found.append(at_ms // 1000 - int(EPOCH_S))
    assert found == list(occurrences(expression, zone, 0, 4_000))


def test_clocks_change_after_a_minute() -> None:
    assert list(occurrences("10 30 0 * * *", "Sim/Spring", 0, 200)) == [70]
    assert list(occurrences("10 0 0 * * *", "Sim/Autumn", 0, 4_000)) == [10]
    assert list(occurrences("10 1 * * * *", "Sim/Autumn", 0, 4_000)) == [70, 3_670]
