"""Replies that get lost, requests that arrive twice, servers that forget: nothing is lost, nothing doubled.

Every operation of producers, leaders, standbys and workers is struck in turn. The caller then does what it does by
itself, or what its error tells it to do, and the end state is looked at.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from tests.transports import (
    ALWAYS,
    AsyncWith,
    BlockingWith,
    Fault,
    Forgetful,
    Refusing,
    Repeating,
    ReplyLost,
    Unreachable,
)
from wheelq import Client, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.clock import ServerClock, SystemClock
from wheelq.dead import Reason, ReplayOutcome
from wheelq.errors import InvalidJob, OutcomeUnknown, PartlyScheduled, ServerError
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls import leader as leader_calls
from wheelq.protocol.calls import producer, registry
from wheelq.protocol.calls import worker as worker_calls
from wheelq.protocol.keys import Keys
from wheelq.scheduler.shard import Role, Shard
from wheelq.settings import ClientSettings, SchedulerSettings, TopicSettings, WorkerSettings
from wheelq.topics import Topic
from wheelq.transport import Address, AsyncTransport, Transport
from wheelq.worker.held import Delivery, Held, Line
from wheelq.worker.outcome import Again, Buried
from wheelq.worker.recovery import Recovery
from wheelq.worker.settling import Settler

RECORD = b"\x01\x01\x91\x01"
FAULTS: list[type[Fault]] = [ReplyLost, Unreachable, Refusing, Repeating, Forgetful]
HARMLESS: list[type[Fault]] = [Repeating, Forgetful]


@pytest.fixture
def prefix() -> str:
    """A wheelq of its own, for tests that run schedulers and workers: they serve all topics of one."""
    return f"faults-{secrets.token_hex(6)}"


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url, decode_responses=False) as connection:
        yield connection


class Look:
    """What all shards of a topic hold."""

    def __init__(self, raw: redis.Redis, topic: str, shards: int = 1, prefix: str = "wheelq") -> None:
        self._raw = raw
        self._keys = [Keys(prefix).shard(topic, n) for n in range(shards)]

    def delayed(self) -> dict[str, int]:
        pairs = [pair for keys in self._keys for pair in self._raw.zrange(keys.delayed, 0, -1, withscores=True)]
        assert len(dict(pairs)) == len(pairs)
        return {member.decode(): int(score) for member, score in pairs}

    def ready(self) -> list[str]:
        """Ids of the entries, sorted."""
        entries = [entry for keys in self._keys for entry in self._raw.xrange(keys.ready)]
        for entry_id, fields in entries:
            assert int(entry_id.split(b"-")[0]) >= int(fields[b"due"]), "promoted before its due time"
        return sorted(fields[b"id"].decode() for _, fields in entries)

    def live(self) -> set[str]:
        return {member.decode() for keys in self._keys for member in self._raw.hkeys(keys.jobs)}

    def dead(self) -> list[str]:
        return sorted(f[b"id"].decode() for keys in self._keys for _, f in self._raw.xrange(keys.dead))

    def pending(self, group: str) -> int:
        return sum(self._raw.xpending(keys.ready, group)["pending"] for keys in self._keys)


async def until(fact: Callable[[], bool]) -> None:
    """Wait for what others do in their own time."""
    async with asyncio.timeout(20):
        while not fact():  # noqa: ASYNC110  # the server is asked, nobody here could set an event
            await asyncio.sleep(0.01)


# Producers: schedule


def client_with(url: str, *faults: Fault, shards: int = 1, repeats: int = 1) -> Client:
    return Client(
        BlockingWith(url, *faults),
        settings=ClientSettings(repeats=repeats),
        topic_settings=TopicSettings(shards=shards),
    )


@pytest.mark.parametrize("fault", [ReplyLost, *HARMLESS])
@pytest.mark.parametrize("key", [None, "order-42"])
@pytest.mark.parametrize("delay", [0, 3600])
def test_schedule_makes_one_job(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault], key: str | None, delay: float
) -> None:
    """The client repeats with the same id and record, and is told "created" either way."""
    struck = fault("schedule")
    receipt = client_with(url, struck).schedule(topic, 1, delay=delay, key=key)
    assert struck.struck == 1
    assert receipt.created
    look = Look(raw, topic)
    assert look.live() == {receipt.id}
    assert (list(look.delayed()), look.ready()) == (([], [receipt.id]) if delay == 0 else ([receipt.id], []))


@pytest.mark.parametrize("fault", [ReplyLost, *HARMLESS])
def test_a_repeated_replace_replaces_once_and_says_created(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    client = client_with(url, struck := fault("schedule", after=1))
    client.schedule(topic, "old", delay=60, key="a")
    receipt = client.schedule(topic, "new", delay=120, key="a", on_duplicate="replace")
    assert (struck.struck, receipt.created) == (1, True)
    info = client.get(topic, "a")
    assert info is not None
    assert (info.payload, info.due_ms) == ("new", receipt.due_ms)
    assert Look(raw, topic).delayed() == {"a": receipt.due_ms}


@pytest.mark.parametrize("fault", [ReplyLost, *HARMLESS])
def test_a_repeated_call_does_not_take_its_own_job_for_a_duplicate(url: str, topic: str, fault: type[Fault]) -> None:
    client = client_with(url, fault("schedule"))
    assert client.schedule(topic, 1, delay=60, key="a", on_duplicate="raise").created


def test_a_client_that_gives_up_tells_which_job_it_does_not_know_of(url: str, topic: str, raw: redis.Redis) -> None:
    client = client_with(url, ReplyLost("schedule", times=2))
    with pytest.raises(OutcomeUnknown) as caught:
        client.schedule(topic, 1, delay=60)
    [id] = caught.value.ids
    assert Look(raw, topic).live() == {id}


def test_with_a_key_a_caller_can_repeat_what_the_client_gave_up(url: str, topic: str, raw: redis.Redis) -> None:
    client = client_with(url, ReplyLost("schedule", times=2))
    with pytest.raises(OutcomeUnknown):
        client.schedule(topic, 1, delay=60, key="a")
    assert not client.schedule(topic, 1, delay=60, key="a").created
    assert Look(raw, topic).live() == {"a"}


@pytest.mark.parametrize("then", [Unreachable, Refusing])
def test_an_unknown_outcome_stays_unknown_when_the_repeated_call_fails(
    url: str, topic: str, raw: redis.Redis, then: type[Fault]
) -> None:
    """ "Unavailable" and "refused" say that nothing was done, and here something was."""
    client = client_with(url, then("schedule", after=1), ReplyLost("schedule"))
    with pytest.raises(OutcomeUnknown) as caught:
        client.schedule(topic, 1, delay=60)
    assert Look(raw, topic).live() == set(caught.value.ids)


def test_a_job_that_was_finished_before_the_call_is_repeated_runs_again(url: str, topic: str, raw: redis.Redis) -> None:
    """The one case in which a repeated call makes a second job: it was due at once, its reply was lost, and the worker
    had finished and forgotten it before the call was repeated. Runs are at-least-once."""
    keys, plain = Keys().shard(topic, 0), Transport(Address(url))

    class FinishedMeanwhile(ReplyLost):
        def strike(self, call: Call[Any]) -> list[Call[Any]]:
            [lost] = super().strike(call)

            def finish(reply: object) -> None:
                [entry] = plain.send(worker_calls.read([keys], "g", "w1", 10, 1))[0]
                assert plain.send(worker_calls.ack(keys, "g", "w1", 0, 0, [(entry.entry_id, entry.member)])) == 1
                lost.read(reply)

            return [dataclasses.replace(lost, read=finish)]

    plain.send(worker_calls.make_group(keys, "g"))
    receipt = client_with(url, FinishedMeanwhile("schedule")).schedule(topic, 1, delay=0)
    assert Look(raw, topic).ready() == [receipt.id]


def test_a_lost_reply_to_the_registration_of_the_topic_is_made_good(url: str, topic: str) -> None:
    assert client_with(url, ReplyLost("register_topic")).schedule(topic, 1, delay=60).created


@pytest.mark.parametrize("fault", [Refusing, Unreachable])
def test_what_was_refused_was_not_done(url: str, topic: str, raw: redis.Redis, fault: type[Fault]) -> None:
    with pytest.raises(ServerError) as caught:
        client_with(url, fault("schedule")).schedule(topic, 1, delay=60)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert Look(raw, topic).live() == set()


# Producers: schedule_many


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("keyed", [False, True], ids=["made ids", "keys"])
@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("fault", [ReplyLost, *HARMLESS])
def test_schedule_many_makes_each_job_once(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault], batch: int, keyed: bool, shards: int
) -> None:
    struck = fault("schedule", after=batch)
    client = client_with(url, struck, shards=shards)
    specs = [JobSpec(n, delay=60 + n, key=f"order-{n}" if keyed else None) for n in range(1_400)]
    receipts = client.schedule_many(topic, specs)
    assert struck.struck == 1
    assert all(receipt.created for receipt in receipts)
    look = Look(raw, topic, shards)
    assert look.delayed() == {receipt.id: receipt.due_ms for receipt in receipts}
    assert len(look.delayed()) == 1_400
    assert look.live() == set(look.delayed())
    due = [receipt.due_ms for receipt in receipts]
    assert due == sorted(due), "receipts are in the order of the jobs"


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_schedule_many_to_replace_replaces_each_job_once(url: str, topic: str, raw: redis.Redis, batch: int) -> None:
    client_with(url).schedule_many(topic, [JobSpec("old", delay=60, key=f"order-{n}") for n in range(1_200)])
    client = client_with(url, struck := ReplyLost("schedule", after=batch))
    specs = [JobSpec("new", delay=600 + n, key=f"order-{n}") for n in range(1_200)]
    receipts = client.schedule_many(topic, specs, on_duplicate="replace")
    assert struck.struck == 1
    assert all(receipt.created for receipt in receipts)
    assert Look(raw, topic).delayed() == {receipt.id: receipt.due_ms for receipt in receipts}


def test_schedule_many_that_gives_up_tells_which_jobs_it_does_not_know_of(
    url: str, topic: str, raw: redis.Redis
) -> None:
    client = client_with(url, ReplyLost("schedule", after=1, times=ALWAYS))
    with pytest.raises(OutcomeUnknown) as caught:
        client.schedule_many(topic, [JobSpec(n, delay=60) for n in range(1_400)])
    unknown = set(caught.value.ids)
    assert len(unknown) in (500, 900), "the first batch was answered; the third may not have been sent"
    assert len(unknown & Look(raw, topic).live()) >= 500


def test_a_bad_job_is_told_also_when_a_reply_was_lost(url: str, topic: str, raw: redis.Redis) -> None:
    """The bad one is found while the batch before it is under way; that batch is then sent again."""
    client = client_with(url, ReplyLost("schedule", after=1))
    specs = [JobSpec(n if n != 1_200 else {1, 2}, delay=60) for n in range(1_400)]
    with pytest.raises(InvalidJob) as caught:
        client.schedule_many(topic, specs)
    assert caught.value.place == 1_200
    assert {receipt.id for receipt in caught.value.receipts.values()} == Look(raw, topic).live()


def test_schedule_many_refused_half_way_tells_what_was_scheduled(url: str, topic: str, raw: redis.Redis) -> None:
    """Else a caller that tries all of them again doubles the first ones."""
    client = client_with(url, Refusing("schedule", after=1, times=ALWAYS))
    with pytest.raises(PartlyScheduled) as caught:
        client.schedule_many(topic, [JobSpec(n, delay=60) for n in range(1_400)])
    assert {receipt.id for receipt in caught.value.receipts.values()} == Look(raw, topic).live()
    assert set(caught.value.receipts) == set(range(500))


def test_what_was_partly_scheduled_can_be_completed_without_doubles(url: str, topic: str, raw: redis.Redis) -> None:
    """Repeat with the jobs that have no receipt, giving those whose outcome is unknown their id as key."""
    client = client_with(url, ReplyLost("schedule", after=1, times=ALWAYS))
    specs = [JobSpec(n, delay=60) for n in range(1_400)]
    with pytest.raises(PartlyScheduled) as caught:
        client.schedule_many(topic, specs)
    known = caught.value
    rest = [
        dataclasses.replace(spec, key=known.unknown.get(place))
        for place, spec in enumerate(specs)
        if place not in known.receipts
    ]
    client_with(url).schedule_many(topic, rest)
    assert len(Look(raw, topic).live()) == len(Look(raw, topic).delayed()) == 1_400


# Producers: what else they ask


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", ["cancel", "reschedule", "run_now", "get"])
def test_a_call_that_is_repeated_after_any_fault_has_its_effect_once(
    url: str, topic: str, raw: redis.Redis, operation: str, fault: type[Fault]
) -> None:
    client = client_with(url, struck := fault(operation))
    client.schedule(topic, 1, delay=60, key="a")
    arguments: dict[str, Any] = {"delay": 600} if operation == "reschedule" else {}
    try:
        getattr(client, operation)(topic, "a", **arguments)
    except ServerError:
        getattr(client, operation)(topic, "a", **arguments)
    assert struck.struck == 1
    look = Look(raw, topic)
    match operation:
        case "cancel":
            assert (look.live(), look.delayed(), look.ready()) == (set(), {}, [])
        case "reschedule":
            assert look.delayed()["a"] > time.time() * 1000 + 300_000
        case "run_now":
            assert (look.live(), look.delayed(), look.ready()) == ({"a"}, {}, ["a"])
        case "get":
            assert list(look.delayed()) == ["a"]


# Leaders and standbys, driven step by step


class Stage:
    """A shard on one node, with faults, and jobs for it."""

    def __init__(
        self, url: str, topic: str, *faults: Fault, role: Role = Role.LEADER, node: str = "node", **settings: int
    ) -> None:
        self.keys = Keys().shard(topic, 0)
        self.plain = Transport(Address(url))
        self.transport = AsyncWith(url, *faults)
        clock = SystemClock()
        self.server = ServerClock(clock)
        self.server.observe(clock.monotonic(), self.plain.send(registry.server_time_us()))
        self.shard = Shard(
            self.keys,
            self.transport,
            node,
            lambda: "run:1",
            SchedulerSettings(**settings),
            clock,
            self.server,
            Topic(),
            role,
        )

    def schedule(self, jobs: int, first_ms: int, apart_ms: int = 0) -> list[str]:
        """Jobs that wait, also those that are due."""
        now = self.plain.send(registry.server_time_us()) // 1000
        ids = [f"job-{n:04}" for n in range(jobs)]
        for start in range(0, jobs, 500):
            batch = [(id, str(now + 3_600_000), RECORD) for id in ids[start : start + 500]]
            self.plain.send(producer.schedule(self.keys, batch, "keep", "1"))
        for n, id in enumerate(ids):
            self.plain.send(producer.reschedule(self.keys, id, str(now + first_ms + n * apart_ms)))
        return ids

    def schedule_and_ring(self, id: str, delay_ms: int) -> None:
        """One job, as a producer does it while the node listens."""
        call = producer.schedule(self.keys, [(id, f"+{delay_ms}", RECORD)], "keep", "1")
        [receipt] = self.plain.send(call).receipts
        assert receipt is not None
        self.shard.ring(f"{receipt.due_ms} {id}".encode())

    async def step_until(self, fact: Callable[[], bool], within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not fact():
            assert time.monotonic() < deadline, "it does not come about"
            await asyncio.sleep(min(await self.shard.step(), 0.01))

    async def close(self) -> None:
        await self.transport.close()
        self.plain.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", ["acquire", "sweep", "open_window", "promote", "renew"])
async def test_a_leader_promotes_each_job_once_whatever_call_of_its_goes_wrong(
    url: str, topic: str, raw: redis.Redis, call: str, fault: type[Fault]
) -> None:
    """Some are overdue, some fall due now, and one a while later (so late that the lease is renewed in between)."""
    struck = fault(call)
    stage = Stage(url, topic, struck, lease_ms=450, lease_margin_ms=100, sweep_ms=400)
    ids, look = stage.schedule(40, first_ms=-50, apart_ms=3), Look(raw, topic)
    while not struck.struck or look.delayed():
        ids.append(f"late-{len(ids)}")
        stage.schedule_and_ring(ids[-1], 700 if call == "renew" else 50)
        await stage.step_until(lambda: not look.delayed())
        assert len(ids) < 100, f"{call} is never called"
    assert look.ready() == sorted(ids)
    assert look.live() == set(ids)
    assert struck.struck == 1
    await stage.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_backlog_is_swept_once_although_every_third_call_goes_wrong(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    stage = Stage(url, topic, *(fault("sweep", after=n) for n in (0, 3, 6)), batch=20)
    ids = stage.schedule(200, first_ms=-1_000)
    look = Look(raw, topic)
    await stage.step_until(lambda: not look.delayed())
    assert look.ready() == ids
    await stage.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_leader_that_stops_gives_its_lease_back(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    """If that goes wrong before the server, the lease ends by itself; the stop does not hang."""
    stage = Stage(url, topic, struck := fault("release"), lease_ms=2_000)
    stage.schedule(1, first_ms=60)
    running = asyncio.create_task(stage.shard.run())
    await until(lambda: Look(raw, topic).ready() == ["job-0000"])
    assert stage.shard.is_leading
    stage.shard.stop()
    async with asyncio.timeout(10):
        await running
    assert struck.struck == 1
    if fault not in (Refusing, Unreachable):
        assert not raw.exists(stage.keys.lease)
    await stage.close()


async def test_a_standby_leads_as_soon_as_the_leader_says_that_it_goes(url: str, topic: str) -> None:
    """It waits neither for a job that is overdue by the hedge, nor until nodes have agreed on who leads now."""
    leaving = Stage(url, topic, node="leaving")
    staying = Stage(url, topic, node="staying", role=Role.STANDBY, hedge_ms=60_000)
    leaving.schedule(50, first_ms=100, apart_ms=20)
    subscription = staying.transport.subscription()
    await subscription.open([staying.keys.near])

    async def listen() -> None:
        async for _, data in subscription.messages():
            if data is not None:
                staying.shard.ring(data)

    tasks = [asyncio.create_task(run) for run in (leaving.shard.run(), staying.shard.run(), listen())]
    await until(lambda: leaving.shard.is_leading and leaving.shard.promoted > 0)
    assert not staying.shard.is_leading
    leaving.shard.stop(node_goes=True)
    await until(lambda: leaving.shard.promoted + staying.shard.promoted == 50)
    assert staying.shard.is_leading
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await subscription.close()
    await leaving.close()
    await staying.close()


async def test_a_standby_leaves_a_lease_to_the_leader_for_whom_it_is_given_back(url: str, topic: str) -> None:
    """A shard that is only handed over has somebody else to lead it."""
    stage = Stage(url, topic, role=Role.STANDBY)
    stage.schedule(1, first_ms=60_000)
    stage.shard.ring(b"")
    for _ in range(5):
        await stage.shard.step()
    assert not stage.shard.is_leading
    stage.shard.ring(leader_calls.GOING.encode())
    await stage.shard.step()
    assert stage.shard.is_leading
    await stage.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", ["look", "hedge", "acquire"])
async def test_a_standby_promotes_each_job_once_whatever_call_of_its_goes_wrong(
    url: str, topic: str, raw: redis.Redis, call: str, fault: type[Fault]
) -> None:
    """With a leader that is frozen it hedges; without one it takes the lease."""
    stage = Stage(url, topic, struck := fault(call), role=Role.STANDBY, lease_ms=3_000, hedge_ms=20)
    if call != "acquire":
        raw.set(stage.keys.lease, "frozen:5:another-run:9", px=1_000)
    ids = stage.schedule(30, first_ms=-10, apart_ms=2)
    look = Look(raw, topic)
    await stage.step_until(lambda: not look.delayed())
    assert look.ready() == ids
    assert struck.struck == 1
    await stage.close()


@pytest.mark.parametrize("how", ["not answered", "taken away"])
async def test_two_nodes_that_both_believe_to_lead_promote_each_job_once(
    url: str, topic: str, raw: redis.Redis, how: str
) -> None:
    first = Stage(url, topic, lease_ms=30_000)
    ids = first.schedule(200, first_ms=0, apart_ms=1)
    second = Stage(url, topic, lease_ms=30_000)
    look = Look(raw, topic)
    await first.shard.step()
    if how == "taken away":
        raw.delete(first.keys.lease)
    deadline = time.monotonic() + 20
    while look.delayed():
        assert time.monotonic() < deadline
        await asyncio.gather(first.shard.step(), second.shard.step())
    assert look.ready() == ids
    await first.close()
    await second.close()


async def test_a_ring_that_comes_late_costs_no_minute(url: str, topic: str, raw: redis.Redis) -> None:
    """An idle shard's horizon is far. A job beyond the window rings, and when the leader acts it is within it."""
    stage = Stage(url, topic, window_ms=200, idle_ms=60_000)
    for _ in range(5):  # take the lease, sweep, open the window: nothing is near
        await stage.shard.step()
    receipts = stage.plain.send(producer.schedule(stage.keys, [("a", "+230", RECORD)], "keep", "1"))
    stage.shard.ring(f"{receipts.receipts[0].due_ms} a".encode())
    await asyncio.sleep(0.1)  # the node is busy with something else
    look = Look(raw, topic)
    await stage.step_until(lambda: look.ready() == ["a"], within_s=5)
    await stage.close()


# Workers: settling


class Bench:
    """A worker's settler and recovery, with faults, and deliveries for them."""

    def __init__(self, url: str, topic: str, *faults: Fault) -> None:
        self.plain = Transport(Address(url))
        self.transport = AsyncWith(url, *faults)
        self.line = Line(Keys().shard(topic, 0), Topic())
        self.held = Held()
        clock = SystemClock()
        server = ServerClock(clock)
        server.observe(clock.monotonic(), self.plain.send(registry.server_time_us()))
        settings = WorkerSettings(renew_ms=10, abandoned_ms=20, max_deliveries=3)
        self.settler = Settler(self.transport, "g", "w1", settings, self.held, clock)
        self.recovery = Recovery(self.transport, "g", "w1", settings, self.held, self.settler, clock, server)

    def deliver(self, *ids: str, consumer: str = "w1") -> list[Delivery]:
        keys = self.line.keys
        self.plain.send(worker_calls.make_group(keys, "g"))
        self.plain.send(producer.schedule(keys, [(id, "+0", RECORD) for id in ids], "keep", "1"))
        entries = self.plain.send(worker_calls.read([keys], "g", consumer, 100, 1))[0]
        assert [entry.id for entry in entries] == list(ids)
        deliveries = [Delivery(self.line, entry, 0) for entry in entries]
        if consumer == "w1":
            for delivery in deliveries:
                self.held.add(delivery)
        return deliveries

    async def until_done(self, act: Callable[[], Awaitable[Any]]) -> Any:
        """Do it as the component does: again after an error."""
        while True:
            try:
                return await act()
            except ServerError:
                pass

    async def close(self) -> None:
        await self.transport.close()
        self.plain.close()


@pytest.fixture
async def bench(url: str, topic: str) -> AsyncIterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(*faults: Fault) -> Bench:
        benches.append(Bench(url, topic, *faults))
        return benches[-1]

    yield make
    for one in benches:
        await one.close()


every_fault = pytest.mark.parametrize("fault", FAULTS)


@every_fault
async def test_acks_are_sent_until_they_are_answered(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    at = bench(struck := fault("ack"))
    for delivery in at.deliver("a", "b", "c")[:2]:
        at.settler.done(delivery)
    await at.until_done(at.settler.flush)
    look = Look(raw, topic)
    assert (look.live(), look.pending("g"), struck.struck) == ({"c"}, 1, 1)
    assert [delivery.entry.id for delivery in at.held.of(at.line).values()] == ["c"]


@every_fault
async def test_a_failed_job_waits_for_one_retry(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    at = bench(struck := fault("retry"))
    [a] = at.deliver("a")
    await at.settler.settle(a, Again(60_000))
    look = Look(raw, topic)
    assert list(look.delayed()) == ["a\x1fg"]
    assert (look.live(), look.pending("g"), struck.struck) == ({"a", "a\x1fg"}, 0, 1)
    assert not at.held.of(at.line)


@every_fault
async def test_a_job_that_is_given_up_is_buried_once(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    at = bench(struck := fault("bury"))
    [a] = at.deliver("a")
    await at.settler.settle(a, Buried(Reason.FAILED, "it broke"))
    look = Look(raw, topic)
    assert (look.dead(), look.live(), look.pending("g"), struck.struck) == (["a"], set(), 0, 1)
    assert not at.held.of(at.line)


@pytest.mark.parametrize("call", ["ack", "retry"])
async def test_what_was_settled_by_a_call_whose_reply_was_lost_does_not_count_as_lost(
    bench: Callable[..., Bench], call: str
) -> None:
    at = bench(ReplyLost(call))
    [a] = at.deliver("a")
    if call == "ack":
        at.settler.done(a)
        await at.until_done(at.settler.flush)
    else:
        await at.settler.settle(a, Again(60_000))
    assert at.settler.lost == 0


@every_fault
async def test_renewing_goes_on_after_a_fault(bench: Callable[..., Bench], fault: type[Fault]) -> None:
    at = bench(struck := fault("keep"))
    at.deliver("a", "b")
    await at.until_done(at.recovery.keep)
    assert len(at.held.of(at.line)) == 2
    assert struck.struck == 1


@every_fault
@pytest.mark.parametrize("call", ["XAUTOCLAIM", "adopt"])
async def test_abandoned_deliveries_are_taken_over_after_a_fault(
    bench: Callable[..., Bench], topic: str, raw: redis.Redis, call: str, fault: type[Fault]
) -> None:
    """What was claimed by a call whose reply was lost is claimed again, when it has been abandoned for long enough."""
    at = bench(struck := fault(call))
    at.deliver("a", "b", consumer="dead")
    taken: dict[str, Delivery] = {}
    deadline = time.monotonic() + 10
    while len(taken) < 2:
        assert time.monotonic() < deadline
        for delivery in await at.until_done(lambda: at.recovery.claim(at.line, 10)):
            assert delivery.entry.id not in taken, "one delivery twice"
            taken[delivery.entry.id] = delivery
        await at.until_done(at.recovery.keep)
        await asyncio.sleep(0.005)
    assert struck.struck == 1
    for delivery in taken.values():
        at.settler.done(delivery)
    await at.until_done(at.settler.flush)
    look = Look(raw, topic)
    assert (look.live(), look.pending("g")) == (set(), 0)


# A scheduler and a worker, whole


@pytest.mark.parametrize(
    "call",
    ["XREADGROUP", "ack", "retry", "bury", "keep", "XAUTOCLAIM", "adopt", "HGET", "promote", "sweep"],
)
async def test_every_job_ends_although_a_call_of_each_kind_loses_its_reply(
    url: str, topic: str, prefix: str, raw: redis.Redis, call: str
) -> None:
    """Jobs that succeed, one that fails at first, one that always fails, one left by a dead worker, and a slow one."""
    settings = WorkerSettings(renew_ms=60, abandoned_ms=150, block_ms=300, grace_ms=3_000)
    keys = Keys(prefix)
    scheduler = Scheduler(AsyncWith(url, ReplyLost(call, after=2)), keys)
    worker = Worker(AsyncWith(url, ReplyLost(call, after=1)), "g", keys, settings)
    done: dict[str, int] = {}
    finished = asyncio.Event()
    expected = {*(f"fine-{n}" for n in range(10)), "fails-once", "slow", "left"}

    @worker.handler(topic, retry=Retry(max_attempts=2, base=0))
    async def handle(job: Job) -> None:
        if job.id == "fails-always" or (job.id == "fails-once" and job.attempt == 1):
            raise RuntimeError(job.id)
        if job.id == "slow":
            await asyncio.sleep(0.4)
        done[job.id] = done.get(job.id, 0) + 1
        if expected <= done.keys():
            finished.set()

    client = Client(BlockingWith(url), keys)
    client.schedule(topic, 0, delay=0, key="left")
    shard = keys.shard(topic, 0)
    plain = Transport(Address(url))
    plain.send(worker_calls.make_group(shard, "g"))
    assert plain.send(worker_calls.read([shard], "g", "dead", 10, 1))[0]
    client.schedule_many(topic, [JobSpec(n, delay=0.02 * n, key=f"fine-{n}") for n in range(10)])
    for id in ("fails-once", "fails-always", "slow"):
        client.schedule(topic, 0, delay=0.05, key=id)

    running = [asyncio.create_task(scheduler.run()), asyncio.create_task(worker.run())]
    look = Look(raw, topic, prefix=prefix)
    async with asyncio.timeout(30):
        await finished.wait()
        await until(lambda: not look.live())
        worker.stop()
        scheduler.stop()
        await asyncio.gather(*running)
    assert done.keys() == expected
    assert (look.dead(), look.delayed(), look.pending("g")) == (["fails-always"], {}, 0)
    assert [id for id, runs in done.items() if runs > 1] == []
    client.close()
    plain.close()


# What nothing may do


async def test_a_call_that_cannot_be_packed_leaves_the_answers_of_others_alone(url: str) -> None:
    """Replies belong to requests by their order: one that never leaves must not be waited for."""
    transport = AsyncTransport(Address(url))
    echo = [command("ECHO", word, read=bytes) for word in ("first", "second")]
    assert await transport.send(echo[0]) == b"first"
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever it is
        await transport.send(command("ECHO", "\ud800", read=bytes))
    async with asyncio.timeout(1):
        assert [await transport.send(call) for call in echo] == [b"first", b"second"]
    await transport.close()


@pytest.mark.parametrize("message", [b"junk", b"x y", b"\xff\xfe", b"1.5 a"])
async def test_a_message_that_makes_no_sense_is_passed_over(
    url: str, topic: str, raw: redis.Redis, message: bytes
) -> None:
    """A hint may be wrong; it must not deafen the node. Here only the next one tells of the job."""
    stage = Stage(url, topic, sweep_ms=60_000, window_ms=60_000)
    for _ in range(5):  # take the lease, sweep, open the window: nothing is near
        await stage.shard.step()
    stage.shard.ring(message)
    await stage.shard.step()
    stage.schedule_and_ring("a", 100)
    look = Look(raw, topic)
    await stage.step_until(lambda: look.ready() == ["a"], within_s=5)
    await stage.close()


@pytest.mark.parametrize(
    "fields", [{"hello": "world"}, {"id": "x", "due": "soon", "attempt": "1", "record": "r"}], ids=str
)
async def test_an_entry_that_is_no_job_is_buried_and_holds_nothing_up(
    url: str, topic: str, prefix: str, raw: redis.Redis, fields: dict[str, str]
) -> None:
    """Somebody added to the stream by hand."""
    keys = Keys(prefix)
    worker = Worker(AsyncTransport(Address(url)), "g", keys, WorkerSettings(block_ms=200))
    ran = asyncio.Event()

    @worker.handler(topic)
    async def handle(job: Job) -> None:
        ran.set()

    client = Client(BlockingWith(url), keys)
    client.schedule(topic, 0, delay=3600)
    raw.xadd(keys.shard(topic, 0).ready, dict(fields))  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    client.schedule(topic, 1, delay=0)
    look = Look(raw, topic, prefix=prefix)
    try:
        async with asyncio.timeout(5):
            await ran.wait()
            await until(lambda: len(look.dead()) == 1 and look.pending("g") == 0)
    finally:
        worker.stop()
        await running
        client.close()


def test_a_topic_is_known_again_when_the_server_has_lost_everything(
    private_server: Callable[..., Any], topic: str
) -> None:
    """Restarted without data: the client registers the topic again within `topics_ttl_ms`, by default 10 s."""
    server = private_server(appendonly=False)
    client = Client.connect(server.url, Settings(client=ClientSettings(topics_ttl_ms=1)))
    client.schedule(topic, 1, delay=60)
    server.restart()
    client.schedule(topic, 1, delay=60)
    assert [info.name for info in client.topics()] == [topic]
    client.close()


def test_nothing_here_is_used_that_does_not_exist() -> None:
    """The names of calls that are struck above are those of real calls."""
    keys = Keys().shard("t", 0)
    assert {
        leader_calls.look(keys).name,
        leader_calls.hedge(keys, 1, 1, "1").name,
        worker_calls.claim(keys, "g", "w", 1, "0-0", 1).name,
        worker_calls.read([keys], "g", "w", 1, 1).name,
        registry.topic(Keys(), "t").name,
    } == {"look", "hedge", "XAUTOCLAIM", "XREADGROUP", "HGET"}


# Dead letters


@pytest.mark.parametrize("fault", [ReplyLost, Repeating, Forgetful])
@pytest.mark.parametrize("after", [0, 1])
def test_a_dead_job_is_called_back_once_for_each_burial(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault], after: int
) -> None:
    """250 dead jobs, replayed in calls of 100; the caller repeats after a lost reply, and goes on with what is left."""
    keys = Keys().shard(topic, 0)
    with Client(BlockingWith(url, fault("replay", after=after))) as client:
        client.schedule(topic, delay=60, key="other")
        for n in range(250):
            raw.xadd(keys.dead, {"id": f"job-{n}", "group": "g", "reason": "failed", "record": b"\x01\x01\x91\x01"})
        try:
            client.dead.replay(topic)
        except OutcomeUnknown:
            assert raw.xlen(keys.dead) == 150 - 100 * after
        client.dead.replay(topic)
        assert raw.xlen(keys.dead) == 0
        assert raw.zcard(keys.delayed) == 251


def test_one_dead_job_is_called_back_once_although_the_reply_is_lost(url: str, topic: str, raw: redis.Redis) -> None:
    keys = Keys().shard(topic, 0)
    with Client(BlockingWith(url, ReplyLost("replay"))) as client:
        client.schedule(topic, delay=60)
        raw.xadd(keys.dead, {"id": "a", "group": "g", "reason": "failed", "record": b"\x01\x01\x91\x01"}, id="7-1")
        with pytest.raises(OutcomeUnknown):
            client.dead.replay_one(topic, "7-1:0")
        assert client.dead.replay_one(topic, "7-1:0") is ReplayOutcome.NOT_FOUND
        assert raw.zcard(keys.delayed) == 2
