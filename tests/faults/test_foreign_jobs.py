"""What another program writes into the keys of a shard: one bad item holds up no other, and ends no process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgpack
import pytest
import redis

from tests.records import RECORD, record
from tests.running import collecting, running
from tests.waiting import until
from wheelq import Client, Job, JobSpec, RecurringOutcome, Scheduler, Settings, Worker
from wheelq.errors import RecurringUnreadable, Refused
from wheelq.model.dead import Reason
from wheelq.protocol.calls import producer
from wheelq.protocol.keys import Keys, ShardKeys
from wheelq.settings import SchedulerSettings
from wheelq.transport import Address, Transport

HOUR_MS = 3_600_000
NOT_WHOLE = RECORD[:8] + b"\x01" + RECORD[9:]  # it says that its head has parts, and has none


@pytest.fixture
def settings(prefix: str) -> Settings:
    return Settings(prefix=prefix, scheduler=SchedulerSettings(heartbeat_ms=200, idle_ms=500))


@pytest.fixture
def keys(settings: Settings, topic: str) -> ShardKeys:
    return Keys(settings.prefix).shard(topic, 0)


@pytest.fixture
async def runs(url: str, settings: Settings, topic: str, client: Client) -> AsyncIterator[list[str]]:
    """The ids of the jobs that have run; a scheduler and a worker are at work on the topic, and the first has run."""
    worker, found = collecting(url, topic, settings, "g")
    async with running(Scheduler.connect(url, settings), worker, patiently=True):
        client.schedule(topic, key="first", delay=0.1)
        await until(lambda: found == ["first"])
        yield found


async def all_goes_on(client: Client, topic: str, runs: list[str]) -> None:
    """A job that is due soon runs, one that is due now too, and what holds jobs can be looked at."""
    client.schedule_many(topic, [JobSpec(key="soon", delay=0.3), JobSpec(key="now", delay=0)])
    await until(lambda: {"soon", "now"} <= set(runs))
    client.schedule(topic, key="later", delay=60)
    assert client.get(topic, "later") is not None
    assert "later" in [job.id for job in client.waiting(topic).jobs]
    assert topic in [info.name for info in client.topics()]


def put(raw: redis.Redis, keys: ShardKeys, member: bytes, score: float | str, record: bytes | None = RECORD) -> None:
    if record is not None:
        raw.hset(keys.jobs, member, record)
    raw.zadd(keys.delayed, {member: score})


@pytest.mark.parametrize(
    "record", [b"", b"\x01", b"hello", b"5", b"0-0", b"\x01\x01", b"\x09" + RECORD[1:], NOT_WHOLE, None]
)
async def test_an_unreadable_record_is_buried_or_passed_over(
    raw: redis.Redis, client: Client, keys: ShardKeys, topic: str, runs: list[str], record: bytes | None
) -> None:
    """It comes among the dead, or is passed over; another call about its id is answered."""
    put(raw, keys, b"bad", 1, record)
    client.schedule_many(topic, [JobSpec(key="bad", delay=0), JobSpec(key="with it", delay=0)])
    await until(lambda: "with it" in runs and not raw.zcard(keys.delayed))
    await all_goes_on(client, topic, runs)
    await until(lambda: raw.xpending(keys.ready, "g")["pending"] == 0)


@pytest.mark.parametrize(
    "options",
    [
        {"x": "soon"},
        {"X": -1},
        {"f": 1.5},
        {"a": 2**40},
        {"r": "no"},
        {"e": 5},
        {"h": {"a": 1}},
        {"f": 2**63},
    ],
)
async def test_an_invalid_option_is_refused(
    raw: redis.Redis, client: Client, keys: ShardKeys, topic: str, runs: list[str], options: dict[str, object]
) -> None:
    put(raw, keys, b"bad", 1, record(1, options=options))
    await until(lambda: [job.reason for job in client.dead.list(topic).jobs] == [Reason.UNREADABLE])
    await all_goes_on(client, topic, runs)


@pytest.mark.parametrize("score", ["-inf", "inf", "-1", "0.5", "1e300", "-1e300", "9007199254740993", "1e-300"])
async def test_a_score_that_is_no_due_time(
    raw: redis.Redis, client: Client, keys: ShardKeys, topic: str, runs: list[str], score: str
) -> None:
    put(raw, keys, b"bad", score)
    await all_goes_on(client, topic, runs)


@pytest.mark.parametrize("member", [b"\xff\xfe", b"\x1f", b"id\x1f", b"\x1fg", b"id\x1fg\x1f\x1f", b"", b"x" * 100_000])
async def test_a_member_that_is_no_id(
    raw: redis.Redis, client: Client, keys: ShardKeys, topic: str, runs: list[str], member: bytes
) -> None:
    """One that is due, and one that waits in the window of the leader."""
    now = raw.time()[0] * 1000
    put(raw, keys, member, now - 5)
    await all_goes_on(client, topic, runs)
    put(raw, keys, b"2" + member, now + 1_000)
    client.schedule(topic, key="near", delay=0.7)
    await until(lambda: "near" in runs and raw.zscore(keys.delayed, b"2" + member) is None)


@pytest.mark.parametrize("due", ["inf", "-inf", "nan", "-5", "soon", "", "9" * 400, "+inf", "+-5"])
def test_a_wrong_due_time_is_refused_before_anything_is_done(
    raw: redis.Redis, url: str, keys: ShardKeys, due: str
) -> None:
    transport = Transport(Address(url))
    with pytest.raises(Refused, match="no due time"):
        transport.send(producer.schedule(keys, [("good", "+0", RECORD), ("bad", due, RECORD)], "keep", "1"))
    transport.close()
    assert not raw.exists(keys.ready, keys.jobs, keys.delayed)


@pytest.mark.parametrize("record", [b"", b"\x01", b"hello"])
def test_a_wrong_record_is_refused_before_anything_is_done(
    raw: redis.Redis, url: str, keys: ShardKeys, record: bytes
) -> None:
    transport = Transport(Address(url))
    with pytest.raises(Refused, match="no record"):
        transport.send(producer.schedule(keys, [("good", "+0", RECORD), ("bad", "+0", record)], "keep", "1"))
    transport.close()
    assert not raw.exists(keys.ready, keys.jobs, keys.delayed)


@pytest.mark.parametrize(
    "fields",
    [
        {"a": "b"},
        {"id": "bad", "due": "inf", "attempt": "1", "record": RECORD},
        {"id": "bad", "due": "9" * 400, "attempt": "1", "record": RECORD},
        {"id": "bad", "due": "9" * 5000, "attempt": "1", "record": RECORD},
        {"id": "bad", "due": "1", "attempt": "", "record": RECORD},
        {"id": "bad", "due": "1", "attempt": "1", "record": "x"},
        {"id": b"\xff", "due": "1", "attempt": "1", "record": RECORD},
        {"id": "bad", "due": "1", "attempt": "1", "record": RECORD, "group": b"\xff"},
        {"id": "bad", "due": "1", "attempt": "1", "record": RECORD, "group": ""},
    ],
)
async def test_an_entry_in_the_stream_that_is_no_job(
    raw: redis.Redis,
    client: Client,
    keys: ShardKeys,
    topic: str,
    runs: list[str],
    fields: dict[str | bytes, str | bytes],
) -> None:
    raw.xadd(keys.ready, fields)  # type: ignore[arg-type]  # its stub wants one kind of key
    await all_goes_on(client, topic, runs)
    await until(lambda: raw.xpending(keys.ready, "g")["pending"] == 0)


HINTS = [
    b"9" * 5_000 + b" x",
    b"\xff\xff",
    b"1e5 x",
    "\u00b2 x".encode(),
    b"-1 x",
    b"x" * 100_000,
    b"\n" * 1_000,
    b"0 ",
]


@pytest.mark.parametrize("channel", ["near", "changes"])
async def test_a_ring_that_makes_no_sense(
    raw: redis.Redis, client: Client, settings: Settings, keys: ShardKeys, topic: str, runs: list[str], channel: str
) -> None:
    for hint in HINTS:
        raw.publish(keys.near if channel == "near" else Keys(settings.prefix).changes, hint)
    await all_goes_on(client, topic, runs)


WRITTEN: dict[str, Callable[[redis.Redis, ShardKeys], object]] = {
    "horizon": lambda raw, keys: raw.set(keys.horizon, "soon"),
    "epoch": lambda raw, keys: raw.set(keys.epoch, "first"),
    "endless epoch": lambda raw, keys: raw.set(keys.epoch, "inf"),
    "lease": lambda raw, keys: raw.set(keys.lease, "mine"),
    "lease that is no text": lambda raw, keys: raw.set(keys.lease, b"\xff", px=2_000),
    "lease of no connection": lambda raw, keys: raw.set(keys.lease, "a:1:run:" + "9" * 5_000, px=2_000),
    "kept": lambda raw, keys: raw.hset(keys.done, mapping={"now": "x", "soon": "5:a"}),
    "ended": lambda raw, keys: raw.zadd(keys.ended, {b"\xff": "-inf"}),
    "live": lambda raw, keys: raw.hset(keys.jobs, mapping={"now": "", "soon": "text", "other": "99-x"}),
    "buried": lambda raw, keys: raw.hset(keys.buried, "now\x1fg", "text"),
    "dead": lambda raw, keys: raw.xadd(keys.dead, {"due": "9" * 5_000, b"\xff": b"\xff"}),
    "group": lambda raw, keys: raw.xgroup_create(keys.ready, b"\xff"),
}


@pytest.mark.parametrize("what", WRITTEN)
async def test_an_invalid_value_is_refused(
    raw: redis.Redis, client: Client, keys: ShardKeys, topic: str, runs: list[str], what: str
) -> None:
    WRITTEN[what](raw, keys)
    await all_goes_on(client, topic, runs)


async def test_an_invalid_rate_is_refused(
    raw: redis.Redis, client: Client, keys: ShardKeys, topic: str, runs: list[str]
) -> None:
    for n, rate in enumerate(["fast", "nan", "inf", "-inf"]):
        client.configure(topic, max_rate=100.0 + n)
        raw.set(keys.rate, rate)
        client.schedule(topic, key=rate, delay=0.1)
        await until(lambda rate=rate: rate in runs)  # type: ignore[misc]


@pytest.mark.parametrize("rate", [2.0**53, 5e-324, 1e-300])
async def test_a_rate_beyond_all_measure(
    client: Client, settings: Settings, topic: str, runs: list[str], rate: float
) -> None:
    """The other topics of the node are served."""
    client.configure(topic, max_rate=rate)
    client.schedule(topic, key="held", delay=0)
    client.schedule(f"{topic}-other", delay=0.1)
    await until(lambda: next(info.ready for info in client.topics() if info.name == f"{topic}-other") == 1)
    client.configure(topic, max_rate=0.0)
    await all_goes_on(client, topic, runs)


@pytest.mark.parametrize("name", ["retention_ms", "dead_retention_ms", "keep_done_ms", "dead_max", "max_ready"])
async def test_a_retention_longer_than_any_clock_stops_nothing(
    raw: redis.Redis, client: Client, keys: ShardKeys, topic: str, runs: list[str], name: str
) -> None:
    client.configure(topic, **{name: 2**53})  # type: ignore[arg-type]
    await all_goes_on(client, topic, runs)
    await until(lambda: raw.xpending(keys.ready, "g")["pending"] == 0)


async def test_dead_jobs_that_are_none_hold_up_no_replay(
    raw: redis.Redis, url: str, client: Client, keys: ShardKeys, topic: str, runs: list[str]
) -> None:
    for fields in ({"a": "b"}, {"group": "g", "record": "x"}, {"id": "bad", "group": "g"}, {"id": b"\xff", "due": "x"}):
        raw.xadd(keys.dead, fields)  # type: ignore[arg-type]
    good = {"id": "good", "group": "g", "record": RECORD, "due": "1", "first_due": "1", "attempt": "1", "entry": ""}
    raw.xadd(keys.dead, good)  # type: ignore[arg-type]
    client.dead.replay(topic, all=True)
    await until(lambda: "good" in runs)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"no line",
        b"a b c d\n",
        b"a - 2026-01-01T00:00:00 3\nabc",
        b"a - 2026-01-01T00:00:00Z 4\n" + RECORD + b"junk",
        b"a - 2026-01-01T00:00:00Z 4\n" + RECORD + msgpack.packb({"every_ms": 0}),
        b"a - 2026-01-01T00:00:00Z 4\n" + RECORD + msgpack.packb({"every_ms": "x", "missed": "never"}),
        b"a - 2026-01-01T00:00:00Z 4\n" + RECORD + msgpack.packb({"cron": "* * * * *", "tz": "Mars/Olympus"}),
        b"a - - 4\n" + RECORD + msgpack.packb({"every_ms": 1000}),
        b"a - 2026-01-01T00:00:00Z 4\n" + RECORD + msgpack.packb({"every_ms": 1000, "priority": []}),
    ],
)
async def test_a_recurring_job_that_is_none(
    raw: redis.Redis, client: Client, keys: ShardKeys, topic: str, runs: list[str], stored: bytes
) -> None:
    raw.hset(keys.recurring, b"\xffbad", stored)
    raw.hset(keys.recurring, "bad", stored)
    raw.zadd(keys.occurrences, {b"\xffbad": "-inf", "bad": "1", "gone": "inf"})
    with suppress(RecurringUnreadable):
        client.recurring.get(topic, "bad")  # some of them can be read
    raw.hset(keys.recurring, "none", b"\xff\xff")
    for ask in (client.recurring.get, client.recurring.remove):
        with pytest.raises(RecurringUnreadable, match="'none'"):
            ask(topic, "none")
    assert client.recurring.put(topic, "tick", every=1).outcome is RecurringOutcome.CREATED
    await until(lambda: any(id.startswith("tick@") for id in runs))
    assert "tick" in [info.name for info in client.recurring.list(topic)]


async def test_foreign_data_of_an_ordered_shard_end_no_worker(
    raw: redis.Redis, url: str, client: Client, settings: Settings, topic: str, keys: ShardKeys
) -> None:
    found: list[str] = []
    order = keys.order("ordered")
    raw.hset(order, mapping={"owner": "somebody", "until": "always", "asker": "x", "asks_until": "y"})
    worker, scheduler = Worker.connect(url, group="ordered", settings=settings), Scheduler.connect(url, settings)

    @worker.handler(topic, ordered=True)
    async def note(job: Job) -> None:
        found.append(job.id)
        if len(found) == 1:
            raw.hset(order, job.entry_id, "junk")
            raise ValueError

    async with running(worker, scheduler):
        client.schedule(topic, key="a", delay=0)
        client.schedule(topic, key="b", delay=0.1)
        await until(lambda: found == ["a", "a", "b"])
