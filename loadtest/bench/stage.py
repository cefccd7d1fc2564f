"""`Stage`: a server, keys and sizes for a scenario. `Play` follows every job of it to its end.

with Play(stage, "orders") as play:
    ids = play.schedule([JobSpec(...), ...])       the promised jobs
    play.start()                                   scheduler and worker, each a process of its own
    runs = play.finish()                           all have run, and both processes have stopped
    play.wrong(runs)                               {"lost": 0, "early": 0, ...}: all 0, or wheelq is broken
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Self

from loadtest.bench.bare import connect, delete
from loadtest.bench.parts import LOOK_S, Part, Runs, run_scheduler, scheduler_and_workers
from loadtest.judge import FaultKind, JobRun, Promise, Promotion, judge
from wheelq import Client, JobSpec, Receipt, Settings
from wheelq.model.job import from_ms
from wheelq.protocol.call import command
from wheelq.protocol.calls.server import info, server_time_us
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport
from wheelq.transport.address import ServerKind

PAYLOAD_BYTES = 64
WARM_UP_JOBS = 500
SETTLE_S = 0.3  # after the last job: time for one that runs twice to show itself
CLOCK_ERROR_MS = 1.0  # a worker estimates the server's clock; promotions are judged by the server's own
PATIENCE_S = 60.0  # after the last due time


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of all scenarios; times are seconds of one round."""

    rounds: int = 3
    bulk: int = 100_000
    single: int = 5_000
    burst: int = 3_500
    steady_s: int = 10
    drain: int = 100_000
    idle: int = 100_000
    idle_s: int = 10
    memory: int = 100_000
    short_s: int = 5
    rate_s: int = 5
    rates: tuple[int, ...] = (10, 100, 1_300, 5_000, 15_000)
    """Jobs a second."""
    highest_s: int = 5
    """How long a rate must hold."""
    payload_bytes: tuple[int, ...] = (64, 4_096, 64_000)
    growth_waiting: tuple[int, ...] = (10_000, 1_000_000)
    """Jobs that wait, in one topic."""
    growth_in_topics: int = 100_000
    """Jobs that wait in all of several topics together."""
    growth_topics: tuple[int, ...] = (1, 100, 3_000)
    growth_s: int = 3
    shares_s: int = 5
    shards: int = 64
    """Of one topic."""
    workers: int = 3
    """Worker processes that share the reads of a topic."""


QUICK = Sizes(
    rounds=1,
    bulk=20_000,
    single=1_000,
    steady_s=4,
    drain=20_000,
    idle=20_000,
    idle_s=6,
    memory=20_000,
    short_s=3,
    rate_s=2,
    rates=(10, 1_300),
    highest_s=1,
    payload_bytes=(64, 4_096),
    growth_waiting=(1_000, 20_000),
    growth_in_topics=20_000,
    growth_topics=(1, 100),
    growth_s=1,
    shares_s=2,
    shards=8,
    workers=2,
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A server, a unique prefix for keys, and the sizes."""

    url: str
    sizes: Sizes
    settings: Settings
    loop: str
    """The event loop of the parts: "asyncio" or "uvloop"."""
    clock_error_ms: float = CLOCK_ERROR_MS
    """How far a worker's estimate of the server's clock may be off, at most."""

    @classmethod
    @contextmanager
    def on(cls, url: str, sizes: Sizes, loop: str, shards: int = 1) -> Iterator[Self]:
        """A stage on this server or cluster; its keys are deleted from a server at the end."""
        prefix = f"wheelq-load-{secrets.token_hex(4)}"
        settings = replace(Settings(), prefix=prefix, topic=TopicSettings(shards=shards))
        try:
            yield cls(url, sizes, settings, loop)
        finally:
            if Address(url).kind is ServerKind.SERVER:
                with connect(url) as client:
                    delete(client, *client.scan_iter(f"{prefix}:*", count=1_000))

    def waiting(self, topic: str) -> int:
        """How many of a topic's jobs wait in Redis for their due time."""
        return sum(self._count(topic, lambda shard: {"ZCARD": shard.delayed}))

    def left(self, topic: str) -> int:
        """Entries that Redis still holds of a topic's jobs. A waiting job has two: its place and its record.

        The entries of finished jobs are not counted, because a new topic keeps them for a minute.
        """
        return sum(
            self._count(topic, lambda shard: {"ZCARD": shard.delayed, "HLEN": shard.jobs, "XLEN": shard.dead}),
        )

    def _count(self, topic: str, what: Callable[[ShardKeys], Mapping[str, str]]) -> list[int]:
        """Send commands about the keys of all shards of a topic; returns their answers."""
        shards = [Keys(self.settings.prefix).shard(topic, n) for n in range(self.settings.topic.shards)]
        with closing(Transport(Address(self.url))) as transport:
            asked = [command(name, key, read=int, key=key) for shard in shards for name, key in what(shard).items()]
            return [transport.send(call) for call in asked]


class Play:
    """One topic (or several), one scheduler and one worker (or several), and the promised jobs."""

    def __init__(self, stage: Stage, topic: str, others: Sequence[str] = (), workers: int = 1) -> None:
        self.topic = topic
        self.topics = (topic, *others)
        self.client = Client.connect(stage.url, stage.settings)
        self.promised: dict[str, Promise] = {}
        self._stage, self._count = stage, workers
        self._held = ExitStack()
        self._transport = self._held.enter_context(closing(Transport(Address(stage.url))))
        self._servers = [self._transport]
        if (address := Address(stage.url)).kind is ServerKind.CLUSTER:
            several = (Transport(Address(f"redis://{node}")) for node in address.nodes)
            self._servers = [self._held.enter_context(closing(one)) for one in several]
        self._parts: tuple[Part, list[Part]] | None = None

    @property
    def scheduler(self) -> Part:
        assert self._parts is not None, "not started"
        return self._parts[0]

    @property
    def workers(self) -> list[Part]:
        assert self._parts is not None, "not started"
        return self._parts[1]

    @property
    def worker(self) -> Part:
        """The only worker."""
        (worker,) = self.workers
        return worker

    def now_ms(self) -> int:
        """The server's clock, in milliseconds since the Unix epoch."""
        return self._transport.send(server_time_us()) // 1_000

    def server_cpu_s(self) -> float:
        """Seconds of processor time that the server has used; of a cluster all nodes together."""
        used = [server.send(info("cpu")) for server in self._servers]
        return sum(float(one["used_cpu_user"]) + float(one["used_cpu_sys"]) for one in used)

    def server_calls(self) -> int:
        """Calls of EVALSHA and XREADGROUP, as the server or the nodes count them."""
        every = [server.send(info("commandstats")) for server in self._servers]
        lines = [one.get(f"cmdstat_{name}", "calls=0,") for one in every for name in ("evalsha", "xreadgroup")]
        return sum(int(line.removeprefix("calls=").partition(",")[0]) for line in lines)

    def schedule(self, specs: Sequence[JobSpec]) -> set[str]:
        """Schedule these jobs, spread evenly over the topics; returns their ids."""
        ids, every = set(), len(self.topics)
        for number, topic in enumerate(self.topics):
            ids |= self.promise(self.client.schedule_many(topic, specs[number::every]))
        return ids

    def promise(self, receipts: Iterable[Receipt]) -> set[str]:
        """Expect these jobs to run; returns their ids."""
        new = {receipt.id: Promise(receipt.due_ms, must_run=True) for receipt in receipts}
        self.promised |= new
        return set(new)

    def start(self) -> None:
        """Start the scheduler and the workers."""
        stage = self._stage
        self._parts = self._held.enter_context(
            scheduler_and_workers(stage.url, stage.settings, self.topics, stage.loop, self._count)
        )

    def promote(self) -> None:
        """Run only a scheduler until it has promoted all due jobs, before there is a worker."""
        stage, give_up = self._stage, time.monotonic() + PATIENCE_S
        with Part(run_scheduler, stage.url, stage.settings, stage.loop) as scheduler:
            while stage.waiting(self.topic):
                if time.monotonic() > give_up:
                    raise TimeoutError("the scheduler does not promote what is due")
                time.sleep(LOOK_S)
            scheduler.stop()

    def warm_up(self) -> None:
        """Start all processes, and run some jobs that are not measured, so that all of them work."""
        count = max(WARM_UP_JOBS, len(self.topics))
        self.schedule(waiting(count, 0.05))
        self.start()
        if not self.wait_for(count, PATIENCE_S):
            raise TimeoutError("scheduler and worker do not begin to work")

    def wait(self) -> None:
        """Wait until all promised jobs have started, or should have started long ago."""
        last_ms = max(promise.earliest_ms for promise in self.promised.values())
        self.wait_for(len(self.promised), max(0, last_ms - self.now_ms()) / 1000 + PATIENCE_S)

    def wait_for(self, starts: int, timeout_s: float) -> bool:
        """Wait until `starts` handlers have started; False if that takes longer than `timeout_s`."""
        give_up = time.monotonic() + timeout_s
        while sum(worker.started() for worker in self.workers) < starts:
            if time.monotonic() > give_up:
                return False
            time.sleep(LOOK_S)
        return True

    def finish(self) -> Runs:
        """Wait for the jobs, then `stop`."""
        self.wait()
        return self.stop()

    def stop(self) -> Runs:
        """Stop the workers and the scheduler cleanly; returns every start of a handler."""
        time.sleep(SETTLE_S)
        runs = Runs.joined([worker.stop() for worker in self.workers])
        self.scheduler.stop()
        return runs

    def wrong(self, runs: Runs, resting: int = 0) -> dict[str, int]:
        """Returns how many jobs were lost, early or doubled, ran without being scheduled, or are still in Redis.

        `resting` is the number of jobs that still wait as they should.
        """
        promotions, starts = {}, []
        for id, entry_id, due_ms, started_ms in runs.rows():
            promotions[entry_id] = Promotion(id, due_ms, int(entry_id.partition("-")[0]))
            starts.append(JobRun(id, entry_id, started_ms))
        verdict = judge(self.promised, promotions.values(), starts, run_clock_error_ms=self._stage.clock_error_ms)
        return {
            "lost": verdict.count(FaultKind.LOST),
            "early": verdict.count(FaultKind.EARLY),
            "doubled": verdict.count(FaultKind.DOUBLED) + verdict.reruns,
            "unknown": verdict.count(FaultKind.UNKNOWN),
            "left behind": sum(map(self._stage.left, self.topics)) - 2 * resting,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._held.close()


def waiting(count: int, delay_s: float, payload_bytes: int = PAYLOAD_BYTES) -> list[JobSpec]:
    """Jobs with random payloads, due after this delay."""
    return [JobSpec(payload, delay_s) for payload in payloads(count, payload_bytes)]


def due_apart(first_ms: int, count: int, every_ms: float, payload_bytes: int = PAYLOAD_BYTES) -> list[JobSpec]:
    """Jobs with random payloads, the first due at `first_ms` of the server's clock, each `every_ms` after the other."""
    return [
        JobSpec(payload, at=from_ms(first_ms + int(number * every_ms)))
        for number, payload in enumerate(payloads(count, payload_bytes))
    ]


def payloads(count: int, size: int = PAYLOAD_BYTES) -> Sequence[bytes]:
    """Random payloads, which no server can share or compress."""
    return [os.urandom(size) for _ in range(count)]
