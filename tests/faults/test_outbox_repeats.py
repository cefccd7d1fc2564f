"""An outbox repeats its calls: no job is made twice and none is lost, although jobs have run and are forgotten by then.

No scheduler runs here. Overdue jobs go straight to the ready stream, where each promotion leaves an entry.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers.cluster import Cluster
from loadtest.servers.sentinel import Watched
from tests.records import tags_of
from tests.transports import ALWAYS, AsyncWith, BlockingWith, Fault, ReplyLost, Unreachable
from tests.unit.test_outbox import in_a_fork
from tests.waiting import eventually, until
from wheelq import AsyncClient, Client, JobSpec, Settings
from wheelq.base.clock import ManualClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import OutcomeUnknown
from wheelq.producer.outbox import store
from wheelq.producer.outbox.kept import PARCELS_MS
from wheelq.producer.outbox.store import Outbox
from wheelq.producer.scheduling import Scheduling
from wheelq.protocol.call import Call, command
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.scheduler.draining import Draining
from wheelq.scheduler.parts import NodeParts
from wheelq.settings import BreakerSettings, OutboxSettings, TopicSettings
from wheelq.transport import Address, AsyncTransport, Transport

TOPIC = "orders"
OVERDUE = datetime(2020, 1, 1, tzinfo=UTC)
NEVER_OPEN = BreakerSettings(failures=10**6)
NEVER_MS = 3_600_000


@pytest.fixture
def url(private_server: Callable[..., EmbeddedServer]) -> str:
    return private_server().url


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


class Hasty(Fault):
    """When a call arrives, all earlier jobs of its shard have run and are forgotten."""

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        return [command("DEL", call.keys[1], read=int, key=call.keys[1]), call]


class Lossy(ReplyLost):
    """A quarter of the replies is lost."""

    def __init__(self) -> None:
        super().__init__(times=ALWAYS)
        self._random = random.Random(25)
        self.lost = Counter[str]()

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        if self._random.random() >= 0.25:
            return [call]
        self.lost[call.name] += 1
        return super().strike(call)


class OnItsWay(Fault):
    """The bytes of a call are still in a dead connection."""

    caught: Call[Any]

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        self.caught = call
        raise OutcomeUnknown("no reply")


def hasty() -> Hasty:
    return Hasty("schedule", times=ALWAYS)


def shards(number: int) -> list[ShardKeys]:
    return [Keys().shard(TOPIC, n) for n in range(number)]


def promotions(url: str, number: int = 1) -> Counter[str]:
    """How often each job was promoted, in these first shards."""
    transport = Transport(Address(url))
    entries = [
        entry for keys in shards(number) for entry in transport.send(command("XRANGE", keys.ready, "-", "+", read=list))
    ]
    return Counter(fields[1].decode() for _, fields in entries)


def finish(url: str, number: int = 1) -> Counter[str]:
    """All jobs of these first shards have run and are forgotten. Returns how often each was promoted."""
    found, transport = promotions(url, number), Transport(Address(url))
    for keys in shards(number):
        transport.send(command("UNLINK", keys.jobs, keys.ready, read=int, key=keys.jobs))
    return found


def keep(path: Path, specs: Iterable[JobSpec]) -> None:
    """A producer of an absent server puts jobs into the outbox, and ends."""
    away = BlockingWith("redis://127.0.0.1:1", Unreachable(times=ALWAYS))
    with Client(away, outbox=OutboxSettings(path=str(path))) as client:
        assert all(receipt.in_outbox for receipt in client.schedule_many(TOPIC, specs))


def overdue(*ids: str) -> list[JobSpec]:
    return [JobSpec(at=OVERDUE, key=id) for id in ids]


def is_empty(path: Path) -> bool:
    return Outbox(OutboxSettings(path=str(path))).is_empty


@contextmanager
def delivering(url: str, path: Path, *faults: Fault) -> Iterator[Client]:
    """A producer whose first round has met each fault; the next round is `deliver_outbox`."""
    outbox = OutboxSettings(path=str(path), retry_ms=NEVER_MS)
    with Client(BlockingWith(url, *faults), breaker=NEVER_OPEN, outbox=outbox) as client:
        assert eventually(lambda: all(fault.struck for fault in faults))
        assert client._outbox is not None
        with client._outbox._outbox.round_lock:  # it has ended
            pass
        yield client


@pytest.fixture(
    params=["server", pytest.param("cluster", marks=pytest.mark.long), pytest.param("sentinel", marks=pytest.mark.long)]
)
def any_url(request: pytest.FixtureRequest, server_binary: Path) -> Iterator[str]:
    match request.param:
        case "server":
            yield request.getfixturevalue("url")
        case "cluster":
            with Cluster(server_binary) as cluster:
                yield cluster.urls
        case _:
            with Watched(server_binary, down_after_ms=60_000) as watched:
                yield watched.url


@pytest.mark.parametrize("is_blocking", [True, False])
async def test_a_link_that_loses_replies_doubles_and_loses_no_job(
    any_url: str, path: Path, monkeypatch: pytest.MonkeyPatch, is_blocking: bool
) -> None:
    monkeypatch.setattr(store, "PARCEL", 30)  # many calls
    keep(path, overdue(*(f"job-{n}" for n in range(1_200))))
    faults, outbox = (hasty(), lossy := Lossy()), OutboxSettings(path=str(path), retry_ms=1)
    topic = TopicSettings(shards=3)
    if is_blocking:
        with Client(BlockingWith(any_url, *faults), None, None, topic, None, NEVER_OPEN, outbox):
            assert await asyncio.to_thread(eventually, lambda: is_empty(path))
    else:
        async with AsyncClient(AsyncWith(any_url, *faults), None, None, topic, None, NEVER_OPEN, outbox) as client:
            assert client._outbox is not None
            client._outbox.start()
            await until(lambda: is_empty(path))
    found = await asyncio.to_thread(promotions, any_url, 3)
    assert (len(found), set(found.values())) == (1_200, {1})
    assert lossy.lost["schedule"] > 10


@pytest.mark.parametrize("is_many", [False, True])
def test_calls_of_a_client_with_an_outbox_make_each_job_once_on_a_lossy_link(
    url: str, path: Path, is_many: bool
) -> None:
    outbox = OutboxSettings(path=str(path), retry_ms=1)
    with Client(BlockingWith(url, hasty(), Lossy()), breaker=NEVER_OPEN, outbox=outbox) as client:
        ids = [f"job-{n}" for n in range(200)]
        if is_many:
            assert all(receipt.created for receipt in client.schedule_many(TOPIC, overdue(*ids)))
        else:
            assert all(client.schedule(TOPIC, at=OVERDUE, key=id).created for id in ids)
        assert eventually(lambda: is_empty(path))
    assert promotions(url) == dict.fromkeys(ids, 1)


@pytest.mark.parametrize(("part", "step"), [(Scheduling, "parcels"), (Outbox, "take_answers"), (Outbox, "write")])
def test_a_producer_that_is_killed_before_any_step_doubles_and_loses_no_job(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch, part: type, step: str
) -> None:
    """One job of its parcel runs and is forgotten; the topic has no room for the other."""

    def is_killed() -> None:
        original = getattr(part, step)

        def dying(self: Any, *args: Any) -> Any:
            if step != "write" or self._settled:  # at the second one, which forgets
                os._exit(0)
            return original(self, *args)

        monkeypatch.setattr(part, step, dying)
        with Client.connect(url, outbox=path) as client:
            client.deliver_outbox()

    with Client.connect(url) as client:
        client.configure(TOPIC, max_pending=1)
        client.schedule(TOPIC, delay=3_600)
    keep(path, [*overdue("runs"), JobSpec(delay=3_600, key="refused")])
    assert in_a_fork(is_killed) == 0
    with delivering(url, path, hasty()) as client:
        assert eventually(lambda: not Outbox(OutboxSettings(path=str(path))).holds(TOPIC, "runs"))
        client.configure(TOPIC, max_pending=0)
        client.deliver_outbox()
        assert (client.get(TOPIC, "refused") is not None, is_empty(path)) == (True, True)
    assert promotions(url) == {"runs": 1}


@pytest.mark.parametrize("fault", [ReplyLost, OnItsWay])
@pytest.mark.parametrize(("before", "after"), [([2], 4), ([4], 2), ([2, 4], 2), ([4, 2], 3)])
def test_a_reshard_between_a_call_and_its_repeat_doubles_and_loses_no_job(
    url: str, path: Path, fault: type[ReplyLost | OnItsWay], before: list[int], after: int
) -> None:
    ids = [f"job-{n}" for n in range(40)]
    with Client.connect(url, Settings(topic=TopicSettings(shards=before[0]))) as client:
        client.configure(TOPIC)
        for number in before[1:]:
            client.set_shards(TOPIC, number)
    keep(path, overdue(*ids))
    with delivering(url, path, hasty(), lost := fault("schedule")) as client:
        client.set_shards(TOPIC, after)
        client.deliver_outbox()
        assert is_empty(path)
    if isinstance(lost, OnItsWay):
        Transport(Address(url)).send(lost.caught)
    assert promotions(url, 4) == dict.fromkeys(ids, 1)


def test_a_former_shards_job_is_kept_though_the_reply_that_says_so_was_lost(url: str, path: Path) -> None:
    with Client.connect(url) as client:
        for number in (1, 2, 3, 4):
            client.schedule_many(TOPIC, [JobSpec(delay=60, key=f"job-{number}-{n}") for n in range(5)])
            client.set_shards(TOPIC, number)
    keep(path, (JobSpec("new", delay=60, key=f"job-{number}-{n}") for number in (1, 2, 3, 4) for n in range(5)))
    with delivering(url, path, ReplyLost("schedule")) as client:
        client.deliver_outbox()
        assert is_empty(path)
        assert client.topic(TOPIC).waiting == 20


def test_a_first_call_that_arrives_after_its_repeat_changes_nothing(url: str, path: Path) -> None:
    keep(path, overdue("a", "b"))
    with delivering(url, path, hasty(), late := OnItsWay("schedule")) as client:
        client.deliver_outbox()
    keep(path, overdue("c"))
    with delivering(url, path, hasty()):
        assert eventually(lambda: is_empty(path))
    assert finish(url) == {"a": 1, "b": 1, "c": 1}
    Transport(Address(url)).send(late.caught)
    assert not promotions(url)


@pytest.mark.parametrize("is_repeated", [False, True])
def test_the_next_parcel_lets_the_server_forget_an_answer_unless_its_call_was_repeated(
    url: str, path: Path, is_repeated: bool
) -> None:
    def answers() -> int:
        transport = Transport(Address(url))
        return sum(transport.send(command("HLEN", key, read=int)) for key in tags_of(shards(1)[0], PARCELS_MS))

    keep(path, overdue("a", "a", "a"))
    with delivering(url, path, hasty(), *[ReplyLost("schedule")] * is_repeated) as client:
        client.deliver_outbox()
        assert is_empty(path)
    assert promotions(url) == {"a": 3}
    assert answers() == 1 + is_repeated


@pytest.mark.long
@pytest.mark.parametrize("fault", [ReplyLost, OnItsWay])
def test_a_topic_that_is_removed_between_a_call_and_its_repeat_has_each_job_where_it_is_found(
    url: str, path: Path, fault: Callable[[str], Fault]
) -> None:
    """Jobs that were made are removed with it. The new topic has fewer shards than the call was placed by."""
    with Client.connect(url, Settings(topic=TopicSettings(shards=8))) as client:
        client.configure(TOPIC)
    keep(path, (JobSpec(delay=3_600, key=f"job-{n}") for n in range(40)))
    with delivering(url, path, fault("schedule")) as client:
        made = client.topic(TOPIC).waiting
        client.remove_topic(TOPIC, force=True)
        client.configure(TOPIC)
        client.deliver_outbox()
        assert is_empty(path)
        found = [id for id in (f"job-{n}" for n in range(40)) if client.get(TOPIC, id)]
        assert client.topic(TOPIC).waiting == len(found) == 40 - made


def test_a_full_topic_that_gets_room_takes_the_refused_jobs_although_the_refusal_was_lost(url: str, path: Path) -> None:
    with Client.connect(url) as client:
        client.configure(TOPIC, max_pending=1)
        client.schedule(TOPIC, delay=3_600, key="waits")
    keep(path, [*overdue("runs"), JobSpec(delay=3_600, key="refused")])
    with delivering(url, path, hasty(), ReplyLost("schedule")) as client:
        client.cancel(TOPIC, "waits")
        client.deliver_outbox()
        client.deliver_outbox()
        assert is_empty(path)
        assert client.get(TOPIC, "refused") is not None
    assert promotions(url) == {"runs": 1}


async def test_a_drained_shard_still_answers_for_its_parcels(url: str, path: Path) -> None:
    ids = [f"job-{n}" for n in range(20)]
    with Client.connect(url, Settings(topic=TopicSettings(shards=4))) as client:
        client.configure(TOPIC)
    keep(path, overdue(*ids))
    with Client.connect(url) as other, delivering(url, path, hasty(), ReplyLost("schedule")) as client:
        other.set_shards(TOPIC, 1)
        made = finish(url, 4)
        transport = AsyncTransport(Address(url))
        draining = Draining(NodeParts(transport, Keys(), clock := ManualClock()), lambda: [TOPIC])
        for _ in range(3):
            await draining.step()
            clock.advance(3_600)
        await transport.close()
        assert other.topic(TOPIC).settings.draining == ()
        await asyncio.to_thread(client.deliver_outbox)
        assert is_empty(path)
    assert made
    assert made + promotions(url, 4) == dict.fromkeys(ids, 1)
