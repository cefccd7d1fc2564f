"""Defects that were suspected and not reproduced by hand, each as a scenario of a few steps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from loadtest.simulation import run
from loadtest.simulation.drawing import draw
from loadtest.simulation.faults import Stage, _kill
from loadtest.simulation.fleet import Fleet, Handling
from loadtest.simulation.operations import operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Plan, Step
from wheelq import Job
from wheelq.errors import WheelqError

pytestmark = pytest.mark.timeout(300)
JOB = {"partition_key": None, "payload": [0, 0, "error"]}
TOPICS = draw(1).topics[:5]
BEFORE = datetime(2020, 1, 1, tzinfo=UTC)


def one_of(first: float, *others: float) -> list[Any]:
    """Values of a parameter, of which the usual run takes one; the others run with the long tests."""
    return [first, *(pytest.param(other, marks=pytest.mark.long) for other in others)]


def schedule(number: int, at: float, topic: str, delay: float, **more: Any) -> Step:
    args = {"topic": topic, "id": f"{topic}-{number}", "delay": delay, **JOB, **more}
    return Step(number, at, "schedule", "producer-1", args)


def fail_over(at: float, salt: int) -> Step:
    return Step(1_000, at, "fail-over", "", {"seconds": 1.0, "salt": salt})


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> list[Fleet]:
    """The fleets of the runs of a test."""
    made: list[Fleet] = []

    class Seen(Fleet):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(run, "Fleet", Seen)
    return made


@pytest.mark.long
@pytest.mark.parametrize("salt", one_of(*range(3)))
def test_jobs_are_in_time_after_a_fail_over_that_loses_the_last_horizon_of_a_resting_leader(salt: int) -> None:
    jobs = [schedule(n, 12.0 + n, "quiet", 26.0 + 2 * n) for n in range(6)]
    steps = (schedule(100, 9.8, "quiet", 0.0), fail_over(10.0, salt), *jobs)
    assert run.run(Plan(salt, TOPICS, True, steps)).problems == ()


@pytest.mark.long
@pytest.mark.parametrize("salt", one_of(*range(3)))
def test_jobs_run_though_a_fail_over_loses_the_registration_of_topics_that_clients_trust(salt: int) -> None:
    names = [topic.name for topic in TOPICS]
    jobs = [schedule(n, 8.0 + n / 4, names[n % len(names)], 1.0) for n in range(20)]
    assert run.run(Plan(salt, TOPICS, True, (fail_over(0.4, salt), *jobs))).problems == ()


@pytest.mark.long
@pytest.mark.parametrize("salt", one_of(*range(6)))
def test_jobs_run_though_a_fail_over_loses_the_number_of_shards_that_a_client_trusts(salt: int) -> None:
    jobs = [schedule(n, 8.0 + n / 4, "plain", 1.0) for n in range(20)]
    reshard = Step(1_001, 6.2, "set-shards", "producer-1", {"topic": "plain", "shards": 5})
    first = schedule(100, 5.0, "plain", 0.1)
    assert run.run(Plan(salt, TOPICS, True, (first, fail_over(6.0, salt), reshard, *jobs))).problems == ()


def test_jobs_beside_one_that_kills_its_worker_are_not_buried(
    monkeypatch: pytest.MonkeyPatch, fleets: list[Fleet]
) -> None:
    handle = Handling.handle
    deaths = []

    async def handle_or_die(self: Handling, job: Job) -> None:
        if job.id != "plain-500":
            await handle(self, job)
            return
        fleet = self._fleet
        part = next(part for part in fleet.workers if part.process is self._process)
        fleet.ledger.trouble("kill-worker", part.name, 10.0)

        def die() -> None:
            _kill(Stage(fleet.world, fleet, fleet.ledger), part)
            deaths.append(part.name)
            fleet.world.after(1.0, lambda: fleet.replace(part))

        fleet.world.after(0.01, die)
        await asyncio.sleep(1_000)

    monkeypatch.setattr(Handling, "handle", handle_or_die)
    slow = [schedule(n, 5.0 + n * 0.5, "plain", 0.0, payload=[3.0, 0, "error"]) for n in range(80)]
    killer = schedule(500, 6.0, "plain", 0.0)
    result = run.run(Plan(1, TOPICS, False, tuple(sorted((*slow, killer), key=lambda step: step.at))))
    assert [problem for problem in result.problems if problem.startswith(("lost", "left"))] == []
    assert len(deaths) >= 3
    assert set(fleets[0].ledger.dead) == {("plain", "plain-500")}


@pytest.mark.parametrize(
    "ahead", [0.0, *(pytest.param(ahead, marks=pytest.mark.long) for ahead in (-0.002, 0.002, 0.01))]
)
def test_a_group_made_during_a_change_of_shards_is_on_every_shard(
    ahead: float, fleets: list[Fleet], known: dict[str, Any]
) -> None:
    @operation("join", weight=0, draw=lambda draft: None, trait="never")
    async def join_late(actor: Actor, step: Step) -> None:
        await actor.client.make_group("quiet", "late-comers")

    change = Step(1, 10.0, "set-shards", "producer-1", {"topic": "quiet", "shards": 4})
    join = Step(2, 10.0 + ahead, "join", "producer-2", {})
    jobs = [schedule(n, 13.0 + n / 10, "quiet", 0.0) for n in range(3, 30)]
    run.run(Plan(3, TOPICS, False, (*sorted((change, join), key=lambda step: step.at), *jobs)))
    streams = {key: value for key, value in fleets[0].primary.store.values.items() if b"{quiet:" in key}
    ready = {key: set(value.groups) for key, value in streams.items() if key.endswith(b":ready")}
    assert len(ready) == 4
    assert all(b"late-comers" in groups for groups in ready.values()), ready


@pytest.mark.long
def test_the_kept_state_of_a_job_does_not_grow_with_its_reruns(fleets: list[Fleet], known: dict[str, Any]) -> None:
    sizes: list[int] = []

    @operation("rerun", weight=0, draw=lambda draft: None, trait="never")
    async def rerun(actor: Actor, step: Step) -> None:
        await actor.client.configure("plain", keep_done_ms=30_000, retention_ms=60_000)
        await actor.client.schedule("plain", [0, 1, "error"], delay=0, key="again")
        for _ in range(30):
            await asyncio.sleep(1.2)
            try:
                await actor.client.rerun("plain", group="default", since=BEFORE)
            except WheelqError:
                continue
            done = [value for key, value in actor.ledger.server.store.values.items() if key.endswith(b":done")]
            sizes.append(sum(len(name) + len(kept) for one in done for name, kept in one.items()))

    assert run.run(Plan(4, TOPICS, False, (Step(1, 5.0, "rerun", "producer-1", {}),))).problems == ()
    assert len(sizes) > 10
    assert max(sizes[5:]) <= max(sizes[:5]) + 8
