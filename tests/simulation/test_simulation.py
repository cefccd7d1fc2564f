"""The simulator: sixty seeds are clean, a run with nothing odd is as the specification says, each plant is found, and a
seed is replayed byte for byte."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from loadtest.simulation import reached, trials
from loadtest.simulation.__main__ import _in_turns
from loadtest.simulation.drawing import draw
from loadtest.simulation.plan import Plan
from loadtest.simulation.plants import PLANTS, plant
from loadtest.simulation.run import Result
from loadtest.simulation.shrink import short_story, shrink
from loadtest.simulation.story import Story
from loadtest.simulation.trials import Apart, Trial, try_seed

FIRST_SEEDS = range(1, 61, 5)


def _simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest.simulate", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_sixty_seeds_are_clean(first: int, shared: Path, tmp_path: Path) -> None:
    """Five at a time, so that processes which run tests share them. The last to end checks what all have reached."""
    told = tmp_path / "reached.json"
    done = _simulate("--seeds", "5", "--from", str(first), "--keep-going", "--jobs", "1", "--reached", str(told))
    told.replace(shared / f"reached-{first}.json")
    assert done.returncode == 0, done.stdout[-3_000:]
    parts = [shared / f"reached-{one}.json" for one in FIRST_SEEDS]
    if all(part.exists() for part in parts):
        together = sum((Counter(json.loads(part.read_text())) for part in parts), Counter[str]())
        assert reached.missing(together, 60) == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_without_faults_and_odd_operations_is_what_was_asked_for() -> None:
    """Every job is created, promoted once at its due time, and run once."""
    trial = try_seed(7, faults=False, operations=False)
    assert not trial.problems
    plan = draw(7, faults=False, operations=False)
    first_attempts = [line for line in trial.lines if re.search(r"#\d+ .*: created$", line)]
    assert len(first_attempts) == len(plan.steps)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_seed_is_replayed_byte_for_byte_with_any_hash_seed() -> None:
    first, second = _simulate("--seed", "9"), _simulate("--seed", "9", hash_seed="77")
    assert first.returncode == 0, first.stdout
    assert first.stdout == second.stdout
    assert "seed 9:" in first.stdout


@pytest.mark.parametrize("name", [name for name, one in PLANTS.items() if one.needs])
def test_a_plant_is_looked_for_in_seeds_that_can_show_it(name: str) -> None:
    """The plan of a seed changes when operations or faults are added: then the plant needs other seeds."""
    one = PLANTS[name]
    steps = [step for seed in range(one.first, one.first + one.within) for step in draw(seed).steps]
    assert one.needs in {step.kind for step in steps}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name, one in PLANTS.items() if not one.by_scenario])
def test_a_planted_defect_is_found_within_its_number_of_seeds(name: str) -> None:
    wanted = PLANTS[name]
    done = _simulate("--plant", name, "--from", str(wanted.first), "--seeds", str(wanted.within), "--keep-going")
    assert done.returncode == 1, done.stderr
    assert re.search(rf"^seed \d+: .*({wanted.found})", done.stdout, re.MULTILINE), done.stdout[-3_000:]


def test_a_run_that_breaks_off_fails_its_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(plan: Plan, without: frozenset[int]) -> Result:
        if plan.seed == 2:
            raise KeyError("a defect of the simulator")
        return Result(plan.seed, (), Story(lambda: 0.0), 60.0, 1, 1)

    monkeypatch.setattr(trials, "run", broken)
    first, second, third = sorted(trials.try_seeds([1, 2, 3], jobs=2), key=lambda trial: trial.seed)
    assert first.problems == third.problems == ()
    assert "a defect of the simulator" in second.problems[0]


def test_a_plant_that_does_not_fit_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "no-hints"
    old = dict(PLANTS[name].lua)
    monkeypatch.setitem(PLANTS, name, type(PLANTS[name])("", "", {"no such line": ""}))  # type: ignore[arg-type]
    assert old
    with pytest.raises(AssertionError, match="no longer fits"):
        plant(name)


@pytest.mark.parametrize("name", PLANTS)
def test_each_plant_fits_the_code(name: str) -> None:
    Apart(lambda: plant(name)).result()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_failing_seed_is_shrunk_to_a_story_that_fits_on_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "PLANTED", ["retry-lost"])

    def attempt(without: frozenset[int]) -> Trial:
        return try_seed(1, faults=False, without=without)

    trial, steps = shrink(draw(1, faults=False), attempt, most_tries=40)
    assert trial.problems
    assert len(steps) <= 5
    assert len(short_story(trial, steps)) <= 50


def test_each_broken_promise_is_shown_before_a_second_problem_of_any() -> None:
    problems = ["lost: a", "lost: b", "lost: c", "late: d", "late: e", "left: f"]
    assert _in_turns(problems) == ["lost: a", "late: d", "left: f", "lost: b", "late: e", "lost: c"]
