"""What the bench makes of its rounds: medians, shares of the floor, the search for the highest rate, and plots."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest.bench import plots
from loadtest.bench.figures import Figure, Outcome, Target, as_table, distribution
from loadtest.bench.highest import search
from loadtest.bench.machine import machine, versions


def test_a_figure_of_rounds_is_their_median_and_tells_the_least_and_the_most() -> None:
    told = Figure.of("start", [3.0, 1.0, 2.0], "ms", Target(at_most=2)).as_dict()
    assert (told["value"], told["least"], told["most"], told["met"]) == (2.0, 1.0, 3.0, True)
    assert told["rounds"] == (3.0, 1.0, 2.0)


def test_beside_a_floor_the_round_with_the_median_share_counts() -> None:
    told = Figure.beside("bulk", [(50, 100), (90, 100), (12, 20)], "jobs/s", Target(share=0.6)).as_dict()
    assert (told["value"], told["floor"], told["met"]) == (12, 20, True)
    assert (told["least_of_floor"], told["most_of_floor"]) == (0.5, 0.9)


def test_the_table_shows_the_rounds() -> None:
    table = as_table([Outcome("steady", [Figure.of("start", [3.0, 1.0, 2.0], "ms")], 3, {"lost": 0})])
    assert "2.0 ms  1.0 – 3.0" in table


@pytest.mark.parametrize("limit", [100, 900, 20_000, 31_000])
@pytest.mark.parametrize("first", [100, 18_000])
def test_the_search_finds_the_highest_rate_that_holds_to_a_twentieth(limit: int, first: int) -> None:
    tried: list[int] = []

    def holds(per_s: int) -> bool:
        tried.append(per_s)
        return per_s <= limit

    assert limit / 1.06 <= search(holds, first) <= limit
    assert len(tried) == len(set(tried)), "no rate is tried twice"


def test_a_search_in_which_nothing_holds_ends_at_zero() -> None:
    assert search(lambda _: False, 10_000) == 0


def test_a_distribution_has_a_point_for_each_thousandth() -> None:
    points = distribution([1.0, 2.0, 3.0, 4.0])
    assert len(points) == 1_001
    assert (points[0]["ms"], points[500]["ms"], points[1_000]["ms"]) == (1.0, 2.0, 4.0)


def test_the_machine_and_the_versions_are_told() -> None:
    assert machine()["processors"] >= 1
    assert machine()["memory_mb"] > 0
    assert {"python", "redis"} <= versions().keys()


def cost(per_s: float) -> dict[str, float]:
    return {"per_s": per_s, **dict.fromkeys(plots.OF_COST, 10_000 / per_s)}


def size(waiting: float, topics: float) -> dict[str, float]:
    return {"waiting": waiting, "topics": topics, **dict.fromkeys(plots.OF_GROWTH, waiting / 1_000)}


def report(**points: list[dict[str, float]]) -> dict[str, object]:
    scenarios = [{"scenario": name, "points": found} for name, found in points.items()]
    return {"runs": [{"on": "server", "server": "Valkey 9, AOF off", "scenarios": scenarios}]}


def test_plots_are_written_as_svg_with_their_names_as_text(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    whole = report(
        steady=distribution([0.5, 1.0, 4.0]),
        rate=[cost(10), cost(1_300)],
        growth=[size(1_000, 1), size(20_000, 1), size(10_000, 1), size(10_000, 100)],
    )
    written = plots.write(whole, tmp_path / "plots")
    assert [path.name for path in written] == ["lateness.svg", "cost.svg", "growth.svg"]
    for path, word in zip(written, ("steady", "one bare call", "scheduler's memory"), strict=True):
        text = " ".join(ElementTree.parse(path).getroot().itertext())
        assert word in text


def test_a_run_without_the_scenario_leaves_the_plot_out(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert [path.name for path in plots.write(report(rate=[cost(10)]), tmp_path)] == ["cost.svg"]
    assert plots.write(report(steady=[]), tmp_path) == []
