"""Due jobs forwarded to Kafka, while workers are killed and the broker is away.

    python -m loadtest.kafka [--jobs 100000] [--rate 500] [--seconds 60] [--gone 20] [--kills 6]

There are one wheelq server, one scheduler and librdkafka's mock broker. First, one `wheelq forward` empties a backlog:
how many messages a second. Then jobs fall due at a steady rate, for two `wheelq forward`: the broker goes away for a
while, and after that a worker is killed with -9 now and then. A consumer reads along. Each job must arrive, and none
may be dead or left.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.figures import percentile
from loadtest.command import parser, tell_load
from loadtest.servers.kafka import KafkaCluster, stored
from loadtest.torture.fleet import Fleet
from wheelq import Client, JobSpec, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.model.topic import TopicInfo

TOPIC = "forwarded"
FORWARD = "forward"
"""The first argument of a child process."""
PARTITIONS = 16
LEAD_S = 3.0
"""How long before the first job is due."""
BACK_S = 5.0
"""How long after the broker's return lateness must be as before."""


class Reader(threading.Thread):
    """A consumer that reads along, and notes when each job arrived."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self.arrived: dict[int, tuple[float, float]] = {}
        """When each job was due and arrived first, by the number in its payload; seconds since the epoch."""
        self.times: Counter[int] = Counter()
        self.is_stopping = False
        self._servers = servers

    def run(self) -> None:
        for some in stored(self._servers, TOPIC, PARTITIONS, 0.01):
            now = time.time()
            for message in some:
                number = int(message.value())
                due = int(dict(message.headers())["wheelq-due"]) / 1000
                self.arrived.setdefault(number, (due, now))
                self.times[number] += 1
            if self.is_stopping:
                return


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The result of one run."""

    jobs: int
    kills: int
    gone_s: float
    lost: int
    doubled: int
    """Messages of jobs that had arrived before."""
    dead: int
    left: int
    """Jobs that are neither done nor dead."""
    per_s: float
    """Messages a second, from the first to the last."""
    p99_ms: float
    """How late jobs arrived that were due before the broker went, without the first 5 s."""
    p99_back_ms: float
    """The same of jobs that were due from 5 s after its return on, until a second before the first kill."""

    @property
    def is_exact(self) -> bool:
        return (self.lost, self.dead, self.left) == (0, 0, 0)


class Show:
    """One server, one broker, one fleet."""

    def __init__(self, server_url: str, directory: Path) -> None:
        self.fleet = Fleet(server_url, directory)
        self._cluster = KafkaCluster()
        self._cluster.make_topic(TOPIC, PARTITIONS)
        self._client = Client.connect(server_url, Settings())

    def run(
        self, jobs: int, *, rate: float = 0, gone_s: float = 0, kills: int = 0, workers: int = 1, patience: float = 120
    ) -> Forwarded:
        """Schedule, take the broker away for `gone_s`, kill, and count. Without a rate, all jobs are due at once.

        The broker goes after a third of the time, and workers are killed in the last third.
        """
        reader = Reader(self._cluster.servers)
        specs = [JobSpec(n, delay=LEAD_S + n / rate if rate else 0) for n in range(jobs)]
        with self.fleet:
            reader.start()
            names = [self._start_worker() for _ in range(workers)] if rate else []
            self._client.schedule_many(TOPIC, specs)
            self.fleet.start("scheduler")
            names += [self._start_worker() for _ in range(workers - len(names))]
            third = jobs // 3
            _wait(lambda: len(reader.arrived) >= third, patience)
            went = back = time.time()
            if gone_s:
                self._cluster.go()
                time.sleep(gone_s)
                self._cluster.come_back()
                back = time.time()
                _wait(lambda: time.time() > back + 3 * BACK_S, patience)
            killed_at = []
            for number in range(kills):
                share = 2 * third + number * third // kills
                _wait(lambda: len(reader.arrived) >= share, patience)  # noqa: B023  # called here and now
                self.fleet.kill(names.pop(0))
                killed_at.append(time.time())
                names.append(self._start_worker())
            _wait(lambda: len(reader.arrived) >= jobs and not _left(self._info()), patience)
            info = self._info()
            reader.is_stopping = True
            reader.join()
        first_kill = min(killed_at, default=float("inf"))
        at = sorted(arrived for _, arrived in reader.arrived.values())
        first = min((due for due, _ in reader.arrived.values()), default=0.0)
        before = _late_ms(reader, first + BACK_S, went - gone_s)
        after = _late_ms(reader, back + BACK_S, first_kill - 1)
        return Forwarded(
            jobs=jobs,
            kills=len(killed_at),
            gone_s=gone_s,
            lost=jobs - len(reader.arrived),
            doubled=reader.times.total() - len(reader.arrived),
            dead=info.dead,
            left=_left(info),
            per_s=len(at) / max(0.001, at[-1] - at[0]) if at else 0,
            p99_ms=percentile(before, 0.99),
            p99_back_ms=percentile(after, 0.99),
        )

    def close(self) -> None:
        self._client.close()
        self._cluster.close()

    def _start_worker(self) -> str:
        to = f"kafka://{self._cluster.servers}/{TOPIC}"
        return self.fleet.start(FORWARD, to, module="loadtest.kafka")

    def _info(self) -> TopicInfo:
        [info] = [info for info in self._client.topics() if info.name == TOPIC]
        return info


def _late_ms(reader: Reader, since: float, until: float) -> list[float]:
    """Returns how late the jobs arrived that were due in this time, in order."""
    return sorted(1000 * (at - due) for due, at in reader.arrived.values() if since <= due < until)


def _left(info: TopicInfo) -> int:
    return info.waiting + info.ready + info.running + info.retrying


def _wait(fact: Callable[[], bool], patience: float) -> None:
    deadline = time.monotonic() + patience
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.02)


def main() -> int:
    """Measure, then break things; returns 1 if a job was lost, dead or left."""
    arguments = parser("kafka", __doc__)
    arguments.add_argument("--jobs", type=int, default=100_000)
    arguments.add_argument("--rate", type=float, default=500)
    arguments.add_argument("--seconds", type=int, default=90)
    arguments.add_argument("--gone", type=float, default=20)
    arguments.add_argument("--kills", type=int, default=6)
    options = arguments.parse_args()
    tell_load()

    def run(jobs: int, **how: float) -> Forwarded:
        with EmbeddedServer() as server, tempfile.TemporaryDirectory() as directory:
            show = Show(server.url, Path(directory))
            try:
                found = show.run(jobs, **how)  # type: ignore[arg-type]
            finally:
                show.close()
            print(found, "COMPLETE" if found.is_exact else "NOT COMPLETE", flush=True)
            return found

    calm = run(options.jobs)
    hard = run(
        int(options.rate * options.seconds), rate=options.rate, gone_s=options.gone, kills=options.kills, workers=2
    )
    print(f"{calm.per_s:,.0f} messages/s; p99 {hard.p99_ms:.0f} ms late, {hard.p99_back_ms:.0f} ms from 5 s after")
    return not (calm.is_exact and hard.is_exact)


if __name__ == "__main__":
    if sys.argv[1:2] == [FORWARD]:
        _, _, url, settings, to = sys.argv
        command = ["wheelq", "forward", TOPIC, "--to", to, "--url", url, "--config", settings]
        os.execv(sys.executable, [sys.executable, "-m", *command])
    else:
        sys.exit(main())
