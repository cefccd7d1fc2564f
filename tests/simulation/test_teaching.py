"""The guide says how to teach the simulator an operation, a fault and a promise. Its examples work as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.simulation import faults, operations, oracle, run
from loadtest.simulation.drawing import draw
from loadtest.simulation.plan import Plan, Step

PAGE = Path(__file__).parents[2] / "wheelq" / "guide" / "contributing.md"
MODULES = {"operation": operations.jobs, "fault": faults, "promise": oracle.times}


@pytest.fixture
def taught() -> Iterator[None]:
    """The simulator, with what the page teaches it; afterwards as it was."""
    registries = (operations.OPERATIONS, faults.FAULTS, oracle.PROMISES)
    before = [dict(one) for one in registries]
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        kind = re.search(r"@(\w+)\(", block)[1]  # type: ignore[index]
        exec(compile(block, f"{PAGE}: {kind}", "exec"), dict(vars(MODULES[kind])))
    yield
    for registry, known in zip(registries, before, strict=True):
        registry.clear()
        registry.update(known)


@pytest.mark.timeout(300)
def test_the_examples_of_the_page_are_drawn_done_and_judged(taught: None) -> None:
    plan = draw(5)
    assert "expire" in {step.kind for step in plan.steps}
    expire = [step for step in plan.steps if step.kind == "expire"][:3]
    slow_disk = Step(1_000, 9.0, "slow-disk", "", {"seconds": 2.0, "salt": 1})
    result = run.run(Plan(5, plan.topics[:5], False, tuple(sorted((*expire, slow_disk), key=lambda step: step.at))))
    assert result.problems == ()
    assert [line for line in result.story.lines if "slow-disk is over" in line]
    assert [line for line in result.story.lines if re.search(rf"#{expire[0].number} .*: created", line)]


@pytest.mark.timeout(300)
def test_a_promise_that_the_page_teaches_is_heard(taught: None) -> None:
    args = {
        "topic": "plain",
        "id": "p1",
        "delay": 3.0,
        "partition_key": None,
        "payload": [0, 0, "error"],
        "expires": -1.0,
    }
    plan = Plan(1, draw(1).topics[:5], False, (Step(0, 5.0, "schedule", "producer-0", args),))
    (problem,) = run.run(plan).problems
    assert problem.startswith("expired: plain/p1 began")
