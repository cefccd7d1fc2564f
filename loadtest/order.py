"""Runs jobs in order while workers fail, are killed and freeze, and judges the workers' logs.

Each worker appends a line when a run starts and when it has succeeded, with the time of the machine's monotonic clock,
which all its processes share. A child process runs `python -m loadtest.order …`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from loadtest.torture.fleet import Fleet, run_until_stopped
from wheelq import Client, Job, JobSpec, Retry, Settings, Worker
from wheelq.settings import TopicSettings

TOPIC = "ordered"
GROUP = "g"
RETRY = Retry(max_attempts=100, base=0.02, cap=0.2)
FAILS = 0.3
HOLD_MS = 4


class Event(NamedTuple):
    """A run of a job has started, or has succeeded."""

    at_ns: int
    is_start: bool
    key: str
    n: int
    worker: str = ""


class Wake(NamedTuple):
    """A frozen worker continues."""

    worker: str
    at_ns: int


@dataclass(slots=True)
class Findings:
    """The jobs that went wrong, by name, such as `k3 #17`."""

    missing: list[str] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)
    """Started after a later job of its key had started, without permission."""
    early: list[str] = field(default_factory=list)
    """Started before the previous job of its key had succeeded."""
    repeated: int = 0
    """Runs after a success, because a worker died between effect and ack. Not an error."""
    permitted: int = 0
    """Started by a worker that was frozen between its last check and the handler: one per key, when it wakes."""

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.overtaken or self.early)


def judge(events: list[Event], expected: dict[str, int], wakes: Sequence[Wake] = ()) -> Findings:
    """Check that the jobs 0, 1, 2 … of each key ran one after the other; `expected` has the number of jobs by key."""
    found = Findings()
    late = {start for wake in wakes for start in _first_starts(events, wake)}
    by_key: defaultdict[str, list[Event]] = defaultdict(list)
    for event in sorted(events):
        by_key[event.key].append(event)
    for key, count in expected.items():
        last, done = -1, -1
        for event in by_key[key]:
            name = f"{key} #{event.n}"
            if not event.is_start:
                done = max(done, event.n)
                continue
            if event.n < last and event in late:
                found.permitted += 1
            elif event.n < last:
                found.overtaken.append(name)
            elif event.n > done + 1:
                found.early.append(name)
            found.repeated += event.n <= done
            last = max(last, event.n)
        found.missing += [f"{key} #{n}" for n in range(done + 1, count)]
    return found


def _first_starts(events: list[Event], wake: Wake) -> Iterator[Event]:
    """Yields the first job of each key that the worker starts when it wakes."""
    seen = set()
    for event in sorted(events):
        if event.is_start and event.worker == wake.worker and event.at_ns >= wake.at_ns and event.key not in seen:
            seen.add(event.key)
            yield event


class Show:
    """A topic whose jobs run in order, and its workers."""

    def __init__(self, url: str, directory: Path, mode: str, *, shards: int) -> None:
        """`mode`: "key", or "shard" (then there must be one shard)."""
        self.fleet = Fleet(url, directory)
        self._logs: dict[str, str] = {}
        self._wakes: list[Wake] = []
        self.expected: dict[str, int] = {}
        self._directory = directory
        self._mode = mode
        self._client = Client.connect(url, Settings(topic=TopicSettings(shards=shards)))

    def schedule(self, jobs: int, keys: int, *, first: float, spread: float) -> None:
        """Schedule `jobs` jobs for each of `keys` keys, due evenly over `spread` seconds."""
        total = jobs * keys
        specs = []
        for number in range(total):
            key = f"k{number % keys}"
            payload = {"key": key, "n": number // keys}
            specs.append(JobSpec(payload, delay=first + spread * number / total, partition_key=key))
        self._client.schedule_many(TOPIC, specs)
        self.expected = {f"k{key}": jobs for key in range(keys)}

    def start_worker(self) -> str:
        """Start one more worker; returns its name."""
        log = self._directory / f"{len(list(self._directory.glob('*.events')))}.events"
        log.touch()
        name = self.fleet.start("ordered", self._mode, str(log), module="loadtest.order")
        self._logs[name] = log.stem
        return name

    def wake(self, name: str) -> None:
        """Make a frozen worker continue."""
        self._wakes.append(Wake(self._logs[name], time.monotonic_ns()))
        self.fleet.wake(name)

    def events(self) -> list[Event]:
        """Returns the events in the logs of all workers."""
        found = []
        for log in self._directory.glob("*.events"):
            for line in log.read_text().splitlines():
                parts = line.split()
                if len(parts) == 5:  # a line cut short by a kill does not count
                    found.append(Event(int(parts[0]), parts[1] == "start", parts[2], int(parts[3]), log.stem))
        return found

    def findings(self, patience: float) -> Findings:
        """Wait until all jobs have run, then judge."""
        deadline = time.monotonic() + patience
        while True:
            found = judge(self.events(), self.expected, self._wakes)
            if not found.missing or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def left(self) -> int:
        """Jobs that wait, are ready or dead."""
        [info] = [info for info in self._client.topics() if info.name == TOPIC]
        return info.waiting + info.ready + info.running + info.retrying + info.dead


def run_worker(url: str, settings_path: str, mode: str, log_path: str) -> None:
    """Run a worker: the code of a child process."""
    worker = Worker.connect(url, group=GROUP, settings=Settings.load(settings_path))
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND)

    def note(what: str, job: Job) -> None:
        os.write(log, f"{time.monotonic_ns()} {what} {job.payload['key']} {job.payload['n']} .\n".encode())

    @worker.handler(TOPIC, ordered="key" if mode == "key" else True, retry=RETRY)
    async def handle(job: Job) -> None:
        note("start", job)
        await asyncio.sleep(random.uniform(0, HOLD_MS) / 1000)
        if random.random() < FAILS:
            raise ConnectionError("the other side is away")
        note("done", job)

    asyncio.run(run_until_stopped(worker))


if __name__ == "__main__":
    run_worker(*sys.argv[2:])
