"""Schedulers and workers as processes of their own, to be killed, frozen, woken and stopped.

    fleet = Fleet(url, directory)
    fleet.start("scheduler"); fleet.start("worker", topic, "group")
    fleet.kill(name) · fleet.freeze(name) · fleet.wake(name) · fleet.stop(name)

Each worker appends a line per start of its handler to a log of its own before the handler does anything, so that the
log tells the truth also about a worker that is killed. `python -m loadtest.fleet …` is what a child process runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtest.checker import Promotion, Run
from wheelq import Job, Scheduler, Settings, Worker


class Fleet:
    """Child processes by name: `scheduler-1`, `worker-2` …"""

    def __init__(self, url: str, directory: Path, lease_ms: int | None = None) -> None:
        self._url = url
        self._directory = directory
        self._lease_ms = lease_ms
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def start(self, kind: str, *arguments: str) -> str:
        """Start a `scheduler`, or a `worker` with topics (comma between) and group; returns its name."""
        self._started += 1
        name = f"{kind}-{self._started}"
        log = (self._directory / f"{name}.out").open("wb")
        command = [sys.executable, "-m", "loadtest.fleet", kind, self._url, *arguments]
        if kind == "worker":
            command.append(str(self._directory / f"{name}.runs"))
        elif self._lease_ms is not None:
            command.append(str(self._lease_ms))
        self._children[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[1])
        return name

    def names(self, kind: str) -> list[str]:
        """The living of one kind, in the order they were started."""
        return [name for name, child in self._children.items() if name.startswith(kind) and child.poll() is None]

    def pid(self, name: str) -> int:
        """Its process id."""
        return self._children[name].pid

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._children[name].kill()
        self._children[name].wait()

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self._children[name].send_signal(signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """SIGCONT."""
        self._children[name].send_signal(signal.SIGCONT)

    def stop(self, name: str) -> None:
        """SIGTERM, and wait for the graceful end."""
        self._children[name].terminate()
        self._children[name].wait(30)

    def runs(self) -> Iterator[Run]:
        """What the workers' logs say, also those of workers that are no more."""
        for log in sorted(self._directory.glob("worker-*.runs")):
            for line in log.read_text().splitlines():
                parts = line.split("\t")
                if len(parts) == 3 and parts[2].endswith("."):  # a line cut short by a kill is a start nobody saw
                    yield Run(parts[0], parts[1], float(parts[2][:-1]), log.stem)

    def output(self) -> str:
        """What the children printed, for when a test fails."""
        return "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in sorted(self._directory.glob("*.out")))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.kill()
        for child in self._children.values():
            child.wait()


def read_promotions(entries: list[tuple[bytes, list[bytes]]]) -> Iterator[Promotion]:
    """The first attempts in a ready stream, from raw entries as XRANGE gives them."""
    for entry_id, fields in entries:
        if len(fields) == 8 and fields[5] == b"1":
            yield Promotion(fields[1].decode(), int(fields[3]), int(entry_id.partition(b"-")[0]))


def _settings(lease_ms: str | None) -> Settings:
    settings = Settings()
    if lease_ms is None:
        return settings
    margin_ms = min(settings.scheduler.lease_margin_ms, int(lease_ms) // 4)
    return replace(settings, scheduler=replace(settings.scheduler, lease_ms=int(lease_ms), lease_margin_ms=margin_ms))


async def _run(part: Scheduler | Worker) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, part.stop)
    await part.run()


def _worker(url: str, topics: str, group: str, log_path: str) -> Worker:
    worker = Worker.connect(url, group=group)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def handle(job: Job) -> None:
        os.write(log, f"{job.id}\t{job.entry_id}\t{job.started_ms:.1f}.\n".encode())

    for topic in topics.split(","):
        worker.handler(topic)(handle)
    return worker


def main(arguments: list[str]) -> None:
    """Run one part until SIGTERM."""
    kind, url, *rest = arguments
    if kind == "scheduler":
        asyncio.run(_run(Scheduler.connect(url, _settings(rest[0] if rest else None))))
    else:
        asyncio.run(_run(_worker(url, *rest)))


if __name__ == "__main__":
    main(sys.argv[1:])
