"""`CallbackCaller`: one job, one request. It is the handler of every job that has a target.

| answer                                      | the job …                     | the receiver …         |
|---------------------------------------------|-------------------------------|------------------------|
| 2xx                                         | is done                       | is healthy             |
| 429                                         | is retried, when it says      | is healthy, but paused |
| 408, 425, 5xx                               | is retried; 503: when it says | fails                  |
| no connection, no answer in time            | is retried                    | fails                  |
| 3xx (redirects are not followed), other 4xx | is buried                     | is healthy             |
| an address that is refused                  | is buried                     | –                      |

`CallbackWorker` is an ordinary worker, whose handler for every topic is the `CallbackCaller`. It serves all topics in
which a job with a target was ever scheduled. The server records these topics, and creates the callbacks' group on each
before its first such job, so that no job is missed however late this worker starts. Other groups of the topic are not
affected, and jobs without a target are skipped.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import takewhile
from typing import Any
from urllib.parse import quote

import httpx
from standardwebhooks import Webhook

from wheelq import telemetry
from wheelq.base.as_json import as_json
from wheelq.base.clock import Clock, SystemClock
from wheelq.callbacks.addresses import Network
from wheelq.callbacks.destination import Destination, DestinationInfo, Room
from wheelq.callbacks.names import Names
from wheelq.callbacks.network import AddressRefused, GuardedTransport
from wheelq.callbacks.services import Services
from wheelq.callbacks.target import Place, Target
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.job import Job
from wheelq.model.retry import Bury, Retry, RetryAfter
from wheelq.producer.breaker import BreakerState
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.settings import BreakerSettings, Settings
from wheelq.transport import AsyncTransport, server_address
from wheelq.worker import Worker

logger = logging.getLogger("wheelq.callbacks")

MakeTransport = Callable[[tuple[Network, ...]], httpx.AsyncBaseTransport]
PLACES = 10_000
"""The most requests in flight or queued in one process, to all receivers; each receiver has its own, lower limit."""
BODY_MAX_BYTES = 65_536
"""The most bytes of an answer's body; if a receiver sends more, its connection is closed."""
BODY_S = 1.0
"""How many seconds an answer's body may take; if a receiver takes longer, its connection is closed."""
FORGOTTEN_S = 7_200.0
"""After how many quiet seconds a host that only jobs name is forgotten: no pause or open circuit lasts as long."""
OWN_PREFIX = "wheelq-"
HOP_BY_HOP = ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
OF_THE_BODY = ("content-length", "content-type", "content-encoding", "content-range")
"""The body is always plain JSON."""
NOT_PASSED_ON = frozenset({"host", "expect", *OF_THE_BODY, *HOP_BY_HOP})


class CallbackCaller:
    """Calls receivers. `transport` is for tests."""

    _wheelq_keeps_time = True
    """A job's time limit holds for its request, not for its turn before."""

    def __init__(
        self,
        services: Services,
        clock: Clock,
        breaker: BreakerSettings | None = None,
        transport: MakeTransport | None = None,
    ) -> None:
        self._services = services
        self._clock = clock
        self._breaker = breaker or BreakerSettings()
        self._room = Room(PLACES)
        self._destinations: dict[str, Destination] = {}
        self._names = Names(clock)
        self._transport = transport or partial(GuardedTransport, resolve=self._names.resolve)
        self._clients: dict[tuple[Network, ...], httpx.AsyncClient] = {}

    async def __call__(self, job: Job) -> None:
        """Deliver a job to its target; does nothing for a job without one.

        Raises: RetryAfter (not admitted, or failed), Bury (hopeless).
        """
        try:
            target = Target.of(job.headers)
            if target is None:
                return
            place = target.place(self._services)
        except InvalidInput as error:
            logger.warning("job %s of %s may not be delivered: %s", job.id, job.topic, error)
            raise Bury(f"its target may not be called: {error}") from error
        destination = self._destination(place)
        async with destination.turn(place.shown) as waiting:
            if waiting:
                raise RetryAfter(waiting, "" if job.last_error else destination.why_not(place.shown))
            verdict = await self._ask(job, place)
        self._judge(job, place, destination, verdict)

    def infos(self) -> list[DestinationInfo]:
        return [self._destinations[name].info for name in sorted(self._destinations)]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()
        self._names.close()

    def _destination(self, place: Place) -> Destination:
        name = place.destination
        found = self._destinations.pop(name, None)
        if found is None:
            self._forget()
            found = Destination(name, place.terms, self._breaker, self._room, self._clock)
        self._destinations[name] = found  # moved to the end: the first was quiet for longest
        found.asked_at = self._clock.monotonic()
        return found

    def _forget(self) -> None:
        """Forget hosts that are quiet: jobs may name any number of them, where the register allows a wildcard."""
        since = self._clock.monotonic() - FORGOTTEN_S
        for name, one in list(takewhile(lambda item: item[1].asked_at < since, self._destinations.items())):
            if name not in self._services.by_name and not one.is_busy:
                del self._destinations[name]

    async def _ask(self, job: Job, place: Place) -> Verdict:
        sent = datetime.fromtimestamp(self._clock.wall_ms() / 1000, tz=UTC)
        content_type, body = body_of(job)
        headers = passed_on(job.headers) | {
            "content-type": content_type,
            "user-agent": "wheelq",
            "wheelq-topic": job.topic,
            "wheelq-job": quote(job.id),
            "wheelq-attempt": str(job.attempt),
            "wheelq-due": str(job.due_ms),
            **signature_headers(message_id(job), sent, body, place.terms.secrets),
        }
        with telemetry.request("POST", place.shown, job.attempt) as watched:
            timeout = place.terms.timeout_of(job)
            return await self._send(place, timeout, body, watched.headers(headers), sent.timestamp(), watched)

    async def _send(
        self,
        place: Place,
        timeout: float,
        body: bytes,
        headers: Mapping[str, str],
        sent_s: float,
        watched: telemetry.WatchedRequest,
    ) -> Verdict:
        try:
            async with (
                asyncio.timeout(timeout) as limit,
                self._client(place).stream("POST", place.url, content=body, headers=headers) as answer,
            ):
                limit.reschedule(None)
                watched.answered(answer.status_code)
                verdict = of_answer(answer.status_code, answer.headers, sent_s)
                await _read_away(answer)
                return verdict
        except TimeoutError as error:
            watched.failed(error)
            return TryAgain(f"did not answer within {timeout:g} s")
        except AddressRefused as error:
            watched.failed(error)
            return Hopeless(str(error), is_answer=False)
        except Exception as error:  # noqa: BLE001  # whatever it is, the receiver's limit of attempts holds
            watched.failed(error)
            return TryAgain(f"could not be asked: {str(error) or type(error).__name__}")

    def _judge(self, job: Job, place: Place, destination: Destination, verdict: Verdict) -> None:
        match verdict:
            case None:
                destination.succeeded(place.shown)
            case Hopeless(why, is_answer):
                if is_answer:
                    destination.succeeded(place.shown)
                logger.warning("job %s of %s: %s %s", job.id, job.topic, place.shown, why)
                raise Bury(f"{place.shown} {why}")
            case TryAgain(why, after, is_failure):
                if is_failure:
                    destination.failed(f"{place.shown} {why}", place.shown)
                else:
                    destination.succeeded(place.shown)
                if after:
                    destination.leave_alone(after)
                self._again(job, place, why, after)

    def _again(self, job: Job, place: Place, why: str, after: float | None) -> None:
        pause_ms = place.terms.retry_of(job).pause_ms(job.attempt, random.random())
        if pause_ms is None:
            raise Bury(f"{place.shown} {why}, and attempt {job.attempt} was the last")
        raise RetryAfter(max(pause_ms / 1000, after or 0.0), f"{place.shown} {why}", counts=True)

    def _client(self, place: Place) -> httpx.AsyncClient:
        """Returns the client for a set of allowed networks. Receivers with the same set share its connections."""
        allowed = place.terms.allowed
        if allowed not in self._clients:
            self._clients[allowed] = httpx.AsyncClient(
                transport=self._transport(allowed), trust_env=False, follow_redirects=False, timeout=None
            )
        return self._clients[allowed]


async def _read_away(answer: httpx.Response) -> None:
    """Read and drop the body: a connection whose answer was not read to its end cannot be used again.

    The raw body is read, because its stated encoding is irrelevant and may be wrong. The head alone decides the
    outcome; after a slow or broken body, only the connection is closed.
    """
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    size = 0
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(BODY_S):
            async for part in answer.stream:
                size += len(part)
                if size > BODY_MAX_BYTES:
                    return


def body_of(job: Job) -> tuple[str, bytes]:
    """Returns the content type and body of a request: the payload as JSON; bytes as base64 text."""
    if isinstance(job.payload, bytes):
        return "text/plain; charset=us-ascii", base64.b64encode(job.payload)
    return "application/json", as_json(job.payload)


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the job's headers that a receiver gets: those that a request can carry, without wheelq's own."""
    found = {}
    for name, value in headers.items():
        lower = name.lower()
        read_as = lower.replace("_", "-")  # by receivers behind CGI or WSGI
        is_ours = read_as.startswith((OWN_PREFIX, "webhook-")) or read_as in NOT_PASSED_ON
        if not is_ours and _is_token(lower) and value.isascii() and value.isprintable():
            found[lower] = value.strip()  # spaces around it are no part of a value
    return found


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and all(char.isalnum() or char in "!#$%&'*+-.^_`|~" for char in name)


def message_id(job: Job) -> str:
    """Returns the name of a job's message, the same for every attempt.

    A later job with the same id has another name, unless it is due at the same time as the earlier one.
    """
    whole = f"{job.topic}\0{job.id}\0{job.first_due_ms}"
    return f"msg_{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def signature_headers(id: str, sent: datetime, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Returns the headers that prove to a receiver that a callback is genuine: Standard Webhooks.

    `webhook-id` is the same for every attempt at one job, so that a receiver can drop duplicates. With several secrets
    there are several signatures, and a receiver needs to know only one of them: this allows changes of secrets. Without
    secrets the headers are unsigned.
    """
    headers = {"webhook-id": id, "webhook-timestamp": str(int(sent.timestamp()))}
    if secrets:
        signed = (Webhook(secret).sign(id, sent, body.decode()) for secret in secrets)
        headers["webhook-signature"] = " ".join(signed)
    return headers


LONGEST_WAIT_S = 3_600.0
TRY_AGAIN = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The job is worth another attempt."""

    why: str
    after: float | None = None
    """The seconds until the next attempt, if the receiver has named them."""
    is_failure: bool = True
    """Whether this answer counts as a failure of the receiver."""


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Another attempt would fail in the same way."""

    why: str
    is_answer: bool = True
    """Whether this was the receiver's own answer."""


Verdict = TryAgain | Hopeless | None
"""None: the receiver has taken the job."""


def of_answer(status: int, headers: Mapping[str, str], now_s: float) -> Verdict:
    """Returns the verdict for an answer; `now_s` is the time, for a Retry-After that names a date."""
    if 200 <= status < 300:
        return None
    if status in TRY_AGAIN or status >= 500:
        after = retry_after(headers.get("retry-after"), now_s) if status in (429, 503) else None
        return TryAgain(f"answered {status}", after, is_failure=status != 429)
    if 300 <= status < 400:
        return Hopeless(f"answered {status}; redirects are not followed")
    return Hopeless(f"answered {status}")


def retry_after(written: str | None, now_s: float) -> float | None:
    """Returns the seconds that a Retry-After header asks for, at most an hour; None if it cannot be read."""
    if not written:
        return None
    try:
        seconds = min(int(written), LONGEST_WAIT_S)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(written).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), LONGEST_WAIT_S)


GROUP = "callbacks"


class CallbackWorker:
    """Makes the callbacks of one process."""

    def __init__(
        self, transport: AsyncTransport, services: Services, settings: Settings, clock: Clock | None = None
    ) -> None:
        keys, clock = Keys(settings.prefix), clock or SystemClock()
        self._caller = CallbackCaller(services, clock, settings.callbacks)
        own = replace(settings.worker, concurrency=PLACES)
        new, told = settings.topic, self._open_destinations
        self._worker = Worker(transport, GROUP, keys, own, clock, report=told, client=settings.client, new_topics=new)
        # The caller decides about retries, by the terms of each receiver.
        served = self._worker.handler_for_each(lambda: transport.send(registry.callback_topics(keys)), retry=FOR_EVER)
        served(self._caller)

    @classmethod
    def connect(cls, url: str | None, settings: Settings) -> CallbackWorker:
        """A worker for the register that the settings name. Raises: ConfigurationError."""
        if not settings.server.services:
            raise ConfigurationError(
                "no register of receivers: name one (config/services.toml shows how) as services in [server], "
                "or as WHEELQ_SERVER_SERVICES"
            )
        services = Services.load(settings.server.services)
        return cls(AsyncTransport(server_address(url, settings)), services, settings)

    async def run(self) -> None:
        """Make callbacks until stopped; waits for a server that is away at the start. Raises as `Worker.run` does."""
        try:
            await self._worker.run(patiently=True)
        finally:
            await self._caller.close()

    async def run_within(self) -> None:
        """Make callbacks until stopped, within a running server: no refusal of Redis ends it."""
        try:
            await self._worker.run_within()
        finally:
            await self._caller.close()

    def stop(self, grace: float | None = None) -> None:
        """Let `run` end: requests in flight may finish within `grace` seconds."""
        self._worker.stop(grace)

    def _open_destinations(self) -> Mapping[str, Any]:
        open_ones = [info.name for info in self.destinations() if info.state is not BreakerState.CLOSED]
        return {"open_destinations": open_ones} if open_ones else {}

    def destinations(self) -> Sequence[DestinationInfo]:
        return self._caller.infos()


FOR_EVER = Retry(max_attempts=None)
