"""Schedulers and workers as processes of their own, to be killed, frozen, woken and stopped.

    fleet = Fleet(url, directory)
    fleet.start("scheduler"); fleet.start("worker", topic, "group"); fleet.start("scheduler", release=former)
    fleet.kill(name) · fleet.freeze(name) · fleet.wake(name) · fleet.stop(name)

Each worker appends a line per start of its handler to a log of its own before the handler does anything, so that the
log is complete even if the worker is killed. A child process runs `python -m loadtest.torture.fleet …`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from loadtest.judge import JobRun, Promotion
from loadtest.torture.chains import CHAINED, TOLD, dies, follower, notice
from loadtest.torture.planted import VARIABLE, plant
from wheelq import Bury, Job, Retry, Scheduler, Settings, Worker
from wheelq.settings import Durability, SchedulerSettings

RETRY = Retry(base=0.3)
ROOT = Path(__file__).parents[2]


def former_release(commit: str, directory: Path) -> Path:
    """Unpack the package and the load tests of an earlier commit into a directory, and return it."""
    archive = subprocess.run(
        ["git", "archive", commit, "wheelq", "loadtest"], cwd=ROOT, capture_output=True, check=True
    )
    directory.mkdir(parents=True)
    subprocess.run(["tar", "x"], cwd=directory, input=archive.stdout, check=True)
    return directory


class Fleet:
    """Child processes by name: `scheduler-1`, `worker-2` …"""

    def __init__(
        self,
        url: str | Callable[[str], str],
        directory: Path,
        lease_ms: int | None = None,
        reply_timeout_ms: int | None = None,
        hold_ms: int = 0,
        planted: str | None = None,
        durability: Durability = "server",
    ) -> None:
        """`url` may depend on the child's name. Handlers take up to `hold_ms`; `planted` names a planted defect. What
        follows jobs is carried with this `durability`."""
        self._url = url if callable(url) else lambda name: url
        self._directory = directory
        self._settings = directory / "settings.toml"
        self._settings.write_text(_settings_text(lease_ms, reply_timeout_ms, durability))
        self._hold_ms = hold_ms
        self._environment = os.environ | ({VARIABLE: planted} if planted else {})
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._releases: dict[str, Path] = {}
        self._should_run: set[str] = set()
        self._started = 0

    def start(self, kind: str, *arguments: str, module: str = "loadtest.torture.fleet", release: Path = ROOT) -> str:
        """Start a `scheduler`, or a `worker` with topics (separated by commas) and group; returns its name.

        Another `module` may have other kinds. `release` is the directory whose packages it runs (`former_release`).
        """
        self._started += 1
        name = f"{kind}-{self._started}"
        command = [sys.executable, "-m", module, kind, self._url(name), str(self._settings), *arguments]
        if kind == "worker":
            command += [str(self._directory / f"{name}.runs"), str(self._hold_ms)]
        with (self._directory / f"{name}.out").open("wb") as log:
            self._children[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=release, env=self._environment)
        self._releases[name] = release
        self._should_run.add(name)
        return name

    def names(self, kind: str) -> list[str]:
        """The names of the living processes of one kind, in the order in which they were started."""
        return [name for name, child in self._children.items() if name.startswith(kind) and child.poll() is None]

    def release(self, name: str) -> Path:
        """The directory whose packages it runs."""
        return self._releases[name]

    def pid(self, name: str) -> int:
        """Its process id."""
        return self._children[name].pid

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._should_run.discard(name)
        self._children[name].kill()
        self._children[name].wait()

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self._children[name].send_signal(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """SIGCONT."""
        self._children[name].send_signal(signal.SIGCONT)

    def ask_to_stop(self, name: str) -> None:
        """SIGTERM."""
        self._should_run.discard(name)
        self._children[name].terminate()

    def stop(self, name: str) -> None:
        """SIGTERM, and wait for the graceful end."""
        self.ask_to_stop(name)
        self._children[name].wait(60)

    def is_running(self, name: str) -> bool:
        """Whether it has not ended yet."""
        return self._children[name].poll() is None

    def fallen(self) -> list[str]:
        """Returns processes that have ended without being stopped, each only once."""
        found = [name for name in self._should_run if not self.is_running(name)]
        self._should_run -= set(found)
        return found

    def last_words(self, name: str) -> str:
        """The last line it printed."""
        lines = (self._directory / f"{name}.out").read_text().splitlines()
        return lines[-1] if lines else ""

    def runs(self) -> Iterator[JobRun]:
        """Yields the runs in the logs of all workers, including those that have ended."""
        for log in sorted(self._directory.glob("worker-*.runs")):
            for line in log.read_text().splitlines():
                parts = line.split("\t")
                if len(parts) == 4 and parts[3].endswith("."):  # a line cut short by a kill does not count as a start
                    yield JobRun(parts[0], parts[1], float(parts[2]), log.stem, int(parts[3][:-1]))

    def output(self) -> str:
        """What the children printed, for when a test fails."""
        return "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in sorted(self._directory.glob("*.out")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.kill()
        for child in self._children.values():
            child.wait()


def read_promotions(entries: list[tuple[bytes, list[bytes]]]) -> Iterator[Promotion]:
    """Yields the promotions in raw entries of a ready stream (XRANGE). Only the entry of a retry names a group."""
    for entry_id, fields in entries:
        attempt = int(fields[5]) if len(fields) > 8 else 1
        yield Promotion(
            fields[1].decode(), int(fields[3]), int(entry_id.partition(b"-")[0]), attempt, entry_id.decode()
        )


def _settings_text(lease_ms: int | None, reply_timeout_ms: int | None, durability: Durability) -> str:
    lines = []
    if reply_timeout_ms is not None:
        lines += ["[connection]", f"reply_timeout_ms = {reply_timeout_ms}"]
        lines += ["[client]", f"replicated_timeout_ms = {reply_timeout_ms // 2}"]  # must be less
        lines += [f'durability = "{durability}"']
    if lease_ms is not None:
        margin_ms = min(SchedulerSettings().lease_margin_ms, lease_ms // 4)
        lines += ["[scheduler]", f"lease_ms = {lease_ms}", f"lease_margin_ms = {margin_ms}"]
    return "\n".join(lines)


async def run_until_stopped(part: Scheduler | Worker) -> None:
    """Run a part until SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, part.stop)
    await part.run(patiently=True)


def _worker(url: str, settings: Settings, topics: str, group: str, log_path: str, hold_ms: str) -> Worker:
    worker = Worker.connect(url, group=group, settings=settings)
    is_chained = CHAINED in topics.split(",")
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def handle(job: Job) -> None:
        # The server is on this machine, so this clock is its clock, and better than any estimate.
        name = notice(job.payload["id"]) if job.topic == TOLD else job.id
        os.write(log, f"{name}\t{job.entry_id}\t{time.time() * 1000:.1f}\t{job.attempt}.\n".encode())
        if hold_ms != "0":
            await asyncio.sleep(random.uniform(0, int(hold_ms)) / 1000)
        plan = job.payload if isinstance(job.payload, dict) else {}
        await asyncio.sleep(plan.get("takes_s", 0))
        fails = plan.get("fails", 0)
        if job.attempt <= (fails.get(group, 0) if isinstance(fails, dict) else fails):
            raise PlannedFailure
        if is_chained and dies(job.id):
            raise Bury("as planned")
        if is_chained and (key := follower(name)) is not None:
            job.then(CHAINED, key=key)

    for topic in topics.split(","):
        worker.handler(topic, retry=RETRY)(handle)
    return worker


class PlannedFailure(Exception):
    """The payload says how often its handler fails: in every group, or in each."""


def _is_not_planned(record: logging.LogRecord) -> bool:
    """Whether to log a record; a planned failure that is retried is logged without its traceback."""
    if not (record.exc_info and isinstance(record.exc_info[1], PlannedFailure)):
        return True
    record.exc_info = None
    return record.levelno < logging.ERROR


def main(arguments: list[str]) -> None:
    """Run one part until SIGTERM."""
    if planted := os.environ.get(VARIABLE):
        plant(planted)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("wheelq.worker").addFilter(_is_not_planned)
    kind, url, settings_path, *rest = arguments
    settings = Settings.load(settings_path)
    if kind == "scheduler":
        asyncio.run(run_until_stopped(Scheduler.connect(url, settings)))
    else:
        asyncio.run(run_until_stopped(_worker(url, settings, *rest)))


if __name__ == "__main__":
    main(sys.argv[1:])
