"""Replies that get lost, requests that arrive twice, servers that forget: nothing is lost, nothing doubled.

Every operation of producers is struck in turn (for the others see the files beside this one). The caller then does what
it does by itself, or what its error tells it to do, and the end state is looked at.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.faults.stages import FAULTS, HARMLESS, Look
from tests.found import job_of
from tests.records import RECORD
from tests.transports import ALWAYS, BlockingWith, Fault, Forgetful, Refusing, Repeating, ReplyLost, Unreachable
from tests.waiting import PATIENCE
from wheelq import Client, JobSpec, Settings
from wheelq.errors import InvalidJob, OutcomeUnknown, PartlyScheduled, ServerError
from wheelq.model.dead import ReplayOutcome
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls import heartbeats, registry
from wheelq.protocol.calls import leader as leader_calls
from wheelq.protocol.calls import worker as worker_calls
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings, ConnectionSettings, TopicSettings
from wheelq.transport import Address, AsyncTransport, Transport

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
    info = job_of(client, topic, "a")
    assert (info.payload, info.due_ms) == ("new", receipt.due_ms)
    assert Look(raw, topic).delayed() == {"a": receipt.due_ms}


@pytest.mark.parametrize("fault", [ReplyLost, *HARMLESS])
def test_a_repeated_call_does_not_take_its_own_job_for_a_duplicate(url: str, topic: str, fault: type[Fault]) -> None:
    client = client_with(url, fault("schedule"))
    assert client.schedule(topic, 1, delay=60, key="a", on_duplicate="raise").created


def test_a_client_that_gives_up_names_the_job_of_unknown_outcome(url: str, topic: str, raw: redis.Redis) -> None:
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
    with pytest.raises(OutcomeUnknown, match="no reply came, and repeating it failed: no") as caught:
        client.schedule(topic, 1, delay=60)
    assert type(caught.value) is OutcomeUnknown, "there are no others that were scheduled"
    assert Look(raw, topic).live() == set(caught.value.ids)


@pytest.mark.parametrize("then", [Unreachable, Refusing])
def test_the_unknown_outcome_of_many_stays_unknown_when_the_repeated_call_fails(
    url: str, topic: str, raw: redis.Redis, then: type[Fault]
) -> None:
    client = client_with(url, then("schedule", after=1), ReplyLost("schedule"))
    with pytest.raises(OutcomeUnknown) as caught:
        client.schedule_many(topic, [JobSpec(delay=60, key="order-42")])
    assert set(caught.value.ids) == Look(raw, topic).live() == {"order-42"}


def test_a_job_that_was_finished_before_the_call_is_repeated_does_not_run_again(
    url: str, topic: str, raw: redis.Redis
) -> None:
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
    raw.hdel(keys.counts, "born")  # the shard is not new: what is finished is removed from its stream
    receipt = client_with(url, FinishedMeanwhile("schedule")).schedule(topic, 1, delay=0)
    assert receipt.created
    assert Look(raw, topic).ready() == []


def test_a_lost_reply_to_the_registration_of_the_topic_is_made_good(url: str, topic: str) -> None:
    assert client_with(url, ReplyLost("register_topic")).schedule(topic, 1, delay=60).created


@pytest.mark.parametrize("fault", [Refusing, Unreachable])
def test_a_refused_call_was_not_done(url: str, topic: str, raw: redis.Redis, fault: type[Fault]) -> None:
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
    apart_s = 3_600  # far more than passes between two batches: a relative due time counts from when its batch arrives
    specs = [JobSpec(n, delay=apart_s * (n + 1), key=f"order-{n}" if keyed else None) for n in range(1_400)]
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


def test_schedule_many_that_gives_up_names_the_jobs_of_unknown_outcome(url: str, topic: str, raw: redis.Redis) -> None:
    client = client_with(url, ReplyLost("schedule", after=1, times=ALWAYS))
    with pytest.raises(OutcomeUnknown) as caught:
        client.schedule_many(topic, [JobSpec(n, delay=60) for n in range(1_400)])
    unknown = set(caught.value.ids)
    assert len(unknown) in (250, 750), "the first batch was answered; the third may not have been sent"
    assert len(unknown & Look(raw, topic).live()) >= 250


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
    assert set(caught.value.receipts) == set(range(250))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_server_that_has_lost_its_scripts_takes_many_jobs_once(
    url: str, topic: str, raw: redis.Redis, shards: int
) -> None:
    """Two calls are under way when the first comes back: neither was done."""
    client = client_with(url, shards=shards)
    client.schedule(topic, delay=60, key="before")
    for count in (400, 1_400):
        raw.script_flush()
        receipts = client.schedule_many(topic, [JobSpec(n, delay=60, key=f"{count}-{n}") for n in range(count)])
        assert all(receipt.created for receipt in receipts)
        assert [receipt.id for receipt in receipts] == [f"{count}-{n}" for n in range(count)]


def test_one_connection_is_enough_for_a_server_that_has_lost_its_scripts(
    url: str, topic: str, raw: redis.Redis
) -> None:
    """The script is loaded over the connection that has met it, and not over a second one, which may not be free."""
    settings = Settings(connection=ConnectionSettings(max_connections=1))
    with Client.connect(url, settings) as client:
        client.schedule(topic, delay=60)
        raw.script_flush()
        assert len(client.schedule_many(topic, [JobSpec(n, delay=60) for n in range(1_400)])) == 1_400


def test_a_partly_scheduled_batch_can_be_completed_without_doubles(url: str, topic: str, raw: redis.Redis) -> None:
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


# What nothing may do


async def test_a_call_that_cannot_be_packed_leaves_the_answers_of_others_alone(url: str) -> None:
    """Replies belong to requests by their order: one that never leaves must not be waited for."""
    transport = AsyncTransport(Address(url))
    echo = [command("ECHO", word, read=bytes) for word in ("first", "second")]
    assert await transport.send(echo[0]) == b"first"
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever it is
        await transport.send(command("ECHO", "\ud800", read=bytes))
    async with asyncio.timeout(PATIENCE):
        assert [await transport.send(call) for call in echo] == [b"first", b"second"]
    await transport.close()


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
    """The names of calls that are struck here, and in the files beside, are those of real calls."""
    keys = Keys().shard("t", 0)
    assert {
        leader_calls.look(keys).name,
        leader_calls.hedge(keys, 1, 1, "1").name,
        worker_calls.take_over(keys, "g", "w", 1, 1, [], []).name,
        worker_calls.holders([keys], "g").name,
        heartbeats.beat_worker(Keys(), "w", "1 g").name,
        registry.topics_named(Keys(), ["t"]).name,
        worker_calls.read([keys], "g", "w", 1, 1).name,
        registry.topic(Keys(), "t").name,
    } == {"look", "hedge", "take_over", "holders", "HSET", "HMGET", "XREADGROUP", "HGET"}


# Dead letters


@pytest.mark.parametrize("fault", [ReplyLost, Repeating, Forgetful])
@pytest.mark.parametrize("after", [0, 1])
def test_a_dead_job_is_replayed_once_for_each_burial(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault], after: int
) -> None:
    """250 dead jobs, replayed in calls of 100; the caller repeats after a lost reply, and goes on with what is left."""
    keys = Keys().shard(topic, 0)
    with Client(BlockingWith(url, fault("replay", after=after))) as client:
        client.schedule(topic, delay=60, key="other")
        for n in range(250):
            raw.xadd(keys.dead, {"id": f"job-{n}", "group": "g", "reason": "failed", "record": RECORD})
        try:
            client.dead.replay(topic, all=True)
        except OutcomeUnknown:
            assert raw.xlen(keys.dead) == 150 - 100 * after
        client.dead.replay(topic, all=True)
        assert raw.xlen(keys.dead) == 0
        assert raw.zcard(keys.delayed) == 251


def test_one_dead_job_is_replayed_once_although_the_reply_is_lost(url: str, topic: str, raw: redis.Redis) -> None:
    keys = Keys().shard(topic, 0)
    with Client(BlockingWith(url, ReplyLost("replay"))) as client:
        client.schedule(topic, delay=60)
        raw.xadd(keys.dead, {"id": "a", "group": "g", "reason": "failed", "record": RECORD}, id="7-1")
        with pytest.raises(OutcomeUnknown):
            client.dead.replay_one(topic, "7-1:0")
        assert client.dead.replay_one(topic, "7-1:0") is ReplayOutcome.NOT_FOUND
        assert raw.zcard(keys.delayed) == 2
