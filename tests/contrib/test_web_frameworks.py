"""FastAPI and Flask under uvicorn and gunicorn, whose processes are killed while requests schedule jobs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import PATIENCE, eventually, until
from wheelq import Client, Job, Scheduler, Worker
from wheelq.embedded import EmbeddedServer

APPS = Path(__file__).parent / "apps"
PROCESSES = 2
ORDERS = 200
KILLS = 4
AT_A_TIME = 8


class Site:
    """A web server with several processes."""

    def __init__(self, command: Sequence[str], env: dict[str, str], directory: Path) -> None:
        self.said = directory / "said.txt"
        with self.said.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, "-m", *command], env=env, stdout=out, stderr=out, cwd=APPS)
        assert eventually(lambda: self._url is not None), self.said.read_text()
        assert self._url is not None
        self.url = self._url[0]

    @property
    def _url(self) -> re.Match[str] | None:
        return re.search(r"http://127\.0\.0\.1:\d+", self.said.read_text())

    def stop(self) -> int:
        """Ask it to end; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


class Orders:
    """Requests that are repeated until they are answered, and which processes answered."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._numbers = iter(range(ORDERS))
        self._left_to_kill: list[int] = []
        self.answered: Counter[int] = Counter()
        self.answers: list[dict[str, Any]] = []
        self.killed: set[int] = set()

    async def send(self) -> None:
        """Send all orders, some at a time; kill the processes that answer now and then."""
        async with httpx.AsyncClient(base_url=self._site.url, timeout=PATIENCE) as http:
            await asyncio.gather(*(self._send(http) for _ in range(AT_A_TIME)))

    async def _send(self, http: httpx.AsyncClient) -> None:
        for number in self._numbers:
            async with asyncio.timeout(PATIENCE):
                answer = await self._answer(http, number)
            self.answers.append(answer)
            self.answered[answer["pid"]] += 1
            if len(self.answers) % (ORDERS // KILLS) == 0:
                self._kill(answer["pid"])

    async def _answer(self, http: httpx.AsyncClient, number: int) -> dict[str, Any]:
        while True:
            try:
                answer = await http.post(f"/orders/{number}")
            except httpx.TransportError:  # its process was killed, or is not there yet
                await asyncio.sleep(0.05)
            else:
                assert answer.status_code == 200, answer.text
                return dict(answer.json())

    def _kill(self, pid: int) -> None:
        if pid not in self.killed:
            self.killed.add(pid)
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def env(private_server: Callable[..., EmbeddedServer], tmp_path: Path) -> dict[str, str]:
    """The environment of an app on a server of its own."""
    log = tmp_path / "log.txt"
    log.touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ_")}
    return kept | {"WHEELQ_URL": private_server().url, "TEST_LOG": str(log)}


@pytest.fixture
def site(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Starts one; at the end it is stopped."""
    started: list[Site] = []

    def start(*command: str) -> Site:
        started.append(Site(command, env, tmp_path))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()


@pytest.fixture
async def ran(env: dict[str, str]) -> AsyncIterator[Counter[object]]:
    """The payloads of the orders that have run, in a scheduler and a worker that live as long as the test."""
    ran: Counter[object] = Counter()
    worker, scheduler = Worker.connect(env["WHEELQ_URL"]), Scheduler.connect(env["WHEELQ_URL"])

    @worker.handler("orders")
    async def run(job: Job) -> None:
        ran[job.payload] += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        group.create_task(scheduler.run())
        yield ran
        worker.stop()
        scheduler.stop()


def nothing_is_left(url: str) -> bool:
    """Whether every order has run, by the server's own count."""
    with Client.connect(url) as client:
        [info] = client.topics()
        return (info.waiting, info.ready, info.running, info.retrying, info.dead) == (0, 0, 0, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize("threads", ["1", "4"], ids=["sync", "threads"])
async def test_flask_under_gunicorn_loses_no_job_when_processes_are_killed_and_a_client_made_before_the_fork_works(
    site: Callable[..., Site], env: dict[str, str], ran: Counter[object], threads: str
) -> None:
    running = site(
        "gunicorn",
        "flask_app:app",
        "--preload",
        "--workers",
        str(PROCESSES),
        "--threads",
        threads,
        "--bind",
        "127.0.0.1:0",
    )
    orders = Orders(running)
    await orders.send()
    assert len(orders.killed) > PROCESSES
    assert len(orders.answered) > PROCESSES  # those that took the place of killed ones have answered too
    assert {answer["master"] for answer in orders.answers} == {running.process.pid}
    await until(lambda: ran.keys() >= set(range(ORDERS)))
    assert ran["before the fork"] == 1
    assert await asyncio.to_thread(eventually, lambda: nothing_is_left(env["WHEELQ_URL"]))
    assert await asyncio.to_thread(running.stop) == 0


UVICORN = ("uvicorn", "fastapi_app:app", "--port", "0")
GUNICORN = ("gunicorn", "fastapi_app:app", "--bind", "127.0.0.1:0", "-k", "uvicorn_worker.UvicornWorker")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [pytest.param(UVICORN, id="uvicorn"), pytest.param(GUNICORN, id="gunicorn", marks=pytest.mark.long)]
)
@pytest.mark.long
async def test_fastapi_loses_no_job_when_processes_that_also_run_the_jobs_are_killed(
    site: Callable[..., Site], env: dict[str, str], command: Sequence[str]
) -> None:
    running = site(*command, "--workers", str(PROCESSES))
    orders, log = Orders(running), Path(env["TEST_LOG"])
    await orders.send()
    assert len(orders.killed) > PROCESSES
    assert len(orders.answered) > PROCESSES
    await until(lambda: set(map(int, log.read_text().split())) >= set(range(ORDERS)))
    assert await asyncio.to_thread(eventually, lambda: nothing_is_left(env["WHEELQ_URL"]))
    assert await asyncio.to_thread(running.stop) == 0
