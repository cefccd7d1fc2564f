"""Processes die while jobs fall due: nothing is lost, nothing early, nothing promoted twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.judge import Promise, Verdict, judge
from loadtest.torture.fleet import Fleet, read_promotions
from tests.waiting import Stalls, eventually
from wheelq import Client, JobSpec, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.errors import ServerError
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport

TOPIC = "crashes"
GROUP = "g"
JOBS = 2_000
SPREAD = 4.0
"""Seconds over which they fall due."""


class Scene:
    """One server, a fleet, and a producer that remembers what it was promised."""

    def __init__(self, server: EmbeddedServer, directory: Path) -> None:
        self.server = server
        self.fleet = Fleet(server.url, directory, lease_ms=1_500)
        self.client = Client.connect(server.url, Settings(topic=TopicSettings(retention_ms=3_600_000)))
        self.promises: dict[str, Promise] = {}

    def schedule(self, jobs: int = JOBS, first: float = 0.5, spread: float = SPREAD) -> None:
        specs = [JobSpec(n, delay=first + spread * n / jobs) for n in range(jobs)]
        for receipt in self.client.schedule_many(TOPIC, specs):
            self.promises[receipt.id] = Promise(receipt.due_ms, must_run=True)

    def begin(self) -> None:
        """Wait until a job has run: what was started works."""
        self.schedule(1, first=0.0)
        assert self.all_have_run(), self.fleet.output()

    def all_have_run(self) -> bool:
        """Wait until all promised jobs ran; whether they did."""
        return eventually(lambda: set(self.promises) <= {run.id for run in self.fleet.runs()})

    def clean(self) -> Verdict:
        """Wait until all promised jobs ran, then judge: nothing may be lost, early or promoted twice."""
        self.all_have_run()
        entries = Transport(Address(self.server.url)).send(
            command("XRANGE", Keys().shard(TOPIC, 0).ready, "-", "+", read=list)
        )
        verdict = judge(self.promises, read_promotions(entries), self.fleet.runs())
        assert verdict.is_clean, f"{verdict}\n{self.fleet.output()}"
        return verdict


@pytest.fixture
def scene(private_server: Callable[..., EmbeddedServer], tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(private_server(), tmp_path)
    with scene.fleet:
        yield scene
        scene.client.close()


@pytest.mark.parametrize("part", ["scheduler", pytest.param("worker", marks=pytest.mark.slow)])
def test_a_part_killed_and_started_again_loses_and_doubles_nothing(scene: Scene, part: str) -> None:
    """kill -9 four times while 500 jobs/s fall due; a new node sees that the dead one's connection is closed.

    What a killed worker held runs again in another one; each job is still promoted once.
    """
    arguments = {"scheduler": (), "worker": (TOPIC, GROUP)}
    names = {kind: scene.fleet.start(kind, *given) for kind, given in arguments.items()}
    scene.begin()
    scene.schedule()
    for _ in range(4):
        time.sleep(1.0)
        scene.fleet.kill(names[part])
        names[part] = scene.fleet.start(part, *arguments[part])
    verdict = scene.clean()
    assert part == "worker" or verdict.reruns == 0


def test_a_server_killed_and_started_again_loses_nothing_it_had_answered_for(scene: Scene) -> None:
    """kill -9 of a server with an append-only file: schedulers and workers come back by themselves and catch up."""
    scene.fleet.start("scheduler")
    scene.fleet.start("worker", TOPIC, GROUP)
    scene.begin()
    scene.schedule()
    for _ in range(3):
        time.sleep(1.2)
        scene.server.kill()
        scene.server.start()
    scene.clean()


@pytest.mark.long
def test_a_frozen_scheduler_that_wakes_promotes_nothing_stale(scene: Scene) -> None:
    """SIGSTOP for three lease times with another node taking over, then SIGCONT."""
    scene.fleet.start("worker", TOPIC, GROUP)
    first = scene.fleet.start("scheduler")
    scene.begin()
    scene.schedule(spread=8.0)
    time.sleep(1.5)
    scene.fleet.start("scheduler")
    time.sleep(0.5)
    scene.fleet.freeze(first)
    time.sleep(4.5)
    scene.fleet.wake(first)
    scene.clean()


def test_two_schedulers_are_no_more_than_one(scene: Scene) -> None:
    """A second node waits for the lease; stopping the first hands it over at once."""
    scene.fleet.start("worker", TOPIC, GROUP)
    first = scene.fleet.start("scheduler")
    scene.fleet.start("scheduler")
    scene.begin()
    with Stalls() as machine:
        scene.schedule()
        time.sleep(2.5)
        scene.fleet.stop(first)
        verdict = scene.clean()
    most_ms = 10_000 + 10 * machine.percentile(100)
    assert verdict.lateness_ms[-1] < most_ms, "less than the lease and what a busy machine takes"


def test_a_script_cache_flushed_again_and_again_is_filled_again(scene: Scene) -> None:
    """SCRIPT FLUSH while jobs are scheduled and promoted: every part loads its scripts again."""
    scene.fleet.start("scheduler")
    scene.fleet.start("worker", TOPIC, GROUP)
    flushing = Transport(Address(scene.server.url))
    for _ in range(10):
        scene.schedule(200, first=0.2, spread=0.3)
        flushing.send(command("SCRIPT FLUSH", read=bool))
        time.sleep(0.2)
    scene.clean()


def test_a_full_server_refuses_new_jobs_and_runs_those_that_are_due(scene: Scene) -> None:
    """maxmemory with noeviction: schedule says that the server is full, promotion goes on and frees memory."""
    scene.fleet.start("scheduler")
    scene.fleet.start("worker", TOPIC, GROUP)
    scene.begin()
    scene.schedule(first=2.0, spread=1.0)
    limiting = Transport(Address(scene.server.url))
    limiting.send(command("CONFIG SET", "maxmemory", "1mb", read=bool))
    with pytest.raises(ServerError, match="out of memory"):
        scene.schedule(1)
    assert scene.all_have_run(), "due jobs run while the server is full"
    limiting.send(command("CONFIG SET", "maxmemory", "0", read=bool))
    scene.clean()
