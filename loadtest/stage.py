"""Where a scenario plays: a server, keys of its own, and the sizes; and `Play`, which follows every job to its end.

with Play(stage, "orders") as play:
    ids = play.schedule([JobSpec(...), ...])       what was promised
    play.start()                                   scheduler and worker, each a process of its own
    runs = play.finish()                           all ran, both have stopped
    play.wrong(runs)                               {"lost": 0, "early": 0, ...}: nothing, or wheelq is broken
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from loadtest.bare import connect, delete
from loadtest.checker import Promise, Promotion, Run, judge
from loadtest.parts import Part, Runs, scheduler_and_worker
from wheelq import Client, JobSpec, Receipt, Settings
from wheelq.protocol.call import command
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport
from wheelq.transport.address import Kind

PAYLOAD_BYTES = 64
WARM_UP_JOBS = 500
SETTLE_S = 0.3  # after the last job: time for one that runs twice to show itself
CLOCK_ERROR_MS = 1.0  # the worker estimates the server's clock; a promotion is judged by the server's own
PATIENCE_S = 60.0  # after the last due time


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything; times in seconds."""

    rounds: int = 3
    bulk: int = 100_000
    single: int = 5_000
    burst: int = 3_500
    steady_s: int = 15
    drain: int = 100_000
    idle: int = 100_000
    idle_s: int = 20
    memory: int = 100_000
    short_s: int = 10


QUICK = Sizes(
    rounds=1, bulk=20_000, single=1_000, steady_s=4, drain=20_000, idle=20_000, idle_s=6, memory=20_000, short_s=3
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A server, a prefix that nobody else's keys have, and the sizes."""

    url: str
    sizes: Sizes
    settings: Settings
    loop: str
    """What the parts run on: "asyncio" or "uvloop"."""

    @classmethod
    @contextmanager
    def on(cls, url: str, sizes: Sizes, loop: str, shards: int = 1) -> Iterator[Self]:
        """A stage on this server, or on a cluster of its own; what was left on a server is deleted at the end."""
        prefix = f"wheelq-load-{secrets.token_hex(4)}"
        settings = replace(Settings(), prefix=prefix, topic=TopicSettings(shards=shards))
        try:
            yield cls(url, sizes, settings, loop)
        finally:
            if Address(url).kind is Kind.SERVER:
                with connect(url) as client:
                    delete(client, *client.scan_iter(f"{prefix}:*", count=1_000))

    def waiting(self, topic: str) -> int:
        """How many of a topic's jobs wait in Redis for their due time."""
        return sum(self._count(topic, lambda shard: {"ZCARD": shard.delayed}))

    def left(self, topic: str) -> int:
        """What Redis still holds of a topic's jobs: waiting, recorded, ready and dead ones."""
        return sum(
            self._count(
                topic,
                lambda shard: {"ZCARD": shard.delayed, "HLEN": shard.jobs, "XLEN": shard.ready, "xlen": shard.dead},
            )
        )

    def _count(self, topic: str, what: Callable[[ShardKeys], Mapping[str, str]]) -> list[int]:
        """What commands say of keys, in all shards of a topic."""
        shards = [Keys(self.settings.prefix).shard(topic, n) for n in range(self.settings.topic.shards)]
        with closing(Transport(Address(self.url))) as transport:
            asked = [command(name, key, read=int, key=key) for shard in shards for name, key in what(shard).items()]
            return [transport.send(call) for call in asked]


class Play:
    """One topic, one scheduler and one worker; knows what was promised."""

    def __init__(self, stage: Stage, topic: str) -> None:
        self.topic = topic
        self.client = Client.connect(stage.url, stage.settings)
        self.promised: dict[str, Promise] = {}
        self._stage = stage
        self._held = ExitStack()
        self._transport = self._held.enter_context(closing(Transport(Address(stage.url))))
        self._parts: tuple[Part, Part] | None = None

    @property
    def scheduler(self) -> Part:
        assert self._parts is not None, "not started"
        return self._parts[0]

    @property
    def worker(self) -> Part:
        assert self._parts is not None, "not started"
        return self._parts[1]

    def now_ms(self) -> int:
        """The server's clock, in milliseconds since the Unix epoch."""
        return self._transport.send(registry.server_time_us()) // 1_000

    def server_cpu_s(self) -> float:
        """Seconds of processor time that the server has used (of a cluster one node)."""
        used = self._transport.send(registry.info("cpu"))
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    def schedule(self, specs: Iterable[JobSpec]) -> set[str]:
        """Schedule these; their ids."""
        return self.promise(self.client.schedule_many(self.topic, specs))

    def promise(self, receipts: Iterable[Receipt]) -> set[str]:
        """From now on these are expected to run; their ids."""
        new = {receipt.id: Promise(receipt.due_ms, must_run=True) for receipt in receipts}
        self.promised |= new
        return set(new)

    def start(self) -> None:
        """Start the scheduler and the worker."""
        stage = self._stage
        self._parts = self._held.enter_context(scheduler_and_worker(stage.url, stage.settings, self.topic, stage.loop))

    def warm_up(self) -> None:
        """Start both, and let some jobs through that are not measured: afterwards both work for sure."""
        self.schedule(waiting(WARM_UP_JOBS, 0.05))
        self.start()
        if not self.worker.wait_for(WARM_UP_JOBS, PATIENCE_S):
            raise TimeoutError("scheduler and worker do not begin to work")

    def wait(self) -> None:
        """Wait until everything promised was started, or should have been long ago."""
        last_ms = max(promise.earliest_ms for promise in self.promised.values())
        self.worker.wait_for(len(self.promised), max(0, last_ms - self.now_ms()) / 1000 + PATIENCE_S)

    def finish(self) -> Runs:
        """Wait for the jobs, then `stop`."""
        self.wait()
        return self.stop()

    def stop(self) -> Runs:
        """End the worker and the scheduler in good order; every start of a handler."""
        time.sleep(SETTLE_S)
        runs: Runs = self.worker.stop()
        self.scheduler.stop()
        return runs

    def wrong(self, runs: Runs) -> dict[str, int]:
        """How many jobs were lost, early, doubled; or ran that nobody scheduled; or are still in Redis afterwards."""
        promotions, starts, started_early = {}, [], set()
        for id, entry_id, due_ms, started_ms in runs.rows():
            promotions[entry_id] = Promotion(id, due_ms, int(entry_id.partition("-")[0]))
            starts.append(Run(id, entry_id, started_ms, ""))
            if started_ms < due_ms - CLOCK_ERROR_MS:
                started_early.add(id)
        verdict = judge(self.promised, promotions.values(), starts)
        return {
            "lost": len(verdict.lost),
            "early": len(started_early.union(verdict.early)),
            "doubled": len(verdict.doubled) + verdict.reruns,
            "unknown": len(verdict.unknown),
            "left behind": self._stage.left(self.topic),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._held.close()


def waiting(count: int, delay_s: float) -> list[JobSpec]:
    """Jobs with random payloads, due after this delay."""
    return [JobSpec(payload, delay_s) for payload in payloads(count)]


def payloads(count: int) -> Sequence[bytes]:
    """Payloads that no server can share or pack."""
    return [os.urandom(PAYLOAD_BYTES) for _ in range(count)]
