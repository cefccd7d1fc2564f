"""A fleet on some servers, and a producer that records its promises, for fault tests."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Self

from loadtest.judge import Promise, Verdict, judge
from loadtest.torture.fleet import Fleet, read_promotions
from tests.waiting import PATIENCE, eventually
from wheelq import Client, JobSpec, Settings
from wheelq.errors import ServerError
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, Durability, TopicSettings
from wheelq.transport import Address, Transport

GROUP = "g"


class Scene:
    """One topic of several shards; the test starts the fleet."""

    def __init__(
        self,
        url: str,
        directory: Path,
        topic: str,
        *,
        shards: int = 6,
        lease_ms: int = 1_500,
        durability: Durability = "server",
    ) -> None:
        self.topic = topic
        self.shards = [Keys().shard(topic, n) for n in range(shards)]
        self.fleet = Fleet(url, directory, lease_ms=lease_ms)
        settings = Settings(
            client=ClientSettings(durability=durability, replicated_timeout_ms=500),
            topic=TopicSettings(shards=shards, retention_ms=3_600_000),
        )
        self.client = Client.connect(url, settings)
        patient = replace(settings, client=replace(settings.client, replicated_timeout_ms=9_000))
        self._patient = Client.connect(url, patient)
        self.transport = Transport(Address(url))
        self.promises: dict[str, Promise] = {}

    def begin(self, schedulers: int = 1) -> None:
        """Start a worker and scheduler nodes, and wait until a job has run in every shard's reader."""
        self.fleet.start("worker", self.topic, GROUP)
        for _ in range(schedulers):
            self.fleet.start("scheduler")
        keys = (f"first-{n}" for n in range(50 * len(self.shards)))
        self.schedule_specs([JobSpec(key=key, delay=0) for key in keys])
        self.wait_for_all()

    def schedule(self, jobs: int, *, first: float, spread: float) -> None:
        """Schedule jobs that fall due evenly over `spread` seconds, the first in `first`."""
        self.schedule_specs([JobSpec(n, delay=first + spread * n / jobs) for n in range(jobs)])

    def schedule_specs(self, specs: list[JobSpec]) -> None:
        """Schedule these jobs, and record what was promised."""
        for receipt in self._patient.schedule_many(self.topic, specs):
            self.promises[receipt.id] = Promise(receipt.due_ms, must_run=True)

    def schedule_for(self, seconds: float, *, delay: float, pause: float = 0.005) -> int:
        """Schedule one job after the other for a while; returns how many calls failed."""
        until, failed = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            key = f"one-{len(self.promises)}-{failed}"
            try:
                receipt = self.client.schedule(self.topic, delay=delay, key=key)
            except ServerError:
                failed += 1
                self.promises[key] = Promise(0, must_run=False)
            else:
                self.promises[receipt.id] = Promise(receipt.due_ms, must_run=True)
            time.sleep(pause)
        return failed

    def wait_for_all(self, patience: float = PATIENCE) -> None:
        """Wait until every promised job has run, or the time is up."""
        must_run = {id for id, promise in self.promises.items() if promise.must_run}
        eventually(lambda: must_run <= {run.id for run in self.fleet.runs()}, patience)

    def verdict(self, patience: float = PATIENCE) -> Verdict:
        """Wait until all promised jobs ran, then judge."""
        self.wait_for_all(patience)
        promotions = []
        for keys in self.shards:
            entries = self.transport.send(command("XRANGE", keys.ready, "-", "+", read=list, key=keys.ready))
            promotions += read_promotions(entries)
        return judge(self.promises, promotions, self.fleet.runs())

    def __enter__(self) -> Self:
        self.fleet.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.fleet.__exit__(*error)
        self._patient.close()
        self.client.close()
        self.transport.close()
