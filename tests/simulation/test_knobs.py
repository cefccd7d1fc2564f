"""The knobs of a seed: where they stand, what they turn, and that they are turned back."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import wheelq
from loadtest.simulation import knobs, run
from loadtest.simulation.drawing import draw
from loadtest.simulation.knobs import KNOBS
from loadtest.simulation.plan import Plan, Step
from wheelq.protocol.calls import producer
from wheelq.protocol.scripts import script, script_names
from wheelq.settings import Settings

ALL = {name: min(knob.values) for name, knob in KNOBS.items()}


def _places() -> dict[str, str]:
    return {place: name for name, knob in KNOBS.items() for place in knob.places}


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_lowers_a_limit_that_the_product_has(name: str) -> None:
    knob = KNOBS[name]
    old, new = knob.lua
    limits = [getattr(import_module(module), limit) for module, _, limit in (one.partition(":") for one in knob.places)]
    if knob.setting:
        part, _, setting = knob.setting.partition(".")
        limits.append(getattr(getattr(Settings(), part), setting))
    assert all(value < limit for value in knob.values for limit in limits)
    assert limits or any(old in script(one).text for one in script_names())
    assert "{}" in new or not old


def test_a_knob_names_every_module_that_imports_its_limit() -> None:
    root, places = Path(wheelq.__file__).parent, _places()
    for path in root.rglob("*.py"):
        module = ".".join(("wheelq", *path.relative_to(root).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            for one in node.names if isinstance(node, ast.ImportFrom) else ():
                knob = places.get(f"{getattr(node, 'module', '')}:{one.name}")
                is_simulated = not module.startswith(("wheelq.admin", "wheelq.cli", "wheelq.sql"))
                assert knob is None or not is_simulated or places.get(f"{module}:{one.name}") == knob, (module, knob)


def test_limits_are_turned_back() -> None:
    before = producer.BATCH
    with knobs.turned({"schedule-batch": 3}):
        assert producer.BATCH == 3
    assert before == producer.BATCH


def test_all_knobs_make_settings_that_are_valid() -> None:
    turned = knobs.settings(Settings(), ALL)
    assert turned.scheduler.window_ids == ALL["window"]
    assert knobs.of_topics(ALL) == {"dead_max": 1}
    assert knobs.settings(Settings(), {}) == Settings()


def test_seeds_turn_different_knobs_and_some_turn_none() -> None:
    drawn = [knobs.drawn(seed) for seed in range(1, 61)]
    assert {name for one in drawn for name in one} == set(KNOBS)
    assert 12 <= sum(not one for one in drawn) <= 28
    assert draw(3).knobs == knobs.drawn(3)
    assert not draw(3, operations=False).knobs


@pytest.mark.timeout(300)
def test_jobs_run_with_the_least_of_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts are compiled with their limits too, under the digests that the product knows."""
    compiled: list[bytes] = []

    class Seen(run.Fleet):
        def end(self) -> None:
            compiled.extend(new for _, new in self.primary.scripts.changes)
            super().end()

    monkeypatch.setattr(run, "Fleet", Seen)
    args = {"topic": "plain", "delay": 1.0, "partition_key": None, "payload": [0, 1, "error"]}
    steps = tuple(Step(n, 6.0, "schedule", "producer-1", {**args, "id": f"p{n}"}) for n in range(20))
    result = run.run(Plan(1, draw(1).topics[:5], False, steps, knobs=ALL))
    assert result.problems == ()
    assert result.jobs == 40
    assert b"local JOBS = %d" % ALL["tidied-jobs"] in compiled
