"""An upgrade needs no pause: this release works beside the one before it, and on what that one left in Redis."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from tests.faults import upgrade_parts
from tests.faults.upgrade_parts import KEPT, LATE, TOPIC
from tests.found import job_of
from tests.running import running
from tests.transports import ALWAYS, AsyncWith, Unreachable
from tests.waiting import PATIENCE, eventually, until
from wheelq import AsyncClient, BundleState, Client, Continuation, Job, JobSpec, JobState, Scheduler, Worker
from wheelq.base.clock import SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.following.carrier import Carrier
from wheelq.model.topic import Topic
from wheelq.protocol import codec
from wheelq.protocol.keys import Keys
from wheelq.scheduler.draining import EndedGroups
from wheelq.scheduler.parts import NodeParts
from wheelq.settings import SchedulerSettings
from wheelq.transport import Address, AsyncTransport

FORMER = "3d1cd8c"
"""The commit that froze the format: every later release works beside it."""
ROOT = Path(__file__).parents[2]
EARLY_MS = 2.0
"""Clocks are read to the millisecond."""
ONCE = {f"job-{n}" for n in range(20)} | {"done", "moved"}


@pytest.fixture(scope="session")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package of the release before this one, from the repository's history."""
    archive = subprocess.run(["git", "archive", FORMER, "wheelq"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history of this clone does not reach back to {FORMER}")
    directory = tmp_path_factory.mktemp("former")
    subprocess.run(["tar", "x"], cwd=directory, input=archive.stdout, check=True)
    return directory


class Part:
    """A process that plays one role, with one of the two releases."""

    def __init__(self, release: Path, role: str, *where: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(release)}
        command = [sys.executable, upgrade_parts.__file__, role, *where]
        self._output = NamedTemporaryFile()  # noqa: SIM115  # see `close`
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=self._output)

    def said(self) -> list[dict[str, Any]]:
        """Its lines so far."""
        said = Path(self._output.name).read_text()
        return [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]

    def runs(self) -> list[dict[str, Any]]:
        return [line for line in self.said() if "id" in line]

    def has_said(self, word: str, release: Path) -> bool:
        """Whether it has come so far, with the package that it was to use."""
        return any(line[word] == str(release / "wheelq" / "__init__.py") for line in self.said() if word in line)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


@contextmanager
def part(release: Path, role: str, *where: str) -> Iterator[Part]:
    """Run it until the end of the block."""
    running = Part(release, role, *where)
    try:
        yield running
        running.end()
    finally:
        running.close()


def check_runs(runs: list[dict[str, Any]]) -> None:
    """Nothing early, nothing lost, nothing doubled; retries were second attempts."""
    assert max(run["early_ms"] for run in runs) <= EARLY_MS
    attempts = Counter((run["id"], run["attempt"]) for run in runs)
    assert {id: attempts[id, 1] for id in ONCE} == dict.fromkeys(ONCE, 1)
    assert {attempts[id, attempt] for id in ("retry", "dead") for attempt in (1, 2)} == {1}
    assert max(attempts.values()) == 1
    assert not {"far", "cancelled", "first"} & {id for id, _ in attempts}


def ticks(runs: list[dict[str, Any]]) -> int:
    return sum(run["payload"] == {"n": 25} for run in runs)


def check_rest(url: str) -> None:
    """What is left, as a client of this release sees it."""
    with Client.connect(url) as client:
        [dead] = client.dead.list(TOPIC).jobs
        assert (dead.id, dead.attempt, dead.payload) == ("dead", 2, {"n": 21})
        kept = job_of(client, KEPT, "done")
        assert kept.state is JobState.DONE
        assert client.wait(KEPT, "done", timeout=PATIENCE) == {"ran": "done"}
        far = job_of(client, TOPIC, "far")
        assert (far.state, far.payload) == (JobState.WAITING, {"n": 23})
        assert client.get(TOPIC, "cancelled") is None
        assert [info.name for info in client.recurring.list(TOPIC)] == ["tick"]


@pytest.mark.long
@pytest.mark.every_server
@pytest.mark.parametrize("scheduler_is_former", [True, False])
def test_a_fleet_of_two_releases_runs_every_job_once_and_in_time(
    private_server: Callable[..., EmbeddedServer], former: Path, scheduler_is_former: bool
) -> None:
    """The scheduler of one, worker and client of the other; then the scheduler is upgraded, or taken back."""
    scheduling, others = (former, ROOT) if scheduler_is_former else (ROOT, former)
    url = private_server().url
    with ExitStack() as stack:
        scheduler = stack.enter_context(part(scheduling, "scheduler", url))
        worker = stack.enter_context(part(others, "worker", url))
        assert eventually(lambda: scheduler.has_said("started", scheduling) and worker.has_said("started", others))
        client = stack.enter_context(part(others, "client", url))
        assert eventually(lambda: client.has_said("made", others))

        def is_done() -> bool:
            ran = Counter(run["id"] for run in worker.runs())
            return ran.keys() >= ONCE and ran["retry"] == ran["dead"] == 2 and ticks(worker.runs()) >= 2

        assert eventually(is_done)
        before = ticks(worker.runs())
        stack.enter_context(part(others, "scheduler", url))
        scheduler.end()
        assert eventually(lambda: ticks(worker.runs()) >= before + 2)
        check_runs(worker.runs())
        check_rest(url)


@pytest.mark.slow
def test_what_follows_a_job_reaches_workers_and_schedulers_of_the_former_release(
    private_server: Callable[..., EmbeddedServer], former: Path
) -> None:
    """In one group: those of the former release make no followers, and run those that others have made."""
    url = private_server().url
    followed: list[str] = []
    with ExitStack() as stack:
        scheduler = stack.enter_context(part(former, "scheduler", url))
        worker = stack.enter_context(part(former, "worker", url))
        assert eventually(lambda: scheduler.has_said("started", former) and worker.has_said("started", former))

        async def work() -> None:
            own = Worker.connect(url, group="g")

            @own.handler(TOPIC)
            async def handle(job: Job) -> None:
                followed.append(job.id)
                job.then(KEPT, {"n": 1}, key=f"after-{job.id}", delay=0.3)

            async def is_over() -> None:
                async with AsyncClient.connect(url) as client:
                    await client.schedule_many(TOPIC, [JobSpec({"n": n}, 0.1, key=f"f{n}") for n in range(40)])
                    await until(lambda: len(followed) + len(ran(TOPIC)) == 40)
                    await until(lambda: len(ran(KEPT)) == len(followed))

            async with running(own):
                await is_over()

        def ran(topic: str) -> list[str]:
            ids = [run["id"] for run in worker.runs()]
            return [id for id in ids if id.startswith("after-") == (topic == KEPT)]

        asyncio.run(work())
        assert sorted(ran(KEPT)) == sorted(f"after-{id}" for id in followed)
        assert max((run["early_ms"] for run in worker.runs()), default=0) <= EARLY_MS


@pytest.mark.slow
def test_a_bundle_counts_what_a_worker_of_the_former_release_has_ended(
    private_server: Callable[..., EmbeddedServer], former: Path
) -> None:
    """It counts nothing itself: what it has ended is found by the look that a scheduler takes every ten minutes."""
    url = private_server().url
    own, ended = Worker.connect(url, group="g"), []
    with part(former, "worker", url) as worker:
        assert eventually(lambda: worker.has_said("started", former))

        @own.handler(TOPIC)
        async def handle(job: Job) -> None:
            ended.append(job.id)

        @own.handler("after")
        async def follow(job: Job) -> None:
            ended.append("after")

        async def work() -> None:
            async with running(own, Scheduler.connect(url)), AsyncClient.connect(url) as client:
                jobs = [JobSpec({"n": n}, 0.1, key=f"m{n}") for n in range(40)]
                receipts = await client.schedule_many(TOPIC, jobs, then=Continuation("after", "all"))
                bundle = receipts.bundle or ""
                await until(lambda: len(ended) + len(worker.runs()) == 40)
                transport = AsyncTransport(Address(url))
                look = EndedGroups(
                    NodeParts(transport, Keys(), SystemClock(), SchedulerSettings(), "node"), dict, Carrier(transport)
                )

                async def is_over() -> bool:
                    await look.look(TOPIC, Topic())
                    found = await client.bundle(bundle)
                    return "after" in ended and (found is None or (found.done, found.left) == (40, 0))

                await until(is_over)
                await transport.close()

        asyncio.run(work())
        assert ended.count("after") == 1
        assert {*ended, *(run["id"] for run in worker.runs())} == {"after", *(f"m{n}" for n in range(40))}


@pytest.mark.slow
def test_a_bundle_whose_report_nobody_carries_is_followed_once_the_scheduler_is_upgraded(
    private_server: Callable[..., EmbeddedServer], former: Path
) -> None:
    """The scheduler of the former release promotes the members. What their worker leaves behind it does not know."""
    url = private_server().url
    ran: list[str] = []
    broken = Unreachable("tally_bundle", times=ALWAYS)
    own = Worker(AsyncWith(url, broken), "g")

    @own.handler(TOPIC)
    async def handle(job: Job) -> None:
        ran.append(job.id)

    @own.handler("after")
    async def follow(job: Job) -> None:
        ran.append("after")

    with part(former, "scheduler", url) as old:
        assert eventually(lambda: old.has_said("started", former))

        async def work() -> None:
            async with running(own), AsyncClient.connect(url) as client:
                jobs = [JobSpec({"n": n}, 0.3, key=f"m{n}") for n in range(40)]
                receipts = await client.schedule_many(TOPIC, jobs, then=Continuation("after", "all"))
                bundle = receipts.bundle or ""
                await until(lambda: len(ran) == 40 and broken.struck > 0)
                found = await client.bundle(bundle)
                assert found is not None
                assert (found.state, found.done, found.left) == (BundleState.CLOSED, 40, 0)
                await asyncio.to_thread(old.end)
                async with running(Scheduler.connect(url)):
                    await until(lambda: "after" in ran)

        asyncio.run(work())
    assert sorted(ran) == sorted(["after", *(f"m{n}" for n in range(40))])


OUTBOX = """
import sys
from wheelq import Client

url, path, *keys = sys.argv[1:]
with Client.connect(url, outbox=path) as client:
    for key in keys:
        assert client.schedule("orders", delay=3_600, key=key).in_outbox
    if not keys:
        client.deliver_outbox()
        assert client.outbox_info().jobs == 0
"""
NOBODY = "redis://127.0.0.1:1"


@pytest.mark.long
@pytest.mark.parametrize("deliverer_is_former", [True, False])
def test_producers_of_two_releases_share_an_outbox(
    private_server: Callable[..., EmbeddedServer], former: Path, tmp_path: Path, deliverer_is_former: bool
) -> None:
    url, path = private_server().url, tmp_path / "outbox.db"

    def producer(release: Path, url: str, *keys: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(release)}
        subprocess.run([sys.executable, "-c", OUTBOX, url, path, *keys], env=environment, check=True, timeout=PATIENCE)

    asked_ms = time.time() * 1000
    for release, key in ((former, "a"), (ROOT, "b"), (former, "c"), (ROOT, "d")):
        producer(release, NOBODY, key)
    producer(former if deliverer_is_former else ROOT, url)
    with Client.connect(url) as client:
        jobs = [client.get(TOPIC, key) for key in "abcd"]
    delivered_ms = time.time() * 1000
    assert [asked_ms - 1 <= job.due_ms - 3_600_000 <= delivered_ms for job in jobs if job is not None] == [True] * 4


@pytest.mark.long
def test_a_data_directory_of_the_former_release_is_taken_over(
    server_binary: Path, former: Path, tmp_path: Path, private_server: Callable[..., EmbeddedServer]
) -> None:
    """Jobs that wait, recur, wait for a retry, are ready, dead and kept, on a server that was stopped."""
    data = tmp_path / "data"
    with part(former, "fill", str(data), str(server_binary)) as filling:
        assert eventually(lambda: filling.has_said("filled", former))
        before = filling.runs()
    check_runs(before)
    url = private_server(data).url
    check_rest(url)
    later = {f"later-{n}" for n in range(20)}
    with part(ROOT, "scheduler", url), part(ROOT, "worker", url) as worker:

        def is_done() -> bool:
            ran = Counter(run["id"] for run in worker.runs())
            return ran.keys() >= later | {LATE} and ran["retry-unread"] == 2 and ticks(worker.runs()) >= 2

        assert eventually(is_done)
        runs = worker.runs()
        assert max(Counter((run["id"], run["attempt"]) for run in runs).values()) == 1
        assert max(run["early_ms"] for run in runs) <= EARLY_MS
        assert {run["id"] for run in runs} & {run["id"] for run in before} == {LATE}
        assert [run["attempt"] for run in runs if run["id"] == LATE] == [2]
        check_rest(url)
        with Client.connect(url) as client:
            client.dead.replay_one(TOPIC, client.dead.list(TOPIC).jobs[0].dead_id)
        assert eventually(lambda: "dead" in {run["id"] for run in worker.runs()})


def test_the_release_before_reads_a_job_whose_payload_did_not_fit(former: Path) -> None:
    """It runs it as it ran, and leaves the time since when it waits in its record."""
    record = codec.again(codec.encode({"n": 1}, None, 100), 1_000, "n: is unknown", counts=False, mismatched_ms=1_001)
    program = (
        "import sys; from wheelq.protocol import codec;"
        "record = bytes.fromhex(sys.argv[1]); found = codec.decode(record);"
        "assert (found.payload, found.attempt, found.last_error) == ({'n': 1}, 1, 'n: is unknown'), found;"
        "print(codec.again(record, 1_000, 'it broke', counts=True).hex())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program, record.hex()],
        env=os.environ | {"PYTHONPATH": str(former)},
        cwd=former,
        capture_output=True,
        text=True,
        check=True,
    )
    found = codec.decode(bytes.fromhex(answer.stdout.strip()))
    assert (found.mismatched_ms, found.attempt, found.last_error) == (1_001, 2, "it broke")
