"""Workers die while jobs run and fail: every job is acked or buried in every group, its attempts counted right."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.torture.fleet import RETRY, Fleet
from tests.waiting import PATIENCE, Stalls, eventually
from wheelq import Client, JobSpec
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

TOPIC = "orders"
READY = Keys().shard(TOPIC, 0).ready


class Scene:
    """A server, a scheduler, and workers of some groups that are all there before the first job."""

    def __init__(self, server: EmbeddedServer, directory: Path, hold_ms: int = 0) -> None:
        self.fleet = Fleet(server.url, directory, lease_ms=1_500, hold_ms=hold_ms)
        self.client = Client.connect(server.url)
        self.transport = Transport(Address(server.url))
        self.groups: dict[str, str] = {}

    def begin(self, *groups: str) -> list[str]:
        """Start one worker for each word; their names."""
        self.client.schedule(TOPIC, delay=3600, key="first")
        self.client.cancel(TOPIC, "first")
        self.fleet.start("scheduler")
        for group in groups:
            self.groups[self.fleet.start("worker", TOPIC, group)] = group
        count = command("XINFO GROUPS", READY, read=len, key=READY)
        self.until(lambda: self.exists() and self.transport.send(count) == len(set(groups)))
        return list(self.groups)

    def exists(self) -> bool:
        return self.transport.send(command("EXISTS", READY, read=bool, key=READY))

    def left(self) -> tuple[int, int, int]:
        """Jobs that wait, that are ready or running, and dead ones."""
        [info] = self.client.topics()
        return info.waiting + info.retrying, info.ready + info.running, info.dead

    def until(self, fact: Callable[[], bool], within_s: float = PATIENCE) -> None:
        assert eventually(fact, within_s), f"{self.left()}\n{self.fleet.output()[-20_000:]}"

    def attempts(self) -> dict[tuple[str, str], list[int]]:
        """The attempts that were begun, by job and group, in order of time."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for run in sorted(self.fleet.runs(), key=lambda run: run.started_ms):
            found[run.id, self.groups[run.worker]].append(run.attempt)
        return found


@pytest.fixture
def scene(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    scene = Scene(private_server(), tmp_path, getattr(request, "param", 0))
    with scene.fleet:
        yield scene
        scene.client.close()
        scene.transport.close()


def test_a_worker_killed_midway_loses_nothing_and_its_jobs_run_again_within_six_seconds(scene: Scene) -> None:
    """200 jobs of one second, two workers with the default settings, kill -9 of one that is running 100."""
    victim, other = scene.begin("g", "g")
    receipts = scene.client.schedule_many(TOPIC, [JobSpec({"takes_s": 1.0}, delay=1.0) for _ in range(200)])
    scene.until(lambda: sum(run.worker == victim for run in scene.fleet.runs()) > 50)
    scene.fleet.kill(victim)
    killed_ms = time.time() * 1000
    with Stalls() as machine:
        scene.until(lambda: scene.left() == (0, 0, 0))
    begun = scene.attempts()
    assert {id for id, _ in begun} == {receipt.id for receipt in receipts}
    assert {attempt for attempts in begun.values() for attempt in attempts} == {1}, "a killed worker costs no attempt"
    held = {run.id for run in scene.fleet.runs() if run.worker == victim}
    again_ms = [run.started_ms for run in scene.fleet.runs() if run.worker == other and run.id in held]
    assert again_ms
    assert 0 < min(again_ms) - killed_ms <= 6_000 + 10 * machine.percentile(100)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [100], indirect=True)
def test_every_group_acks_or_buries_every_job_under_failures_and_kills(scene: Scene) -> None:
    """1,000 jobs, three groups, 30 % of the attempts fail, and two of five workers are killed at random times."""
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    names = scene.begin("billing", "billing", "mail", "mail", "stock")

    def fails() -> int:
        return next(n for n in range(100) if draw.random() >= 0.3)

    plans = [{group: fails() for group in ("billing", "mail", "stock")} for _ in range(1_000)]
    specs = [JobSpec({"fails": plan}, delay=0.2 + 3 * n / 1_000, key=str(n)) for n, plan in enumerate(plans)]
    scene.client.schedule_many(TOPIC, specs)
    for victim in (names[draw.randrange(2)], names[2 + draw.randrange(2)]):
        time.sleep(draw.uniform(0.3, 2.0))
        scene.fleet.kill(victim)
    most = RETRY.max_attempts
    assert most is not None
    doomed = {(str(n), group) for n, plan in enumerate(plans) for group in plan if plan[group] >= most}
    scene.until(lambda: scene.left() == (0, 0, len(doomed)))
    begun = scene.attempts()
    for n, plan in enumerate(plans):
        for group, failures in plan.items():
            expected = list(range(1, min(failures + 1, most) + 1))
            attempts = begun[str(n), group]
            assert sorted(set(attempts)) == expected, f"seed {seed}: job {n} of {group} ran as {attempts}"
            assert attempts == sorted(attempts), f"seed {seed}: an attempt after a later one: {attempts}"
    dead = scene.client.dead.list(TOPIC, limit=500).jobs
    assert {(job.id, job.group) for job in dead} == doomed
    assert all((job.attempt, job.reason) == (most, "failed") for job in dead)


@pytest.mark.long
def test_a_frozen_worker_that_wakes_settles_nothing_that_was_given_to_another(scene: Scene) -> None:
    """Neither an ack nor a failure of its counts: the job is its successor's, which still runs it."""
    [frozen] = scene.begin("g")
    plans = {"good": {"takes_s": 4.0}, "bad": {"takes_s": 4.0, "fails": 1}}
    scene.client.schedule_many(TOPIC, [JobSpec(plan, delay=0, key=key) for key, plan in plans.items()])
    scene.until(lambda: len(list(scene.fleet.runs())) == 2)
    scene.fleet.freeze(frozen)
    other = scene.fleet.start("worker", TOPIC, "g")
    scene.groups[other] = "g"
    scene.until(lambda: sum(run.worker == other for run in scene.fleet.runs()) == 2)
    scene.fleet.wake(frozen)  # both of its handlers end at once: their time has passed
    scene.until(lambda: "job bad of orders failed" in scene.fleet.output())
    ends_ms = min(run.started_ms for run in scene.fleet.runs() if run.worker == other) + 4_000
    for _ in range(10):
        left = scene.left()
        assert left == (0, 2, 0) or time.time() * 1000 > ends_ms, f"{left}: something was acked or put off"
        time.sleep(0.05)
    scene.until(lambda: scene.left() == (0, 0, 0))
    assert scene.attempts() == {("good", "g"): [1, 1], ("bad", "g"): [1, 1, 2]}
