"""A schedule call whose reply is lost is repeated, and makes each job once, even if it has run meanwhile.

Lost    the server does the call; then something happens; its reply never comes
Held    the call gets stuck on its way; something happens; `deliver` lets it arrive, after its repeat
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers.cluster import Cluster
from loadtest.servers.sentinel import Watched
from tests.transports import AsyncWith, BlockingWith, Fault
from tests.waiting import eventually
from wheelq import AsyncClient, Client, Job, JobSpec, Receipt, Scheduler, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.errors import OutcomeUnknown, TopicFull
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls import producer
from wheelq.protocol.calls import worker as worker_calls
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, TopicSettings, WorkerSettings
from wheelq.transport import Address, Transport

Happening = Callable[[], object]
KINDS = ["blocking", "asyncio"]
SHARDS = 4
"""The most shards of a topic here."""
CALLS = 20


class Lost(Fault):
    """The server does the call, then something happens, and the reply never comes."""

    def __init__(self, happening: Happening, name: str = "schedule", *, after: int = 0, times: int = 1) -> None:
        super().__init__(name, after=after, times=times)
        self._happening = happening

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        def lose(reply: object) -> None:
            self._happening()
            raise OutcomeUnknown(f"the reply to {call.name} was lost")

        return [replace(call, read=lose)]


class Held(Lost):
    """The call gets stuck on its way, and something happens; `deliver` lets it arrive."""

    _call: Call[Any]

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        self._call = call
        self._happening()
        raise OutcomeUnknown(f"no reply to {call.name}")

    def deliver(self, transport: Transport) -> None:
        transport.send(self._call)


class Runner:
    """Promotes all jobs of a topic, runs and finishes them, and counts how often each has run."""

    def __init__(self, url: str, topic: str) -> None:
        self.transport = Transport(Address(url))
        self.shards = [Keys().shard(topic, n) for n in range(SHARDS)]
        self.runs: Counter[str] = Counter()

    def run(self) -> None:
        for keys in self.shards:
            waiting = command("ZRANGE", keys.delayed, 0, -1, read=list, key=keys.delayed)
            for id in self.transport.send(waiting):
                self.transport.send(producer.run_now(keys, id.decode()))
            self.transport.send(worker_calls.make_group(keys, "g"))
            [entries] = self.transport.send(worker_calls.read([keys], "g", "w1", 1_000, 1))
            self.runs.update(entry.id for entry in entries)
            done = [(entry.entry_id, entry.member) for entry in entries]
            for first in range(0, len(done), 500):
                self.transport.send(worker_calls.ack(keys, "g", "w1", 0, 0, done[first : first + 500]))


@pytest.fixture
def runner(url: str, topic: str) -> Iterator[Runner]:
    runner = Runner(url, topic)
    yield runner
    runner.transport.close()


class Producer:
    """A client of either kind, with faults. Not for use on an event loop."""

    def __init__(self, kind: str, url: str, *faults: Fault, settings: Settings | None = None) -> None:
        self._kind, self._url, self._faults, self._settings = kind, url, faults, settings or Settings()

    def ask(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client."""
        settings = self._settings
        of_topic = (Keys(settings.prefix), settings.client, settings.topic)
        if self._kind == "blocking":
            with Client(BlockingWith(self._url, *self._faults), *of_topic) as client:
                return _method(client, name)(*args, **options)

        async def ask() -> Any:
            async with AsyncClient(AsyncWith(self._url, *self._faults), *of_topic) as client:
                return await _method(client, name)(*args, **options)

        return asyncio.run(ask())

    def schedule(self, *args: Any, **options: Any) -> Receipt:
        receipt: Receipt = self.ask("schedule", *args, **options)
        return receipt


def _method(client: object, name: str) -> Callable[..., Any]:
    for part in name.split("."):
        client = getattr(client, part)
    return client  # type: ignore[return-value]


# With a scheduler and a worker, on every kind of server


@pytest.fixture(scope="module")
def servers(server_binary: Path) -> Iterator[Callable[[str], str]]:
    """Starts a kind of server at its first use; its URL."""
    urls: dict[str, str] = {}
    with ExitStack() as running:

        def start(kind: str) -> str:
            if kind not in urls:
                made: dict[str, Callable[[], Any]] = {
                    "one server": lambda: EmbeddedServer(binary=server_binary, appendonly=False),
                    "Sentinel": lambda: Watched(server_binary, down_after_ms=60_000),
                    "Cluster": lambda: Cluster(server_binary),
                }
                urls[kind] = running.enter_context(made[kind]()).url
            return urls[kind]

        yield start


@pytest.mark.parametrize("fault", [Lost, Held])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("servers_kind", "durability"),
    [
        ("one server", "server"),
        pytest.param("Sentinel", "server", marks=pytest.mark.long),
        pytest.param("Sentinel", "replicated", marks=pytest.mark.long),
        pytest.param("Cluster", "server", marks=pytest.mark.long),
    ],
)
async def test_jobs_that_ran_before_their_call_was_repeated_run_once(
    servers: Callable[[str], str],
    prefix: str,
    topic: str,
    servers_kind: str,
    durability: Any,
    kind: str,
    fault: type[Lost],
) -> None:
    """Each is due after 50 ms, and its worker has forgotten it when the next call comes."""
    url = await asyncio.to_thread(servers, servers_kind)
    settings = Settings(
        prefix=prefix, worker=WorkerSettings(block_ms=500), client=ClientSettings(durability=durability)
    )
    scheduler, worker = Scheduler.connect(url, settings), Worker.connect(url, group="g", settings=settings)
    runs: Counter[str] = Counter()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        runs[job.id] += 1

    plain, keys = Transport(Address(url)), Keys(prefix).shard(topic, 0)

    def has_ended() -> bool:
        return sum(runs.values()) > made and plain.send(command("HLEN", keys.jobs, read=int, key=keys.jobs)) == 0

    def wait_for_its_end() -> None:
        assert eventually(has_ended)

    running = [asyncio.create_task(one.run()) for one in (scheduler, worker)]
    receipts = []
    for made in range(CALLS):  # noqa: B007  # `has_ended` compares with it
        struck = fault(wait_for_its_end if fault is Lost else lambda: None)
        client = Producer(kind, url, struck, settings=settings)
        receipts.append(await asyncio.to_thread(client.schedule, topic, delay=0.05))
        assert struck.struck == 1
        await asyncio.to_thread(wait_for_its_end)
        if isinstance(struck, Held):
            await asyncio.to_thread(struck.deliver, plain)
    await asyncio.to_thread(Producer(kind, url, settings=settings).schedule, topic, delay=0, key="last")
    assert await asyncio.to_thread(eventually, lambda: runs["last"] == 1)
    assert [receipt.created for receipt in receipts] == [True] * CALLS
    assert runs == Counter([*(receipt.id for receipt in receipts), "last"])
    for one in (worker, scheduler):
        one.stop()
    await asyncio.gather(*running)
    plain.close()


# With a runner


def reshard(url: str, topic: str, shards: int) -> None:
    with Client.connect(url) as other:
        other.set_shards(topic, shards)


def remove(url: str, topic: str) -> None:
    with Client.connect(url, Settings(client=ClientSettings(topics_ttl_ms=1))) as other:
        other.remove_topic(topic, force=True)


def in_turn(*happenings: Happening) -> Happening:
    return lambda: [happening() for happening in happenings]


@pytest.mark.parametrize("fault", [Lost, Held])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(1, SHARDS), (SHARDS, 1)])
@pytest.mark.parametrize(
    ("delay", "key", "has_run"),
    [
        (0.05, None, True),
        (0.05, None, False),
        (0.05, "order-42", True),
        (0.05, "order-42", False),
        (3600, None, False),
        (3600, "order-42", True),
        (3600, "order-42", False),
    ],
)
def test_a_call_repeated_after_a_reshard_makes_its_job_once(
    url: str,
    topic: str,
    runner: Runner,
    delay: float,
    has_run: bool,
    key: str | None,
    before: int,
    after: int,
    kind: str,
    fault: type[Lost],
) -> None:
    """Nobody but the caller knows the id that was made for a far job, so it has not run."""
    settings = Settings(topic=TopicSettings(shards=before))
    happenings = ([runner.run] if has_run else []) + [lambda: reshard(url, topic, after)]
    struck = fault(in_turn(*happenings))
    receipt = Producer(kind, url, struck, settings=settings).schedule(topic, delay=delay, key=key)
    assert (struck.struck, receipt.created) == (1, True)
    runner.run()
    if isinstance(struck, Held):
        struck.deliver(runner.transport)
        runner.run()
    assert runner.runs == {receipt.id: 1}


@pytest.mark.parametrize("fault", [Lost, Held])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_repeated_after_its_topic_was_removed_makes_its_job_once(
    url: str, topic: str, runner: Runner, kind: str, fault: type[Lost]
) -> None:
    struck = fault(in_turn(runner.run, lambda: remove(url, topic)))
    receipt = Producer(kind, url, struck).schedule(topic, delay=0.05)
    assert (struck.struck, receipt.created) == (1, True)
    runner.run()
    if isinstance(struck, Held):
        struck.deliver(runner.transport)
        runner.run()
    assert runner.runs == {receipt.id: 1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delay", [0.05, 10])
def test_a_call_repeated_when_its_topic_is_full_was_done(
    url: str, topic: str, runner: Runner, delay: float, kind: str
) -> None:
    settings = Settings(topic=TopicSettings(max_pending=1))

    def fill() -> None:
        Producer("blocking", url, settings=settings).schedule(topic, delay=3600, key="another")

    receipt = Producer(kind, url, Lost(in_turn(runner.run, fill)), settings=settings).schedule(topic, delay=delay)
    assert receipt.created
    runner.run()
    assert runner.runs == {receipt.id: 1, "another": 1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_a_call_that_a_full_topic_refused_stays_refused(
    url: str, topic: str, runner: Runner, count: int, kind: str
) -> None:
    """The repeat is told so, although there is room now; the caller may schedule again."""
    settings = Settings(topic=TopicSettings(max_pending=1))
    specs = [JobSpec(delay=10, key=f"order-{n}") for n in range(count)]
    Producer(kind, url, settings=settings).schedule(topic, delay=3600, key="another")
    client = Producer(kind, url, struck := Lost(runner.run), settings=settings)
    with pytest.raises(TopicFull):
        client.ask("schedule_many", topic, specs) if count > 1 else client.schedule(topic, delay=10, key="order-0")
    assert struck.struck == 1
    runner.run()
    assert runner.runs == {"another": 1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("keyed", [False, True], ids=["made ids", "keys"])
def test_many_jobs_run_once_although_a_reply_was_lost(
    url: str, topic: str, runner: Runner, keyed: bool, batch: int, shards: int, kind: str
) -> None:
    struck = Lost(runner.run, after=batch)
    client = Producer(kind, url, struck, settings=Settings(topic=TopicSettings(shards=shards)))
    specs = [JobSpec(n, delay=0.05, key=f"order-{n}" if keyed else None) for n in range(600)]
    receipts: Iterable[Receipt] = client.ask("schedule_many", topic, specs)
    assert struck.struck == 1
    runner.run()
    assert all(receipt.created for receipt in receipts)
    assert runner.runs == Counter(receipt.id for receipt in receipts)
    assert len(runner.runs) == 600


@pytest.mark.parametrize("fault", [Lost, Held])
@pytest.mark.parametrize("kind", KINDS)
def test_a_recurring_job_that_is_triggered_runs_once(
    url: str, topic: str, runner: Runner, kind: str, fault: type[Lost]
) -> None:
    Producer(kind, url).ask("recurring.put", topic, "nightly", every=86_400)
    receipt = Producer(kind, url, struck := fault(runner.run)).ask("recurring.trigger", topic, "nightly")
    assert (struck.struck, receipt.created) == (1, True)
    runner.run()
    if isinstance(struck, Held):
        struck.deliver(runner.transport)
        runner.run()
    assert runner.runs == {receipt.id: 1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("repeats", [0, 1, 3])
def test_the_outcome_is_unknown_when_every_reply_was_lost(
    url: str, topic: str, runner: Runner, repeats: int, kind: str
) -> None:
    struck = Lost(runner.run, times=repeats + 1)
    client = Producer(kind, url, struck, settings=Settings(client=ClientSettings(repeats=repeats)))
    with pytest.raises(OutcomeUnknown) as caught:
        client.schedule(topic, delay=0.05)
    assert struck.struck == repeats + 1
    runner.run()
    assert runner.runs == dict.fromkeys(caught.value.ids, 1)
