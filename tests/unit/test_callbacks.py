"""Callbacks without a network: what an answer means, what a request looks like, whom it may reach."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from loadtest.servers.nodes import free_port
from tests.waiting import in_time
from wheelq.base.clock import ManualClock, SystemClock
from wheelq.callbacks import caller as callbacks_caller
from wheelq.callbacks.addresses import networks
from wheelq.callbacks.caller import FORGOTTEN_S, CallbackCaller, Hopeless, TryAgain, message_id, of_answer
from wheelq.callbacks.network import AddressRefused, GuardedTransport
from wheelq.callbacks.services import Services, Terms
from wheelq.callbacks.target import Target
from wheelq.model.job import Job
from wheelq.model.retry import Bury, Retry, RetryAfter
from wheelq.producer.breaker import BreakerState
from wheelq.settings import BreakerSettings
from wheelq.worker.handlers.handler import Handler
from wheelq.worker.handlers.typed import typed

OLD, NEW = (f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))
BREAKER = BreakerSettings(failures=3, failing_ms=100, open_ms=1_000, open_max_ms=4_000)
SHOP: dict[str, Any] = {"services": {"shop": {"url": "https://shop.example/hooks"}}}
SERVICES = Services.read(
    {
        "services": {
            "shop": {
                "url": "https://shop.example/hooks",
                "secrets": [NEW, OLD],
                "retry": {"delays": [1, 5]},
                "concurrency": 2,
            },
            "bare": {"url": "https://bare.example"},
        }
    }
)
Answer = Callable[[httpx.Request], httpx.Response]


class Receiver:
    """Answers requests as it is told to, and keeps them."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer: Answer = answer or (lambda request: httpx.Response(200))
        self.requests: list[httpx.Request] = []
        self.clock = ManualClock(wall_ms=int(datetime.now(UTC).timestamp() * 1000))
        self.caller = CallbackCaller(
            SERVICES, self.clock, BREAKER, transport=lambda allowed: httpx.MockTransport(self._take)
        )

    def _take(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer(request)

    async def call(self, attempt: int = 1, **fields: Any) -> None:
        await self.caller(job(attempt=attempt, **fields))

    async def outcome(self, attempt: int = 1, **fields: Any) -> Bury | RetryAfter | None:
        try:
            await self.call(attempt, **fields)
        except (Bury, RetryAfter) as error:
            return error
        return None


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


PAID = Target("shop", "/paid")


def job(target: Target | None = PAID, **fields: Any) -> Job:
    headers = fields.pop("headers", {}) | ({"wheelq-target": target.header()} if target else {})
    values = {"payload": {"id": 42}, "due_ms": 1_750_000_000_000, "attempt": 1, "started_ms": 1_750_000_000_001}
    return Job(**{"id": "order-42", "topic": "orders", "entry_id": "1-1", "headers": headers} | values | fields)


# What an answer means


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_any_2xx_is_done(status: int) -> None:
    assert of_answer(status, {}, 0) is None


@pytest.mark.parametrize("status", [408, 425, 500, 502, 503, 504, 599])
def test_errors_of_the_receiver_are_tried_again_and_speak_against_it(status: int) -> None:
    verdict = of_answer(status, {}, 0)
    assert isinstance(verdict, TryAgain)
    assert verdict.is_failure


@pytest.mark.parametrize("status", [300, 301, 302, 307, 308, 304])
def test_redirects_are_not_followed(status: int) -> None:
    verdict = of_answer(status, {"location": "http://169.254.169.254/"}, 0)
    assert verdict == Hopeless(f"answered {status}; redirects are not followed")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 418, 422])
def test_other_refusals_are_final(status: int) -> None:
    assert of_answer(status, {}, 0) == Hopeless(f"answered {status}")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30", 30.0),
        ("0", 0.0),
        ("-5", 0.0),
        ("999999", 3_600.0),
        ("9" * 400, 3_600.0),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
        ("1e9", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured_as_seconds_or_as_a_date(status: int, written: str, seconds: float | None) -> None:
    verdict = of_answer(status, {"retry-after": written}, now_s=0.0)
    assert isinstance(verdict, TryAgain)
    assert verdict.after == seconds


def test_a_receiver_that_has_too_much_to_do_is_well() -> None:
    verdict = of_answer(429, {}, 0)
    assert isinstance(verdict, TryAgain)
    assert not verdict.is_failure


# The request


async def test_a_callback_is_the_payload_as_json_signed_by_every_secret(receiver: Receiver) -> None:
    await receiver.call(headers={"x-trace": "abc"}, attempt=3)
    [request] = receiver.requests
    assert (request.method, str(request.url)) == ("POST", "https://shop.example/hooks/paid")
    assert json.loads(request.content) == {"id": 42}
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(request.content, dict(request.headers)) == {"id": 42}
    assert request.headers["content-type"] == "application/json"
    assert request.headers["wheelq-topic"] == "orders"
    assert request.headers["wheelq-job"] == "order-42"
    assert request.headers["wheelq-attempt"] == "3"
    assert request.headers["x-trace"] == "abc"
    assert "wheelq-target" not in request.headers


async def test_every_attempt_at_a_job_has_the_same_message_id_and_another_job_another() -> None:
    assert message_id(job(attempt=1)) == message_id(job(attempt=2, due_ms=1, entry_id="9-9"))
    others = [job(id="order-43"), job(topic="invoices"), job(first_due_ms=5)]
    assert len({message_id(other) for other in (job(), *others)}) == 4


async def test_a_job_cannot_set_headers_that_are_not_its_to_set(receiver: Receiver) -> None:
    smuggled = {
        "Host": "evil.example",
        "webhook-signature": "v1,x",
        "Content-Length": "0",
        "x-bad": "a\r\nb: c",
        "ü": "1",
        "Content-Encoding": "gzip",
        "Expect": "100-continue",
        "Keep-Alive": "1",
        "Trailer": "x",
        "webhook_signature": "v1,x",
        "wheelq_topic": "other",
        "x-good": "1",
        "x-spaced": " 2 ",
    }
    await receiver.call(headers=smuggled)
    [request] = receiver.requests
    assert request.headers["host"] == "shop.example"
    assert request.headers["x-spaced"] == "2"
    assert Webhook(NEW).verify(request.content, dict(request.headers))
    assert "x-bad" not in request.headers
    assert request.headers["content-length"] == str(len(request.content))
    assert not {"content-encoding", "expect", "keep-alive", "trailer"} & set(request.headers)
    assert not {"webhook_signature", "wheelq_topic"} & set(request.headers), "CGI takes them for those with hyphens"
    assert request.headers["x-good"] == "1"


async def test_bytes_are_sent_as_base64(receiver: Receiver) -> None:
    await receiver.call(payload=b"\x00\xff")
    [request] = receiver.requests
    assert base64.b64decode(request.content) == b"\x00\xff"
    assert request.headers["content-type"].startswith("text/plain")


class Unpackable(httpx.AsyncByteStream):
    """No gzip, whatever the header says."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"fine"


async def test_an_answer_counts_though_its_body_is_not_what_it_says() -> None:
    """Nobody needs the body, so nobody unpacks it."""
    answer = httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Unpackable())
    assert await Receiver(lambda request: answer).outcome() is None


async def test_without_secrets_a_callback_is_not_signed(receiver: Receiver) -> None:
    await receiver.call(target=Target("bare", "/x"))
    assert "webhook-signature" not in receiver.requests[0].headers


async def test_a_job_without_a_target_is_nothing_to_do(receiver: Receiver) -> None:
    assert await receiver.outcome(target=None) is None
    assert receiver.requests == []


async def test_a_target_that_is_not_allowed_is_buried_and_logged(
    caplog: pytest.LogCaptureFixture, receiver: Receiver
) -> None:
    outcome = await receiver.outcome(target=Target(url="http://169.254.169.254/latest/meta-data/"))
    assert isinstance(outcome, Bury)
    assert "is not among the URLs that are allowed" in caplog.text
    assert receiver.requests == []


# Attempts


@pytest.mark.parametrize(
    "written", [Target(url="https://xn--i-7iq.ws/").header(), "[" * 20_000], ids=["no international name", "deep"]
)
async def test_a_target_that_cannot_be_read_is_buried(written: str) -> None:
    anywhere = CallbackCaller(Services.read({"urls": {"allow": ["https://*"]}}), SystemClock())
    with pytest.raises(Bury, match=r"its target may not be called: .*(not an international host name|not readable)"):
        await anywhere(job(None, headers={"wheelq-target": written}))


async def test_a_request_that_fails_in_no_known_way_counts_as_an_attempt(receiver: Receiver) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise RuntimeError("a defect")

    receiver.answer = fail
    outcome = await receiver.outcome(attempt=3)
    assert isinstance(outcome, Bury)
    assert "a defect" in str(outcome)


def test_by_default_a_receiver_may_be_away_for_about_half_a_day() -> None:
    """7 to 14 hours, by the jitter: over a night."""
    retry = Terms().retry
    for draw, hours in ((0.0, 14), (0.5, 11), (1.0, 7)):
        pauses_ms = [retry.pause_ms(attempt, draw) or 0 for attempt in range(1, 24)]
        assert 0 not in pauses_ms
        assert round(sum(pauses_ms) / 3_600_000) == hours
    assert retry.pause_ms(24, 0.0) is None


async def test_failures_are_retried_at_the_services_times_and_then_buried() -> None:
    receiver = Receiver(lambda request: httpx.Response(500))
    pauses = []
    for attempt in (1, 2):
        outcome = await receiver.outcome(attempt)
        assert isinstance(outcome, RetryAfter)
        assert outcome.counts
        pauses.append(outcome.pause_ms)
    assert pauses == [1_000, 5_000]
    last = await receiver.outcome(3)
    assert isinstance(last, Bury)
    assert "answered 500, and attempt 3 was the last" in str(last)


@given(
    delays=st.lists(st.floats(0.001, 3_600), min_size=1, max_size=5),
    max_attempts=st.integers(1, 8),
    asked=st.none() | st.integers(0, 100),
)
async def test_attempts_come_in_the_order_that_is_configured_and_never_sooner(
    delays: list[float], max_attempts: int, asked: int | None
) -> None:
    """Each pause in its turn, the last again and again, longer if the receiver asks; then the job is buried."""
    headers = {} if asked is None else {"retry-after": str(asked)}
    receiver = Receiver(lambda request: httpx.Response(503, headers=headers))
    retry = {"delays": delays, "max_attempts": max_attempts}
    services = Services.read({"services": {"shop": {"url": "https://shop.example", "retry": retry}}})
    pauses = []
    for attempt in range(1, max_attempts + 1):
        caller = CallbackCaller(services, receiver.clock, BREAKER, lambda allowed: httpx.MockTransport(receiver._take))
        with pytest.raises((RetryAfter, Bury)) as caught:
            await caller(job(attempt=attempt))
        if isinstance(caught.value, RetryAfter):
            assert caught.value.counts
            pauses.append(caught.value.pause_ms / 1000)
    assert isinstance(caught.value, Bury), "the last attempt"
    configured = [delays[min(n, len(delays) - 1)] for n in range(max_attempts - 1)]
    assert pauses == pytest.approx([max(pause, asked or 0) for pause in configured], abs=0.001)
    assert [int(request.headers["wheelq-attempt"]) for request in receiver.requests] == [*range(1, max_attempts + 1)]


async def test_a_pause_that_the_receiver_asks_for_is_kept_by_all_its_jobs() -> None:
    receiver = Receiver(lambda request: httpx.Response(429, headers={"retry-after": "30"}))
    first = await receiver.outcome()
    assert isinstance(first, RetryAfter)
    assert (first.pause_ms, first.counts) == (30_000, True)
    second = await receiver.outcome(id="order-43")
    assert isinstance(second, RetryAfter)
    assert not second.counts, "it was not sent: that is no attempt"
    assert len(receiver.requests) == 1


def fail(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused")


async def test_a_receiver_that_keeps_failing_is_left_alone_then_probed() -> None:
    receiver = Receiver(fail)
    for attempt in (1, 2, 1):
        await receiver.outcome(attempt)
        receiver.clock.advance(0.06)
    [info] = receiver.caller.infos()
    assert (info.name, info.state, info.failed) == ("shop", BreakerState.OPEN, 3)
    assert "connection refused" in str(info.last_error)
    put_off = await receiver.outcome()
    assert isinstance(put_off, RetryAfter)
    assert not put_off.counts
    told = "shop is left alone for a while: https://shop.example/hooks/paid could not be asked: connection refused"
    assert str(put_off) == told
    assert str(await receiver.outcome(2, last_error="its own")) == "", "it keeps its own error"
    assert len(receiver.requests) == 3
    receiver.clock.advance(1.0)
    receiver.answer = lambda request: httpx.Response(204)
    assert await receiver.outcome() is None
    assert receiver.caller.infos()[0].state is BreakerState.CLOSED


async def test_another_receiver_is_not_concerned() -> None:
    receiver = Receiver(lambda request: fail(request) if request.url.host == "shop.example" else httpx.Response(200))
    for _ in range(4):
        await receiver.outcome()
        receiver.clock.advance(0.06)
    assert await receiver.outcome(target=Target("bare")) is None


async def test_a_host_that_jobs_name_is_one_receiver_however_it_is_written_and_is_forgotten() -> None:
    allowed = Services.read({"urls": {"allow": ["https://*.example", "https://*.example:444"]}, **SHOP})
    clock = ManualClock()
    caller = CallbackCaller(
        allowed, clock, transport=lambda networks: httpx.MockTransport(lambda _: httpx.Response(200))
    )
    for url in ("https://a.example/x", "https://A.example:443/y", "https://a.example:444/"):
        await caller(job(target=Target(url=url)))
    assert [(info.name, info.succeeded) for info in caller.infos()] == [("a.example", 2), ("a.example:444", 1)]
    await caller(job())
    clock.advance(FORGOTTEN_S + 1)
    await caller(job(target=Target(url="https://b.example/")))
    assert [info.name for info in caller.infos()] == ["b.example", "shop"]


async def test_credentials_in_a_query_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(lambda request: httpx.Response(404))
    outcome = await receiver.outcome(target=Target("shop", "/x?token=hush"))
    assert "shop.example/hooks/x" in caplog.text
    assert "hush" not in caplog.text
    assert "hush" not in str(outcome)


# Connecting


@pytest.mark.parametrize(
    "answers",
    [["127.0.0.1"], ["169.254.169.254"], ["93.184.215.14", "10.0.0.1"], ["::ffff:127.0.0.1"], ["fd00:ec2::254"]],
)
async def test_a_name_that_leads_to_a_private_address_is_refused(
    answers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return answers

    async with httpx.AsyncClient(transport=GuardedTransport(resolve=resolve)) as client:
        with pytest.raises(AddressRefused):
            await client.post("http://harmless.example/")
    assert "refused to connect to harmless.example:80" in caplog.text


async def test_a_name_is_resolved_once_and_that_address_is_used() -> None:
    """An answer that changes between check and connection ("DNS rebinding") has no moment to do so."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    allowed = networks(["127.0.0.0/8"], "networks")
    async with httpx.AsyncClient(transport=GuardedTransport(allowed, resolve=resolve), timeout=5) as client:
        with pytest.raises(httpx.TransportError) as first:
            await client.post(f"http://changing.example:{free_port()}/")
        assert not isinstance(first.value, AddressRefused), "loopback is allowed here; nobody listens at that port"
        assert asked == ["changing.example"]
        with pytest.raises(AddressRefused):
            await client.post("http://changing.example/")


async def test_a_name_that_cannot_be_resolved_is_worth_another_attempt() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    caller = CallbackCaller(
        SERVICES, ManualClock(), transport=lambda allowed: GuardedTransport(allowed, resolve=resolve)
    )
    with pytest.raises(RetryAfter, match="cannot be resolved: no such name"):
        await caller(job())
    await caller.close()


CHUNKED = b"HTTP/1.1 %b\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def answering(answer: bytes, *, is_slow: bool = False) -> AsyncIterator[CallbackCaller]:
    """A caller of a receiver (`odd`) that sends these bytes and closes the connection, or leaves it open."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if is_slow:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        plain = {"url": f"http://127.0.0.1:{port}", "may_be_plain": True, "networks": ["127.0.0.0/8"]}
        services = Services.read({"services": {"odd": {**plain, "retry": {"delays": [7]}}}})
        caller = CallbackCaller(services, SystemClock())
        yield caller
        await caller.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 O", b"SSH-2.0-OpenSSH_9.6\r\n", b""])
async def test_a_malformed_answer_is_a_failure_like_any_other(answer: bytes) -> None:
    """Tried again at the service's times, and it speaks against the receiver."""
    async with answering(answer) as caller:
        with pytest.raises(RetryAfter) as raised:
            await caller(job(Target("odd", "/")))
        assert raised.value.counts
        assert 7_000 <= raised.value.pause_ms < 8_000
        (info,) = caller.infos()
        assert info.failed == 1


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED % b"200 OK" + b"5\r\nab",
        CHUNKED % b"200 OK" + b"no number\r\n",
        b"HTTP/1.1 202 Accepted\r\ncontent-length: 5\r\n\r\nab",
    ],
)
async def test_the_head_of_an_answer_decides_although_its_body_breaks_off(
    answer: bytes, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks_caller, "BODY_S", 0.1)
    async with answering(answer, is_slow=is_slow) as caller:
        await in_time(caller(job(Target("odd", "/"))))
        (info,) = caller.infos()
        assert (info.succeeded, info.failed) == (1, 0)
    async with answering(answer.replace(b" 20", b" 41"), is_slow=is_slow) as caller:
        with pytest.raises(Bury, match="answered 41"):
            await caller(job(Target("odd", "/")))


# What a job brings with it


@pytest.mark.parametrize(
    ("target", "attempts", "last"),
    [(PAID, 2, 2), (PAID, 9, 3), (Target("bare"), 2, 2), (Target("bare"), 30, 30), (Target("bare"), None, 24)],
)
async def test_a_jobs_attempts_win_over_the_default_and_are_capped_by_the_register(
    receiver: Receiver, target: Target, attempts: int | None, last: int
) -> None:
    receiver.answer = lambda request: httpx.Response(429)
    assert isinstance(await receiver.outcome(last - 1, target=target, max_attempts=attempts), RetryAfter)
    assert isinstance(await receiver.outcome(last, target=target, max_attempts=attempts), Bury)


@pytest.mark.parametrize(
    ("stated", "own", "expected"), [(None, None, 10), (None, 30, 30), (5.0, 30, 5), (5.0, 2, 2), (5.0, None, 5)]
)
def test_a_jobs_time_limit_wins_over_the_default_and_is_capped_by_the_register(
    stated: float | None, own: float | None, expected: float
) -> None:
    assert Terms(timeout=stated).timeout_of(job(timeout=own)) == expected


async def test_a_job_that_is_not_answered_within_its_own_time_limit_is_tried_again(receiver: Receiver) -> None:
    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    receiver.caller._transport = lambda allowed: httpx.MockTransport(hang)
    outcome = await in_time(receiver.outcome(timeout=0.01))
    assert isinstance(outcome, RetryAfter)
    assert "did not answer within 0.01 s" in str(outcome)


def test_the_time_that_a_callback_waits_for_its_turn_does_not_count(receiver: Receiver) -> None:
    assert Handler("orders", typed(receiver.caller), Retry(), None).limit(job(timeout=1.0)) is None
