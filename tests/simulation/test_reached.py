"""What runs reach is counted without a change of the product, and what must be reached exists."""

from __future__ import annotations

import pytest
from lupa import lua51

from loadtest.simulation import reached, run
from loadtest.simulation.drawing import draw
from loadtest.simulation.plan import Plan, Step
from loadtest.simulation.trials import try_seed
from wheelq.protocol.scripts import script, script_names
from wheelq.worker.delivery.settling import Settler


def test_every_name_of_the_list_is_still_something_that_can_be_reached() -> None:
    """If a line of a script has changed, change its line in `must_reach.txt` too."""
    assert sorted(reached.demanded().keys() - reached.everything()) == []
    assert set(reached.demanded().values()) == {60, 200}


def test_what_has_not_been_reached_is_missing_once_there_were_seeds_enough() -> None:
    nothing = reached.Reached()
    assert reached.missing(nothing, 59) == []
    by_sixty = reached.missing(nothing, 60)
    assert "script promote" in by_sixty
    assert set(by_sixty) < set(reached.missing(nothing, 200))
    assert "script promote" not in reached.missing(reached.Reached(["script promote"]), 60)


@pytest.mark.parametrize("name", script_names())
def test_a_script_with_counters_compiles_and_has_the_same_lines(name: str) -> None:
    forms = [one for one in reached.scripts().values() if one.name == name]
    assert len(forms) == {"schedule": 3, "conclude": 5}.get(name, 2)
    for one in forms:
        text = reached.probed(one)
        lua51.LuaRuntime(encoding=None).compile(text)
        assert len(text.split(b"\n")) == len(one.text.split("\n"))


def test_comments_have_no_branches() -> None:
    comments = [line for line in script("promote").text.splitlines() if line.startswith("--")]
    assert any(" then " in line for line in comments)
    lines = reached.probed(script("promote")).decode().splitlines()
    assert [line for line in lines if line.startswith("--")] == comments


@pytest.mark.timeout(300)
def test_a_run_tells_its_scripts_branches_messages_and_functions() -> None:
    args = {"topic": "plain", "delay": 0.5, "partition_key": None, "payload": [0, 1, "error"], "id": "p1"}
    kill = Step(1, 8.0, "kill-node", "", {"seconds": 3.0, "salt": 1})
    before = Settler.hand_back
    found = run.run(Plan(1, draw(1).topics[:5], False, (Step(0, 6.0, "schedule", "producer-1", args), kill))).reached
    assert {"script promote", "script retry"} <= found
    assert any(name.startswith("lua promote: ") for name in found)
    assert "log: job %s of %s failed, again in %.1f s: %r" in found
    assert found & set(reached.FUNCTIONS)
    assert "script replay" not in found
    assert Settler.hand_back is before


@pytest.mark.timeout(300)
def test_a_trial_tells_what_it_reached() -> None:
    assert "script schedule" in try_seed(7, faults=False, operations=False).reached
