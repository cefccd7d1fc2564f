"""Debounced jobs (`max_wait`) where calls race, replies get lost, servers are away and releases meet."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from loadtest.torture.fleet import Fleet
from tests.faults.stages import HARMLESS, Look
from tests.faults.test_draining import standing
from tests.faults.test_lost_replies import client_with
from tests.faults.test_upgrade import former as former  # a fixture
from tests.found import job_of
from tests.running import running
from tests.transports import ALWAYS, BlockingWith, Fault, ReplyLost, Unreachable
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, Client, Job, JobState, Receipt, Settings, Worker
from wheelq.admin import Inspector
from wheelq.base.clock import ManualClock
from wheelq.embedded import EmbeddedServer
from wheelq.protocol import codec
from wheelq.protocol.keys import Keys
from wheelq.scheduler.draining import Draining
from wheelq.scheduler.parts import NodeParts
from wheelq.settings import OutboxSettings
from wheelq.transport import AsyncTransport

SECOND = "doc~second"


def index(client: Client, topic: str, payload: object, delay: float = 60, max_wait: float = 90) -> Receipt[Any]:
    return client.schedule(topic, payload, key="doc", delay=delay, max_wait=max_wait, on_duplicate="replace")


# Lost replies


@pytest.mark.parametrize("fault", [ReplyLost, *HARMLESS])
@pytest.mark.parametrize("made", ["created", "replaced", "second", "second replaced", "refused"])
def test_a_repeated_call_gets_the_first_answer(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault], made: str
) -> None:
    plain = Client.connect(url)
    if made != "created":
        index(plain, topic, 0)
    if made not in ("created", "replaced"):
        plain.run_now(topic, "doc")
    if made in ("second replaced", "refused"):
        index(plain, topic, 1)
    if made == "refused":
        plain.run_now(topic, SECOND)
    client = client_with(url, struck := fault("schedule"))
    receipt = index(client, topic, 2, max_wait=60)
    assert struck.struck == 1
    assert receipt.id == ("doc" if made in ("created", "replaced") else SECOND)
    assert receipt.created == (made != "refused")
    info = job_of(plain, topic, receipt.id)
    assert (info.payload == 2) == (made != "refused")
    assert info.due_ms == receipt.due_ms
    assert len(Look(raw, topic).live()) == (1 if made in ("created", "replaced") else 2)


def test_a_call_that_is_repeated_when_its_job_has_run_makes_no_other(url: str, topic: str, raw: redis.Redis) -> None:
    """Its answer was lost; then its job was promoted, and the next call has made the second."""
    one, other = Client.connect(url), Client.connect(url)

    class Meanwhile(ReplyLost):
        def strike(self, call: Any) -> list[Any]:
            found = super().strike(call)
            if self.struck:
                meanwhile.append(call)
            return found

    meanwhile: list[Any] = []
    client = Client(BlockingWith(url, Meanwhile("schedule")))
    index(client, topic, 1)
    other.run_now(topic, "doc")
    assert index(one, topic, 2).id == SECOND
    assert job_of(one, topic, SECOND).payload == 2
    assert Look(raw, topic).live() == {"doc", SECOND}


# The outbox


def test_calls_that_an_outbox_held_make_one_run_and_count_from_when_they_were_made(
    url: str, topic: str, raw: redis.Redis, tmp_path: Path
) -> None:
    outbox = OutboxSettings(path=str(tmp_path / "outbox.db"))
    with Client(BlockingWith(url, Unreachable(times=ALWAYS)), outbox=outbox) as client:
        assert all(index(client, topic, n, delay=0, max_wait=1).in_outbox for n in range(20))
    look = Look(raw, topic)
    asked_by_ms = time_of(raw)
    with Client.connect(url, outbox=str(tmp_path / "outbox.db")) as client:
        off_by_ms = round_trip_ms(client, raw, topic)
        let_pass(raw, asked_by_ms + off_by_ms + 10)
        client.deliver_outbox()
        info = job_of(client, topic, "doc")
        assert (info.payload, info.state) == (19, JobState.WAITING)
        assert info.scheduled_ms is not None
        assert info.due_ms <= asked_by_ms + off_by_ms
        assert info.scheduled_ms <= asked_by_ms + off_by_ms
    assert (look.live() - {"known"}, look.ready()) == ({"doc"}, [])


def test_a_call_with_a_moment_that_an_outbox_held_is_bounded_from_when_it_was_made(
    url: str, topic: str, raw: redis.Redis, tmp_path: Path
) -> None:
    outbox = OutboxSettings(path=str(tmp_path / "outbox.db"))
    with Client(BlockingWith(url, Unreachable("schedule", after=1, times=ALWAYS)), outbox=outbox) as client:
        off_by_ms = round_trip_ms(client, raw, topic)
        options: dict[str, Any] = {"key": "doc", "max_wait": 1, "on_duplicate": "replace"}
        assert client.schedule(topic, at=datetime.now(UTC) + timedelta(hours=1), **options).in_outbox
    made_by_ms = time_of(raw)
    let_pass(raw, made_by_ms + off_by_ms + 10)
    with Client.connect(url, outbox=str(tmp_path / "outbox.db")) as client:
        client.deliver_outbox()
        assert job_of(client, topic, "doc").due_ms <= made_by_ms + 1_000 + off_by_ms


def round_trip_ms(client: Client, raw: redis.Redis, topic: str) -> int:
    """By how much the client's times may be ahead of the server's: what its first call took, and what rounding adds."""
    asked_ms = time_of(raw)
    client.schedule(topic, delay=60, key="known")
    return time_of(raw) - asked_ms + 2


def let_pass(raw: redis.Redis, moment_ms: int) -> None:
    while time_of(raw) < moment_ms:
        pass


def time_of(raw: redis.Redis) -> int:
    seconds, micros = raw.time()
    return int(seconds) * 1000 + int(micros) // 1000


# Shards


async def test_draining_ends_although_the_second_job_belongs_to_the_shard_of_its_key(
    client: Client, transport: AsyncTransport, settings: Settings, topic: str, clock: ManualClock
) -> None:
    client.schedule(topic, delay=3600, key="elsewhere")
    client.cancel(topic, "elsewhere")
    client.set_shards(topic, 3)
    key = next(key for n in range(1000) if placed_in(key := f"k{n}", 0, 2) and not placed_in(f"{key}~second", 0, 2))
    client.set_shards(topic, 2)
    options: dict[str, Any] = {"key": key, "delay": 60, "max_wait": 90, "on_duplicate": "replace"}
    client.schedule(topic, **options)
    client.run_now(topic, key)
    client.schedule(topic, **options)
    clearing = Draining(NodeParts(transport, Keys(settings.prefix), clock), lambda: [topic])
    await clearing.step()
    assert standing(client, topic).draining == ()


def placed_in(key: str, shard: int, shards: int) -> bool:
    from wheelq.model.topic import shard_of

    return shard_of(key, shards) == shard


# Two releases


def test_the_release_before_reads_a_debounced_job_and_keeps_its_bound(former: Path) -> None:
    record = codec.encode({"n": 1}, {"h": "x"}, 100, codec.Parts("p", 60_000, max_attempts=3))
    program = (
        "import sys; from wheelq.protocol import codec;"
        "record = bytes.fromhex(sys.argv[1]); found = codec.decode(record);"
        "assert (found.payload, found.partition_key, found.headers) == ({'n': 1}, 'p', {'h': 'x'}), found;"
        "print(codec.again(record, 1_000, 'it broke', counts=True).hex())"
    )
    environment = os.environ | {"PYTHONPATH": str(former)}
    command = [sys.executable, "-c", program, record.hex()]
    said = subprocess.run(command, env=environment, cwd=former, capture_output=True, text=True, check=True).stdout
    assert codec.parts_of(bytes.fromhex(said.strip())) == codec.Parts("p", 60_000, max_attempts=3)


def test_a_client_of_the_release_before_replaces_and_cancels_debounced_jobs(
    former: Path, private_server: Callable[..., EmbeddedServer]
) -> None:
    url = private_server().url
    program = (
        "import sys; from wheelq import Client; client = Client.connect(sys.argv[1]);"
        "assert client.get('orders', 'doc').payload == 1;"
        "assert client.schedule('orders', 2, key='doc', delay=100, on_duplicate='replace').replaced;"
        "assert client.reschedule('orders', 'doc', delay=200) == 'rescheduled'"
    )
    with Client.connect(url) as client:
        index(client, "orders", 1)
        environment = os.environ | {"PYTHONPATH": str(former)}
        subprocess.run([sys.executable, "-c", program, url], env=environment, cwd=former, check=True, timeout=PATIENCE)
        assert job_of(client, "orders", "doc").payload == 2
        assert index(client, "orders", 3, delay=5).replaced


# A race


@dataclass
class Run:
    id: str
    payload: object
    made_ms: int
    due_ms: int
    promoted_ms: int


KEYS, PRODUCERS, CALLS, DELAY, MAX_WAIT = 1_000, 20, 400, 0.4, 1.2
BUSY_MS = 3_000
"""How much later than it could a job may be promoted on a machine that is busy with other things."""


@pytest.mark.long
async def test_twenty_producers_race_over_a_thousand_keys_and_a_scheduler_is_killed(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """Each job that a call made runs once, with the last payload that it was given, and never beyond its bound.

    No two jobs of a key wait at the same time: the next is made after the one before was promoted.
    """
    url = private_server().url
    runs: list[Run] = []
    answers: defaultdict[str, list[tuple[Receipt[Any], object]]] = defaultdict(list)
    chance = random.Random(20)
    worker = Worker.connect(url, group="g", concurrency=100)

    @worker.handler("index")
    async def handle(job: Job) -> None:
        runs.append(Run(job.id, tuple(job.payload), job.scheduled_ms, job.due_ms, job.promoted_ms))

    async def call(client: AsyncClient, key: str, payload: tuple[int, int]) -> None:
        receipt = await client.schedule(
            "index", payload, key=key, delay=DELAY, max_wait=MAX_WAIT, on_duplicate="replace"
        )
        answers[key].append((receipt, payload))

    async def produce(client: AsyncClient, number: int) -> None:
        for n in range(CALLS):
            await call(client, f"doc-{int(chance.triangular(0, KEYS, 0)) % KEYS}", (number, n))

    with Fleet(url, tmp_path, lease_ms=1_500) as fleet, Inspector.connect(url) as inspector:
        leader = fleet.start("scheduler")
        async with AsyncClient.connect(url) as client, running(worker):
            await call(client, "doc-0", (PRODUCERS, -1))
            await until(lambda: bool(runs))
            fleet.start("scheduler")

            async def are_two() -> bool:
                return len(await asyncio.to_thread(inspector.nodes)) == 2

            await until(are_two)
            producing = asyncio.gather(*(produce(client, number) for number in range(PRODUCERS)))
            await until(lambda: len(runs) > 200)
            fleet.kill(leader)
            await producing
            for key in range(KEYS):
                await call(client, f"doc-{key}", (PRODUCERS, key))

            async def is_over() -> bool:
                [info] = await client.topics()
                return not (info.waiting or info.ready or info.running)

            await until(is_over)
    of_key = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.promoted_ms):
        of_key[run.id.removesuffix("~second")].append(run)
    assert len(of_key) == KEYS
    for key, its in of_key.items():
        made = [receipt for receipt, _ in answers[key] if receipt.created and not receipt.replaced]
        assert len(made) == len(its), key
        assert all(earlier.promoted_ms <= later.made_ms for earlier, later in pairwise(its)), key
        refused = {payload for receipt, payload in answers[key] if not receipt.created}
        last = (PRODUCERS, int(key.removeprefix("doc-")))
        assert its[-1].payload == last or last in refused
    assert all(run.due_ms <= run.made_ms + MAX_WAIT * 1000 for run in runs)
    promoted = sorted(run.promoted_ms for run in runs)
    handover_ms = max(later - earlier for earlier, later in pairwise(promoted))
    assert max(run.promoted_ms - run.due_ms for run in runs) < handover_ms + BUSY_MS
    assert any(receipt.replaced for its in answers.values() for receipt, _ in its)
