"""Torture (see `loadtest.torture`): a minute of it must end clean, and every planted defect must be found.

`python -m pytest -m long tests/faults/test_torture.py` runs it, `-m soak` ten minutes on each kind of setup.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtest.torture.faults import FAULTS
from loadtest.torture.planted import BROKEN_SCRIPTS, PLANTS
from loadtest.torture.report import Report, as_table
from loadtest.torture.run import Options, torture
from loadtest.torture.scene import plan
from tests.every import for_every
from tests.faults.test_upgrade import FORMER, former
from wheelq.protocol.scripts import script, script_names

__all__ = ["former"]


@dataclass(frozen=True, slots=True)
class Found:
    """What must be found of a planted defect, and what brings it to light."""

    wrong: str
    faults: tuple[str, ...] = ()
    longest_delay: float = 1.5
    rate: float = 300.0


MUST_BE_FOUND = {
    "no-removal": Found("doubled"),
    # The wheel is wrong about a job only when it was moved to behind the horizon, two seconds ahead: else it was told.
    # That happens to one job in a hundred.
    "no-due-check": Found("early", longest_delay=4.0, rate=900.0),
    # A leader sweeps when it takes the lease, and when a promotion has failed.
    "early-sweep": Found("early", ("kill-scheduler",), longest_delay=4.0),
    "removed-first": Found("lost"),
    "ack-first": Found("lost", ("kill-worker",)),
}


@pytest.fixture
def only_valkey(request: pytest.FixtureRequest) -> None:
    """One kind of server is enough: what differs between servers is tested elsewhere."""
    named = request.config.getoption("--servers")
    if named and "valkey" not in named.split(","):
        pytest.skip("torture runs on valkey only")


def _told(report: Report, directory: Path) -> str:
    """What to print when a run was not clean."""
    outputs = "\n".join(f"--- {path.name}\n{path.read_text()[-2_000:]}" for path in sorted(directory.glob("*.out")))
    return f"{as_table(report)}\n{outputs}"


@pytest.mark.long
@pytest.mark.usefixtures("only_valkey")
def test_a_minute_of_torture_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """Twenty faults a minute of every kind, overlapping, on one server."""
    report = torture("single", Options(seed=3, duration=55, least_jobs=3_001, faults_per_minute=20, rate=150), tmp_path)
    assert report.is_clean, _told(report, tmp_path)
    assert report.verdict.promised > 3_000
    assert len(report.strikes) >= 12


@pytest.mark.long
@pytest.mark.usefixtures("only_valkey", "former")
def test_a_fleet_of_two_releases_is_upgraded_and_rolled_back_under_torture(tmp_path: Path) -> None:
    report = torture("single", Options(seed=7, duration=40, rate=100, former=FORMER), tmp_path)
    assert report.is_clean, _told(report, tmp_path)
    assert {"upgrade", "roll-back"} <= {strike.kind for strike in report.strikes}


@pytest.mark.long
@pytest.mark.usefixtures("only_valkey")
@pytest.mark.parametrize("on", ["sentinel", "cluster"])
def test_half_a_minute_of_torture_with_failovers_loses_nothing_that_was_confirmed(tmp_path: Path, on: str) -> None:
    """Each of these at least once, until all servers have recovered."""
    only = ("fail-over", "switch-over", "freeze-replica", "kill-scheduler", "swallow")
    more = ("move-slots",) if on == "cluster" else ()
    report = torture(on, Options(seed=5, duration=18, faults_per_minute=26, rate=150, only=only + more), tmp_path)
    assert report.is_clean, _told(report, tmp_path)
    assert report.verdict.promised > 150
    assert {strike.kind for strike in report.strikes} == {*only, *more}


@pytest.mark.long
@pytest.mark.usefixtures("only_valkey")
@pytest.mark.parametrize("planted", PLANTS)
def test_a_planted_defect_is_found(tmp_path: Path, planted: str) -> None:
    """Some seconds with a broken script, or a worker that acknowledges first: the verdict names what went wrong.

    A busy machine does so little in four seconds that a defect may not come to light: then longer runs follow.
    """
    wrong = MUST_BE_FOUND[planted].wrong
    for duration in (4.0, 8.0, 16.0, 32.0):
        directory = tmp_path / str(duration)
        directory.mkdir()
        report = torture("single", _planted(planted, duration), directory)
        if wrong in report.verdict.wrong:
            break
    assert wrong in report.verdict.wrong, _told(report, directory)
    assert not report.is_clean


def _planted(planted: str, duration: float) -> Options:
    expected = MUST_BE_FOUND[planted]
    return Options(
        duration=duration,
        faults_per_minute=120 if expected.faults else 1,
        rate=expected.rate,
        shards=(1,),
        producers=1,
        schedulers=1,
        workers=2,
        patience=0.5,
        longest_delay=expected.longest_delay,
        only=expected.faults,
        planted=planted,
    )


@for_every(BROKEN_SCRIPTS)
def test_every_planted_defect_still_fits_a_script(planted: str) -> None:
    """A script was rewritten? Then its defect has to be planted again."""
    for old in BROKEN_SCRIPTS[planted]:
        assert any(old in script(name).text for name in script_names()), old


@pytest.mark.long
@pytest.mark.usefixtures("only_valkey")
def test_without_a_planted_defect_the_same_few_seconds_are_clean(tmp_path: Path) -> None:
    """So that it is the defect that is found."""
    options = Options(duration=4.5, faults_per_minute=40, rate=300, longest_delay=1.5, only=("kill-worker",))
    report = torture("single", options, tmp_path)
    assert report.is_clean, _told(report, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("only_valkey")
@pytest.mark.parametrize("on", ["single", "sentinel", "cluster"])
def test_ten_minutes_of_torture_lose_nothing_and_double_nothing(tmp_path: Path, on: str) -> None:
    """More than a hundred faults."""
    report = torture(on, Options(seed=1, duration=600, faults_per_minute=12), tmp_path)
    assert report.is_clean, _told(report, tmp_path)
    assert len(report.strikes) >= 100


def test_the_same_seed_makes_the_same_plan() -> None:
    """And another seed another one."""
    assert plan(1, 60, 20, list(FAULTS)) == plan(1, 60, 20, list(FAULTS)) != plan(2, 60, 20, list(FAULTS))


def test_a_plan_has_every_kind_as_often_as_the_others() -> None:
    """To within one, whatever the seed."""
    planned = [one.kind for one in plan(7, 600, 20, list(FAULTS))]
    counts = [planned.count(kind) for kind in FAULTS]
    assert len(planned) > 150
    assert max(counts) - min(counts) <= 1
