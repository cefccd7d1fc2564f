"""Callers over HTTP: what they do on right code, and the mistakes that they see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from loadtest.simulation import run
from loadtest.simulation.drawing import draw
from loadtest.simulation.lessees import Asker
from loadtest.simulation.plan import OWN_TOPICS, WEB, Plan, Step
from wheelq.server.access import ApiKey, Keyring
from wheelq.server.idempotency import Answers, Make
from wheelq.server.leases import Leases

pytestmark = pytest.mark.timeout(300)
JOB = {"topic": "asked", "partition_key": None}
TOPICS = (*draw(1).topics[:5], *(topic for topic in OWN_TOPICS if topic.trait in ("web", "callers")))


def step(number: int, kind: str, id: str = "", **more: Any) -> Step:
    args = {**JOB, "id": id or f"a{number}", "delay": 0.2, "payload": [0.1, 0, "error", f"a{number}"], **more}
    return Step(number, 5.0 + number / 2, f"asked-{kind}", WEB, args)


def jobs(count: int) -> list[dict[str, Any]]:
    return [
        {**JOB, "delay": 0.2, "id": f"m{n}", "payload": [0, 0, "error", f"m{n}"], "is_named": n % 2 == 0}
        for n in range(count)
    ]


STEPS = (
    step(1, "schedule"),
    step(2, "wait"),
    step(3, "keyed", again=(0, 0, 0.3, 2.0)),
    step(4, "schedule", delay=5.0),
    step(5, "many", jobs=jobs(4), again=(0, 0.01, 3.0)),
    Step(6, 8.1, "asked-reschedule", WEB, {**JOB, "id": "a4", "delay": 9.0}),
    Step(7, 8.3, "asked-get", WEB, {**JOB, "id": "a4"}),
    Step(8, 8.5, "asked-run-now", WEB, {**JOB, "id": "a4"}),
    step(9, "schedule", delay=9.0),
    Step(10, 11.0, "asked-cancel", WEB, {**JOB, "id": "a9"}),
    step(11, "key", pause=0.5, is_rotated=True),
    step(12, "key", pause=0.5, is_rotated=False),
    *(step(n, "wait") for n in range(20, 30)),
)


def result() -> run.Result:
    return run.run(Plan(4, TOPICS, False, STEPS, frozenset({"web", "callers"})))


def test_callers_are_answered_as_the_reference_says() -> None:
    found = result()
    assert found.problems == ()
    said = [line.split(" #")[1].split(": ")[-1] for line in found.story.lines if f" {WEB} " in line and " #" in line]
    assert said.count("401") == 2
    assert said.count("403") == 3
    assert {"created", "rescheduled", "waiting", "promoted", "cancelled"} <= set(said)
    assert sum("is done" in line for line in found.story.lines) == 11


async def answer_anew(self: Answers, caller: str, key: str, request: bytes, id: str, make: Make, jobs: int = 0) -> Any:
    return await make(id, {})


async def trust_what_was_read(self: Keyring, id: str, fits: Callable[[ApiKey], bool]) -> ApiKey:
    key = await find(self, id, fits)
    return kept.setdefault(id, key) if id else key


async def acknowledge_again(self: Leases, topic: str, group: str, handles: Sequence[str], *more: Any) -> Any:
    await ack(self, topic, group, handles, *more)
    return [True] * len(handles)


async def keep_nothing(self: Leases, topic: str, group: str, handles: Sequence[str], *more: Any) -> Any:
    return await ack(self, topic, group, handles)


find, ack, kept = Keyring.find, Leases.ack, dict[str, ApiKey]()


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "mistake", "problem"),
    [
        ((Answers, "once"), answer_anew, "once: "),
        ((Keyring, "find"), trust_what_was_read, "key: "),
        ((Leases, "ack"), acknowledge_again, "acknowledged: "),
        ((Leases, "ack"), keep_nothing, "result: "),
    ],
)
def test_callers_see_a_mistake(monkeypatch: pytest.MonkeyPatch, place: Any, mistake: Any, problem: str) -> None:
    monkeypatch.setattr(*place, mistake)
    monkeypatch.setattr(Asker, "acknowledges_again", 0.9)
    found = result()
    assert any(one.startswith(problem) for one in found.problems), found.problems
