"""Who may connect and what they may do: ACL users, passwords, unix sockets, TLS.

The users are those of `config/acl`. That they have every right they need is read from the server's own log of refusals,
which must stay empty while a producer, a scheduler and a worker do all they can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trustme

from tests.running import collecting, running, worker_at
from tests.waiting import PATIENCE, until
from wheelq import (
    AsyncClient,
    Bury,
    CancelOutcome,
    Client,
    Job,
    JobSpec,
    RescheduleOutcome,
    Retry,
    RunNowOutcome,
    Scheduler,
    Settings,
    Worker,
)
from wheelq.admin import Inspector
from wheelq.admin.diagnosis import Level, diagnose_server
from wheelq.admin.metrics import FleetMetrics
from wheelq.base.clock import ManualClock, SystemClock
from wheelq.base.metrics import BOUNDS, Measured
from wheelq.embedded import EmbeddedServer
from wheelq.errors import (
    AuthenticationFailed,
    ConfigurationError,
    JobNotFound,
    NotPermitted,
    NotReplicated,
    TlsFailed,
    Unavailable,
    WheelqError,
)
from wheelq.following.carrier import Carrier
from wheelq.model.topic import Topic
from wheelq.protocol.call import command
from wheelq.protocol.calls import counts, registry
from wheelq.protocol.keys import Keys
from wheelq.scheduler.draining import EndedGroups
from wheelq.scheduler.parts import NodeParts
from wheelq.scheduler.topics import LostTopics
from wheelq.server.app import make_app
from wheelq.server.service import Service
from wheelq.settings import ClientSettings, SchedulerSettings, ServerSettings, TopicSettings, WorkerSettings
from wheelq.transport import Address, AsyncTransport, Transport

pytestmark = pytest.mark.every_server

ACL = Path(__file__).parents[2] / "config" / "acl"
PARTS = ("producer", "operator", "scheduler", "worker", "monitor", "server")
PASSWORD = "open sesame"
NASTY = ["p@ss", "a:b", "a/b?c#d", "100%", "%41", "pä ss-密码", "'\"\\ $&+="]

Start = Callable[..., EmbeddedServer]


class Guarded:
    """A server with the users of `config/acl`."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._administrator = Transport(Address(server.url))

    def url(self, part: str) -> str:
        """Where the user of `part` connects."""
        return self._server.url.replace("://", f"://wheelq-{part}:{quote(PASSWORD)}@")

    def ask(self, *words: str | int) -> Any:
        """The answer to a command of somebody who may do all."""
        return self._administrator.send(command(str(words[0]), *words[1:], read=lambda reply: reply))

    def take(self, part: str, *rights: str) -> None:
        """Change what a user may do."""
        self.ask("ACL SETUSER", f"wheelq-{part}", *rights)

    def refusals(self) -> set[str]:
        """What was refused to anyone; not the driver's introduction, which may be."""
        entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in self.ask("ACL LOG", 100)]
        found = {f"{entry[b'reason'].decode()} {entry[b'object'].decode()}" for entry in entries}
        return found - {"command client|setinfo", "command client"}


@pytest.fixture
def guarded(private_server: Start, tmp_path: Path) -> Guarded:
    """Included as `config/acl/producer.acl` says: `off` becomes `on` and a password."""
    includes = []
    for part in PARTS:
        copy = tmp_path / f"{part}.acl"
        copy.write_text((ACL / f"{part}.acl").read_text().replace(" off ", f' on ">{PASSWORD}" '))
        includes.append(f"include {copy}\n")
    (tmp_path / "users.conf").write_text("".join(includes))
    return Guarded(private_server(options={"include": str(tmp_path / "users.conf")}))


# Users with no more rights than they need


async def test_the_http_server_has_every_right_it_needs_for_callbacks(guarded: Guarded, tmp_path: Path) -> None:
    """A job with a target is taken in, called, retried and, when that is no use, buried."""
    register = tmp_path / "services.toml"
    register.write_text('[services.shop]\nurl = "http://localhost:1"\nmay_be_plain = true\n')  # a refused address
    settings = Settings(server=ServerSettings(services=str(register)))
    scheduler = Scheduler.connect(guarded.url("scheduler"))
    async with running(scheduler):
        service = Service.connect(guarded.url("server"), settings)
        asgi = httpx.ASGITransport(make_app(service))
        async with service.running(), httpx.AsyncClient(transport=asgi, base_url="http://127.0.0.1:7380") as http:
            made = await http.post("/v1/topics/orders/jobs", json={"delay": 0.1, "target": {"service": "shop"}})
            assert made.status_code == 201, made.text

            with Inspector.connect(guarded.url("monitor")) as inspector:
                await until(lambda: any(topic.dead for topic in inspector.stats().topics))
            assert (await http.get("/metrics")).status_code == 200
    assert guarded.refusals() == set()


async def test_a_producer_a_scheduler_a_worker_and_a_monitor_have_every_right_they_need(guarded: Guarded) -> None:
    """Among them what is rare: replaced, moved, buried, retried, recovered, resharded, a standby's take-over."""
    done: set[str] = set()
    settings = Settings(worker=WorkerSettings(renew_ms=100, abandoned_ms=200))
    worker = Worker.connect(guarded.url("worker"), group="shop", settings=settings)

    @worker.handler("orders", retry=Retry(max_attempts=2, base=0.01))
    async def work(job: Job) -> None:
        done.add(job.id)
        job.progress(0.5)
        if job.payload == "bad":
            raise ValueError("a bad job")

    @worker.handler("steps")
    async def link(job: Job) -> None:
        if job.payload not in (0, 8):
            job.then("steps", job.payload - 1, key=f"link-{job.payload - 1}")
        done.add(f"link@{job.payload}")

    @worker.handler("results")
    async def work_for_a_result(job: Job) -> str:
        await job.progress(0.5)
        await asyncio.sleep(0.3)  # long enough for it to be written
        return "result"

    beating = Settings(scheduler=SchedulerSettings(heartbeat_ms=500))
    nodes = [Scheduler.connect(guarded.url("scheduler"), beating) for _ in range(2)]
    tasks = [asyncio.create_task(part.run()) for part in (*nodes, worker)]
    async with AsyncClient.connect(guarded.url("producer")) as producer:
        waiting = Settings(client=ClientSettings(replicated_timeout_ms=10))
        with Client.connect(guarded.url("producer"), waiting) as client, pytest.raises(NotReplicated):  # no replicas
            client.schedule("orders", delay=0.1, key="replicated", durability="replicated")
        await producer.schedule_many(
            "orders", [JobSpec("bad", 0.01, key="bad", on_dead="shop:/dead"), JobSpec("good", 0.3, key="good")]
        )
        await producer.schedule("orders", 1, delay=0, key="now")
        await producer.schedule("steps", 2, delay=0)
        await until(lambda: {f"link@{n}" for n in range(3)} <= done)
        await producer.set_shards("steps", 2)
        carry, worker._parts.carrier.carry = worker._parts.carrier.carry, lambda *_: None  # type: ignore[method-assign]
        await producer.schedule("steps", 9, delay=0)  # the scheduler carries what follows
        await until(lambda: "link@8" in done)
        worker._parts.carrier.carry = carry  # type: ignore[method-assign]
        await producer.schedule("orders", 1, delay=60, key="moved")
        await producer.schedule("orders", 1, delay=60, key="moved", on_duplicate="replace")
        assert await producer.reschedule("orders", "moved", delay=0.2) is RescheduleOutcome.RESCHEDULED
        await producer.schedule("orders", 1, delay=60, key="cancelled")
        assert await producer.cancel("orders", "cancelled") is CancelOutcome.CANCELLED
        await producer.schedule("orders", 1, delay=60, key="early")
        assert await producer.run_now("orders", "early") is RunNowOutcome.PROMOTED
        await producer.get("orders", "bad")
        assert await producer.groups("orders")
        await producer.recurring.put("orders", "tick", "tick", every=1)
        await producer.recurring.put("orders", "ended", every=1, end=datetime.now(UTC))
        await producer.recurring.trigger("orders", "ended")
        assert len(await producer.recurring.list()) == 2
        await until(lambda: sum(id.startswith("tick@") for id in done) > 1)
        await producer.recurring.put("orders", "tick", "tock", every=1)
        await producer.recurring.pause("orders", "tick")
        await producer.recurring.resume("orders", "tick")
        await producer.recurring.remove("orders", "tick")
        keeping = Settings(topic=TopicSettings(keep_done_ms=1))
        async with AsyncClient.connect(guarded.url("producer"), keeping) as other:
            receipts = [await other.schedule("results", n, delay=0.1 * n) for n in range(3)]
            for receipt in receipts:
                with contextlib.suppress(JobNotFound):  # kept for a millisecond
                    await other.wait("results", receipt.id, timeout=PATIENCE)
        await producer.configure("shares", key_concurrency=1, key_rate=50.0)
        await producer.schedule_many(
            "shares", [JobSpec(key=f"fair-{n}", delay=0, partition_key="ann") for n in range(4)]
        )
        await producer.schedule("shares", delay=60, key="fair-now", partition_key="ann")
        assert await producer.run_now("shares", "fair-now", partition_key="ann") in ("held_back", "promoted")
        assert (await producer.topic("shares")).waiting + (await producer.topic("shares")).ready > 0
        fair = Worker.connect(guarded.url("worker"), group="shop", settings=settings)
        ran: set[str] = set()

        @fair.handler("shares")
        async def run_fairly(job: Job) -> None:
            ran.add(job.id)

        async with running(fair):
            await until(lambda: len(ran) == 5)
        await producer.set_shards("orders", 2)
        wanted = {"replicated", "bad", "good", "now", "moved", "early"}
        await until(lambda: {id for id in done if "@" not in id} == wanted)
    with Inspector.connect(guarded.url("monitor")) as inspector:
        await until(lambda: inspector.stats().topics[0].dead == 1)
        with Client.connect(guarded.url("monitor")) as looking:
            [dead] = looking.dead.list("orders").jobs
            assert looking.dead.list("orders", newest_first=False).jobs == [dead]
        with Client.connect(guarded.url("producer")) as client:
            assert client.dead.replay("orders", all=True).replayed == 1
            await until(lambda: inspector.stats().topics[0].dead == 1)
            assert client.dead.purge("orders", all=True) == 1
        await until(lambda: not inspector.stats().topics[0].settings.draining)
        findings = inspector.doctor()
        assert not [finding for finding in findings if finding.level is Level.PROBLEM]
    await worker._janitor.step(worker._shards.shards)
    for part in (nodes[0], worker, nodes[1]):
        part.stop()
        await asyncio.sleep(0.2)
    await asyncio.gather(*tasks)
    probed = {
        f"command {name}" for name in ("xautoclaim", "client|list", "publish", "subscribe", "get")
    }  # doctor tries them
    assert guarded.refusals() - probed == set()


@pytest.mark.parametrize("part", ["operator", "server"])
async def test_an_operator_may_end_groups_and_topics_and_so_may_the_http_server(guarded: Guarded, part: str) -> None:
    """With everything that a group can leave; a worker and a scheduler do their part of it."""
    settings = Settings(client=ClientSettings(topics_ttl_ms=100))
    runs: list[str] = []

    def make() -> Worker:
        worker = Worker.connect(guarded.url("worker"), group="shop", settings=settings)

        @worker.handler("orders", retry=Retry(max_attempts=3, base=300))
        async def work(job: Job) -> None:
            runs.append(job.id)
            await job.progress(0.5, "half")
            if job.id != "done":
                raise Bury("no") if job.id == "dead" else RuntimeError("no")

        return worker

    async with AsyncClient.connect(guarded.url(part), settings) as client:
        await client.configure("orders", keep_done_ms=60_000)
        await client.make_group("orders", "idle")
        worker = make()
        async with running(worker):
            await client.schedule_many("orders", [JobSpec(key=key, delay=0) for key in ("done", "dead", "retried")])
            await until(lambda: len(runs) == 3)
            await client.remove_group("orders", "shop", force=True)
        assert [group.name for group in await client.groups("orders")] == ["idle"]
        again = make()
        async with running(again):
            await client.schedule("orders", key="again", delay=0)
            await until(lambda: "again" in runs)
        guarded.ask("XGROUP", "DESTROY", Keys().shard("orders", 0).ready, "shop")
        transport = AsyncTransport(Address(guarded.url("scheduler")))
        ended = EndedGroups(NodeParts(transport, Keys(), SystemClock()), dict, Carrier(transport))
        for _ in range(3):
            await ended.look("orders", Topic())
        await transport.close()
        await client.remove_topic("orders", force=True)
        assert await client.topics() == []
    assert guarded.refusals() == set()


@pytest.mark.parametrize("right", ["-unlink", "-xtrim", "-xack", "-zmscore", "-srem"])
def test_a_removal_without_its_rights_is_refused_before_it_begins(guarded: Guarded, right: str) -> None:
    """It would stop the topic for good otherwise, or end the workers of the group."""
    guarded.take("operator", right)
    settings = Settings(client=ClientSettings(topics_ttl_ms=100))
    with Client.connect(guarded.url("operator"), settings) as client:
        client.make_group("orders", "mail")
        client.schedule("orders", key="a", delay=60)
        before = client.topics()
        with pytest.raises(NotPermitted, match=right.removeprefix("-")):
            client.remove_topic("orders", force=True)
        if right != "-srem":
            with pytest.raises(NotPermitted):
                client.remove_group("orders", "mail", force=True)
        assert client.topics() == before
        assert client.schedule("orders", key="b", delay=60).created
        guarded.take("operator", right.replace("-", "+", 1))
        assert client.remove_group("orders", "mail")
        client.remove_topic("orders", force=True)
        assert client.topics() == []


@pytest.mark.parametrize("part", ["scheduler", "worker", "server", "monitor"])
async def test_each_process_may_tell_the_metrics_of_the_whole_fleet(guarded: Guarded, part: str) -> None:
    """With something of everything that they tell of: a group that is behind, histograms, a recurring job."""
    with Client.connect(guarded.url("producer")) as client:
        client.make_group("orders", "shop")
        client.schedule_many("orders", [JobSpec(delay=delay) for delay in (0, 0, 60)])
        client.recurring.put("orders", "nightly", every=3_600)
        assert client.history("orders") == []
    with contextlib.closing(Transport(Address(guarded.url("worker")))) as transport:
        worked = {(Measured.HANDLER, "orders", "shop"): [1_000, *([1] * (len(BOUNDS[Measured.HANDLER]) + 1))]}
        assert transport.send(counts.observe(Keys(), "worker", 1, worked))
    transport = AsyncTransport(Address(guarded.url(part)))
    told = await FleetMetrics(transport, Keys(), SystemClock(), "1").text()
    await transport.close()
    assert guarded.refusals() == set()
    for metric in (
        'wheelq_jobs{topic="orders",state="waiting"} 1',
        'wheelq_due_jobs{topic="orders",within="1h"} 1',
        'wheelq_group_lag_jobs{topic="orders",group="shop"} 2',
        'wheelq_scheduled_total{topic="orders",outcome="created"} 3',
        'wheelq_handler_seconds_count{topic="orders",group="shop"}',
        "wheelq_redis_memory_ratio",
        "wheelq_redis_up 1",
    ):
        assert metric in told


def test_a_scheduler_may_mend_a_change_that_was_left_half_done(guarded: Guarded) -> None:
    with contextlib.closing(Transport(Address(guarded.url("scheduler")))) as transport:
        transport.send(registry.fence(Keys().shard("orders", 0), "2", 1))
    assert guarded.refusals() == set()


async def test_a_scheduler_may_list_shards_again_whose_number_was_lost(guarded: Guarded) -> None:
    keys, shard = Keys(), Keys().shard("orders", 2)
    async with AsyncClient.connect(guarded.url("producer")) as client:
        await client.schedule("orders", delay=60)
    guarded.ask("XGROUP", "CREATE", Keys().shard("orders", 0).ready, "billing", "0", "MKSTREAM")
    transport = AsyncTransport(Address(guarded.url("scheduler")))
    lost = LostTopics(NodeParts(transport, keys, ManualClock()))
    lost.note({"orders": Topic(shards=3, version=2)}, {"orders": Topic()})
    await lost.restore()
    found = await transport.send(registry.topic(keys, "orders"))
    assert found is not None
    assert found.numbers == {1, 3}
    assert guarded.ask("EXISTS", shard.ready)
    assert guarded.refusals() == set()
    await transport.close()


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("producer", "FLUSHALL"),
        ("producer", "KEYS *"),
        ("producer", "CONFIG GET save"),
        ("producer", "GET secret"),
        ("producer", "DEL wheelq:topics"),
        ("producer", "PUBLISH elsewhere hello"),
        ("producer", "XREADGROUP GROUP g c STREAMS wheelq:{orders:0}:ready >"),
        ("scheduler", "FLUSHALL"),
        ("scheduler", "SHUTDOWN"),
        ("scheduler", "GET secret"),
        ("scheduler", "SUBSCRIBE elsewhere"),
        ("scheduler", "CLIENT KILL TYPE normal"),
        ("worker", "FLUSHALL"),
        ("worker", "DEL wheelq:topics"),
        ("worker", "SCRIPT FLUSH"),
        ("worker", "CLIENT LIST"),
        ("monitor", "HSET wheelq:topics a b"),
        ("monitor", "XDEL wheelq:{orders:0}:dead 1-1"),
        ("monitor", "CONFIG SET save x"),
    ],
)
def test_a_part_may_do_nothing_besides(guarded: Guarded, part: str, words: str) -> None:
    transport = Transport(Address(guarded.url(part)))
    with pytest.raises(NotPermitted):
        transport.send(command(words, read=lambda reply: reply))
    transport.close()


@pytest.mark.parametrize(
    ("right", "named"),
    [
        ("-evalsha", "evalsha"),
        ("-zadd", "zadd"),
        ("-hsetnx", "hsetnx"),
        ("resetkeys", "key"),
        ("-script", "script"),
    ],
)
def test_a_producer_that_lacks_a_right_is_told_which(guarded: Guarded, right: str, named: str) -> None:
    guarded.take("producer", right)
    with Client.connect(guarded.url("producer")) as client, pytest.raises(NotPermitted) as refused:
        client.schedule("orders", delay=60)
    assert named in str(refused.value).lower()


def test_a_producer_without_channels_schedules_and_is_warned_that_jobs_may_be_late(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """The script had written the job before it published: the producer was told that nothing was done."""
    with Client.connect(guarded.url("producer")) as client:
        client.schedule("orders", delay=60, key="first")
        shard = Keys().shard("orders", 0)
        guarded.ask("SET", shard.horizon, 2**52)  # a leader has loaded all that is near
        guarded.take("producer", "resetchannels")
        for key, delay in (("second", 60), ("third", 60)):
            assert client.schedule("orders", delay=delay, key=key).created
        assert all(receipt.created for receipt in client.schedule_many("orders", [JobSpec(delay=60)] * 3))
        assert client.reschedule("orders", "first", delay=30) is RescheduleOutcome.RESCHEDULED
        assert client.configure("orders", max_rate=5.0).max_rate == 5.0
        assert client.schedule("mails", delay=0).created
    assert guarded.ask("ZCARD", shard.delayed) == 6  # first to third, and three
    assert [record.message for record in caplog.records if "no channel" in record.message][1:] == []
    assert "a minute late" in caplog.text


async def test_a_worker_that_may_not_read_says_so(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    guarded.take("worker", "-xreadgroup")
    with Client.connect(guarded.url("producer")) as client:
        client.schedule("orders", delay=60)
    async with running(worker_at(guarded.url("worker"))):
        await until(lambda: "'xreadgroup'" in caplog.text)


async def test_a_worker_without_channels_works_and_listens_as_soon_as_it_may(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis 7 gives a new user no channels. It used to end the worker, with exit code 0."""
    guarded.take("worker", "resetchannels")
    worker, ran = collecting(guarded.url("worker"), "orders")
    async with running(Scheduler.connect(guarded.url("scheduler")), worker):
        await until(lambda: "ACL SETUSER <user> &wheelq:*" in caplog.text)
        async with AsyncClient.connect(guarded.url("producer")) as producer:
            await producer.schedule("orders", key="a", delay=0.1)
            await until(lambda: ran == ["a"])
        await asyncio.sleep(1.5)  # it tries again each second, and says so once
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert sum("asks for changes of its topics until the server permits it" in line for line in warnings) == 1
        assert not worker._hints.is_listening
        guarded.take("worker", "&wheelq:*")
        await until(lambda: worker._hints.is_listening)


async def test_a_scheduler_without_channels_waits_for_them(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    guarded.take("scheduler", "resetchannels")
    scheduler = Scheduler.connect(guarded.url("scheduler"))
    async with running(scheduler):
        await until(lambda: "ACL SETUSER <user> &wheelq:*" in caplog.text)
        guarded.take("scheduler", "&wheelq:*")
        async with AsyncClient.connect(guarded.url("producer")) as producer:
            await producer.schedule("orders", delay=0.1)
        await until(lambda: scheduler.promoted == 1)


@pytest.mark.parametrize(
    ("part", "right", "title", "level"),
    [
        ("worker", "resetchannels", "The use of channels was refused", Level.PROBLEM),
        ("producer", "resetchannels", "The use of channels was refused", Level.PROBLEM),
        ("worker", "-subscribe", "SUBSCRIBE was refused to this user", Level.WARNING),
        ("scheduler", "-publish", "PUBLISH was refused to this user", Level.WARNING),
    ],
)
def test_doctor_knows_the_rights_to_channels(guarded: Guarded, part: str, right: str, title: str, level: Level) -> None:
    names = ("channels", "SUBSCRIBE", "PUBLISH")

    def found() -> dict[str, Level]:
        with Inspector.connect(guarded.url(part)) as inspector:
            facts = inspector.server_facts()
        return {
            finding.title: finding.level
            for finding in diagnose_server(facts)
            if any(name in finding.title for name in names)
        }

    before = found()
    guarded.take(part, right)
    assert found() == before | {title: level}


async def test_a_scheduler_waits_for_the_lease_of_a_dead_leader_where_it_may_not_list_clients(guarded: Guarded) -> None:
    guarded.take("scheduler", "-client", "+client|id")
    with Client.connect(guarded.url("producer")) as client:
        client.schedule("orders", delay=0.01)
        run_id = next(line[7:] for line in guarded.ask("INFO", "server").decode().splitlines() if "run_id" in line)
        lease = Keys().shard("orders", 0).lease
        guarded.ask("SET", lease, f"dead:1:{run_id}:999999", "PX", 1000)
        scheduler = Scheduler.connect(guarded.url("scheduler"))
        async with running(scheduler):
            await until(lambda: scheduler.promoted > 0)


# Passwords and addresses


@pytest.mark.parametrize("port", [None, 0], ids=["unix", "tcp"])
@pytest.mark.parametrize("password", NASTY)
async def test_any_password_works_when_it_is_percent_encoded(
    private_server: Start, password: str, port: int | None
) -> None:
    server = private_server(password=password, port=port)
    assert quote(password, safe="") in server.url
    with Client.connect(server.url) as client:
        client.schedule("orders", key="a", delay=60)
    async with AsyncClient.connect(server.url) as aclient:
        assert await aclient.get("orders", "a")
    subscription = AsyncTransport(Address(server.url)).subscription()
    await subscription.open(["wheelq:changes"])
    await subscription.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pa/ss@127.0.0.1:1/0",
        "redis://:12/34@127.0.0.1:1",
        "redis://user:pa?ss@127.0.0.1:1",
        "redis://user:pa#ss@127.0.0.1:1",
        "redis://:s℀cret@127.0.0.1:1",
        "redis://:sec[ret@127.0.0.1:1",
        "unix://:pa/ss@/tmp/none.sock",
        "user:s3cret@localhost:6379",
    ],
)
def test_a_password_that_is_not_encoded_is_refused_and_not_misread(url: str) -> None:
    secret = url.rpartition("@")[0].rpartition(":")[2]
    with pytest.raises(ConfigurationError) as refused:
        Client.connect(url)
    told = "".join(traceback.format_exception(refused.value))
    assert secret not in told.replace(url, "")
    assert "***" in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:secret@h:1/0", "redis://:***@h:1/0"),
        ("redis://user:secret@h:1", "redis://user:***@h:1"),
        ("redis://user:s%40%2F@h", "redis://user:***@h"),
        ("redis://h:1/0?password=secret", "redis://h:1/0"),
        ("rediss://:secret@h:1?ssl_password=secret", "rediss://:***@h:1"),
        ("unix://:secret@/tmp/s.sock?db=1", "unix://:***@/tmp/s.sock"),
        ("unix:///tmp/a@b.sock", "unix:///tmp/a@b.sock"),
    ],
)
def test_the_shown_address_has_no_password(url: str, shown: str) -> None:
    assert Address(url).shown == shown


@pytest.mark.parametrize("how", ["wrong password", "nobody there"])
async def test_errors_and_logs_do_not_tell_the_password(
    private_server: Start, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = private_server(password="right")
    url = server.url.replace("right", "wr0ng") if how == "wrong password" else "redis://user:wr0ng@127.0.0.1:1"
    expected = AuthenticationFailed if how == "wrong password" else Unavailable
    errors: list[WheelqError] = []
    for attempt in (
        lambda: asyncio.to_thread(lambda: Client.connect(url).topics()),
        lambda: AsyncClient.connect(url).topics(),
        lambda: Scheduler.connect(url).run(),
        lambda: AsyncTransport(Address(url)).subscription().open(["wheelq:changes"]),
    ):
        with pytest.raises(expected) as failed:
            await attempt()
        errors.append(failed.value)
    told = "".join("".join(traceback.format_exception(error)) for error in errors) + caplog.text
    assert "wr0ng" not in told.replace(url, "")


def test_the_url_comes_from_the_environment_where_none_is_given(
    private_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHEELQ_URL", private_server(password="p@ss").url)
    with Client.connect() as client:
        assert client.schedule("orders", delay=60).created
    monkeypatch.delenv("WHEELQ_URL")
    with Client.connect() as client, pytest.raises(ConfigurationError, match="WHEELQ_URL"):
        client.topics()


# TLS


async def test_tls_works_for_every_kind_of_connection(tls_url: str, tmp_path: Path) -> None:
    url = f"{tls_url}?ssl_ca_certs={tmp_path / 'ca.pem'}"
    worker, ran = collecting(url, "orders")
    async with running(Scheduler.connect(url), worker):  # with subscriptions
        with Client.connect(url) as client:
            await asyncio.to_thread(client.schedule, "orders", delay=60, key="a")
        async with AsyncClient.connect(url) as aclient:
            await aclient.reschedule("orders", "a", delay=0.05)
        await until(lambda: ran == ["a"])


@pytest.mark.parametrize("wrong", ["authority", "name", "port"])
async def test_tls_that_cannot_be_trusted_is_unavailable_and_says_why(
    tls_url: str, tmp_path: Path, authority: trustme.CA, wrong: str
) -> None:
    """Another authority; a certificate for another name; a server that speaks TLS to one that does not.

    A wrong certificate is known for one. A server that hangs up may as well be about to end.
    """
    kind = Unavailable if wrong == "port" else TlsFailed
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    url, cause = {
        "authority": (f"{tls_url}?ssl_ca_certs={other}", "certificate verify failed"),
        "name": (
            f"{tls_url.replace('127.0.0.1', 'localhost')}?ssl_ca_certs={tmp_path / 'ca.pem'}",
            "Hostname mismatch",
        ),
        "port": (tls_url.replace("rediss", "redis"), r"redis://:\*\*\*@127.0.0.1"),
    }[wrong]
    with Client.connect(url) as client, pytest.raises(kind, match=cause):
        client.topics()
    async with AsyncClient.connect(url) as aclient:
        with pytest.raises(kind, match=cause):
            await aclient.topics()
