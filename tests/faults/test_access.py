"""Who may connect and what they may do: ACL users, passwords, unix sockets, TLS.

The users are those of `config/acl`. That they have every right they need is read from the server's own log of refusals,
which must stay empty while a producer, a scheduler and a worker do all they can do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trustme

from tests.waiting import until
from wheelq import AsyncClient, CancelOutcome, Client, Job, JobSpec, Retry, Scheduler, Settings, Worker
from wheelq.diagnosis import Level
from wheelq.embedded import EmbeddedServer
from wheelq.errors import AuthenticationFailed, ConfigurationError, JobNotFound, NotReplicated, Unavailable, WheelqError
from wheelq.inspector import Inspector
from wheelq.protocol.call import command
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.server.app import make_app
from wheelq.server.service import Service
from wheelq.settings import ClientSettings, SchedulerSettings, ServerSettings, TopicSettings, WorkerSettings
from wheelq.transport import Address, AsyncTransport, Transport

ACL = Path(__file__).parents[2] / "config" / "acl"
PARTS = ("producer", "scheduler", "worker", "monitor", "server")
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
    scheduling = asyncio.create_task(scheduler.run())
    service = Service.connect(guarded.url("server"), settings)
    asgi = httpx.ASGITransport(make_app(service))
    async with service.running(), httpx.AsyncClient(transport=asgi, base_url="http://127.0.0.1:7380") as http:
        made = await http.post("/v1/topics/orders/jobs", json={"delay": 0.1, "target": {"service": "shop"}})
        assert made.status_code == 201, made.text

        with Inspector.connect(guarded.url("monitor")) as inspector:
            await until(lambda: any(topic.dead for topic in inspector.stats().topics))
        assert (await http.get("/metrics")).status_code == 200
    scheduler.stop()
    await scheduling
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

    @worker.handler("results")
    async def work_for_a_result(job: Job) -> str:
        await job.progress(0.5)
        await asyncio.sleep(0.3)  # long enough for it to be written
        return "result"

    beating = Settings(scheduler=SchedulerSettings(heartbeat_ms=500))
    nodes = [Scheduler.connect(guarded.url("scheduler"), beating) for _ in range(2)]
    running = [asyncio.create_task(part.run()) for part in (*nodes, worker)]
    async with AsyncClient.connect(guarded.url("producer")) as producer:
        waiting = Settings(client=ClientSettings(replicated_timeout_ms=10))
        with Client.connect(guarded.url("producer"), waiting) as client, pytest.raises(NotReplicated):  # no replicas
            client.schedule("orders", delay=0.1, key="replicated", durability="replicated")
        await producer.schedule_many("orders", [JobSpec("bad", 0.01, key="bad"), JobSpec("good", 0.3, key="good")])
        await producer.schedule("orders", 1, delay=0, key="now")
        await producer.schedule("orders", 1, delay=60, key="moved")
        await producer.schedule("orders", 1, delay=60, key="moved", on_duplicate="replace")
        assert await producer.reschedule("orders", "moved", delay=0.2)
        await producer.schedule("orders", 1, delay=60, key="cancelled")
        assert await producer.cancel("orders", "cancelled") is CancelOutcome.CANCELLED
        await producer.schedule("orders", 1, delay=60, key="early")
        assert await producer.run_now("orders", "early")
        await producer.get("orders", "bad")
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
                    await other.wait("results", receipt.id, timeout=10)
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
    await worker._janitor.step(worker._following.lines)
    for part in (nodes[0], worker, nodes[1]):
        part.stop()
        await asyncio.sleep(0.2)
    await asyncio.gather(*running)
    probed = {"command xautoclaim", "command client|list"}  # what doctor asks for, to tell whether it is there
    assert guarded.refusals() - probed == set()


def test_a_scheduler_may_mend_a_change_that_was_left_half_done(guarded: Guarded) -> None:
    with contextlib.closing(Transport(Address(guarded.url("scheduler")))) as transport:
        transport.send(registry.fence(Keys().shard("orders", 0), "2"))
    assert guarded.refusals() == set()


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
    with pytest.raises(AuthenticationFailed):
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
    with Client.connect(guarded.url("producer")) as client, pytest.raises(AuthenticationFailed) as refused:
        client.schedule("orders", delay=60)
    assert named in str(refused.value).lower()


async def test_a_worker_that_may_not_read_says_so(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    guarded.take("worker", "-xreadgroup")
    with Client.connect(guarded.url("producer")) as client:
        client.schedule("orders", delay=60)
    worker = Worker.connect(guarded.url("worker"))
    worker.handler("orders")(print)
    running = asyncio.create_task(worker.run())
    await until(lambda: "'xreadgroup'" in caplog.text)
    worker.stop()
    await running


async def test_a_scheduler_waits_for_the_lease_of_a_dead_leader_where_it_may_not_list_clients(guarded: Guarded) -> None:
    guarded.take("scheduler", "-client", "+client|id")
    with Client.connect(guarded.url("producer")) as client:
        client.schedule("orders", delay=0.01)
        run_id = next(line[7:] for line in guarded.ask("INFO", "server").decode().splitlines() if "run_id" in line)
        lease = Keys().shard("orders", 0).lease
        guarded.ask("SET", lease, f"dead:1:{run_id}:999999", "PX", 1000)
        scheduler = Scheduler.connect(guarded.url("scheduler"))
        running = asyncio.create_task(scheduler.run())
        await until(lambda: scheduler.promoted > 0)
        scheduler.stop()
        await running


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
    with pytest.raises(ConfigurationError, match="WHEELQ_URL"):
        Client.connect()


# TLS


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_url(private_server: Start, tmp_path: Path, authority: trustme.CA) -> str:
    """A server that speaks TLS on a port of 127.0.0.1, without the option that names the authority."""
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = {
        "tls-port": str(port),
        "tls-cert-file": str(tmp_path / "server.crt"),
        "tls-key-file": str(tmp_path / "server.key"),
        "tls-ca-cert-file": str(tmp_path / "ca.pem"),
        "tls-auth-clients": "no",
    }
    try:
        private_server(password="p@ss", port=0, options=options)
    except ConfigurationError as error:
        if "Bad directive" in str(error) or "TLS support" in str(error):
            pytest.skip("this server was built without TLS")
        raise
    return f"rediss://:p%40ss@127.0.0.1:{port}"


async def test_tls_works_for_every_kind_of_connection(tls_url: str, tmp_path: Path) -> None:
    url = f"{tls_url}?ssl_ca_certs={tmp_path / 'ca.pem'}"
    done = asyncio.Event()
    worker = Worker.connect(url)

    @worker.handler("orders")
    async def work(job: Job) -> None:
        done.set()

    scheduler = Scheduler.connect(url)  # with a subscription
    running = [asyncio.create_task(part.run()) for part in (scheduler, worker)]
    with Client.connect(url) as client:
        await asyncio.to_thread(client.schedule, "orders", delay=60, key="a")
    async with AsyncClient.connect(url) as aclient:
        await aclient.reschedule("orders", "a", delay=0.05)
    await asyncio.wait_for(done.wait(), 10)
    scheduler.stop()
    worker.stop()
    await asyncio.gather(*running)


@pytest.mark.parametrize("wrong", ["authority", "name", "port"])
async def test_tls_that_cannot_be_trusted_is_unavailable_and_says_why(
    tls_url: str, tmp_path: Path, authority: trustme.CA, wrong: str
) -> None:
    """Another authority; a certificate for another name; a server that speaks TLS to one that does not."""
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
    with Client.connect(url) as client, pytest.raises(Unavailable, match=cause):
        client.topics()
    async with AsyncClient.connect(url) as aclient:
        with pytest.raises(Unavailable, match=cause):
            await aclient.topics()
