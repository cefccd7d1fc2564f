"""`Caller`: one job, one request. It is the handler of every job that has a target."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import quote

import httpx

from wheelq.clock import Clock
from wheelq.errors import InvalidInput
from wheelq.job import Job
from wheelq.retry import Bury, RetryAfter
from wheelq.server.callbacks.addresses import Network
from wheelq.server.callbacks.destination import Destination, DestinationInfo, Destinations, Room
from wheelq.server.callbacks.network import AddressRefused, GuardedTransport
from wheelq.server.callbacks.services import Services
from wheelq.server.callbacks.signing import message_id, signature_headers
from wheelq.server.callbacks.target import HEADER, Place, Target
from wheelq.server.callbacks.verdict import Accepted, Hopeless, TryAgain, Verdict, of_answer
from wheelq.server.jsontext import as_json
from wheelq.settings import BreakerSettings

logger = logging.getLogger("wheelq.callbacks")

MakeTransport = Callable[[tuple[Network, ...]], httpx.AsyncBaseTransport]
PLACES = 10_000
"""Requests under way or queued in one process, to all receivers together; each of them has its own, lower limit."""
BODY_MAX_BYTES = 65_536
"""Of an answer's body; whoever sends more loses the connection."""
OWN_PREFIX = "wheelq-"
HOP_BY_HOP = ("connection", "te", "transfer-encoding", "upgrade")
NOT_PASSED_ON = frozenset({"host", "content-length", "content-type", *HOP_BY_HOP})


class Caller:
    """Calls receivers. `transport` is for tests."""

    def __init__(
        self,
        services: Services,
        clock: Clock,
        breaker: BreakerSettings | None = None,
        transport: MakeTransport = GuardedTransport,
    ) -> None:
        self._services = services
        self._clock = clock
        settings, room = breaker or BreakerSettings(), Room(PLACES)
        self._destinations = Destinations(lambda name, terms: Destination(name, terms, settings, room, clock))
        self._transport = transport
        self._clients: dict[tuple[Network, ...], httpx.AsyncClient] = {}

    async def __call__(self, job: Job) -> None:
        """Deliver a job to its target; a job without one is nothing to do.

        Raises: RetryAfter (later: not admitted, or failed), Bury (no use).
        """
        try:
            target = Target.of(job.headers)
            if target is None:
                return
            place = target.place(self._services)
        except InvalidInput as error:
            logger.warning("job %s of %s may not be delivered: %s", job.id, job.topic, error)
            raise Bury(f"its target may not be called: {error}") from error
        destination = self._destinations.of(place.destination, place.terms)
        async with destination.turn() as waiting:
            if waiting:
                raise RetryAfter(waiting, f"{place.destination} is busy or not well")
            verdict = await self._ask(job, place)
        self._judge(job, place, destination, verdict)

    def infos(self) -> list[DestinationInfo]:
        """How each receiver stands."""
        return self._destinations.infos()

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

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
        try:
            async with (
                asyncio.timeout(place.terms.timeout),
                self._client(place).stream("POST", place.url, content=body, headers=headers) as answer,
            ):
                await _read_away(answer)
                return of_answer(answer.status_code, answer.headers, sent.timestamp())
        except TimeoutError:
            return TryAgain(f"did not answer within {place.terms.timeout:g} s")
        except AddressRefused as error:
            return Hopeless(str(error), is_answer=False)
        except httpx.HTTPError as error:
            return TryAgain(f"could not be asked: {error or type(error).__name__}")

    def _judge(self, job: Job, place: Place, destination: Destination, verdict: Verdict) -> None:
        match verdict:
            case Accepted():
                destination.succeeded()
            case Hopeless(why, is_answer):
                if is_answer:
                    destination.succeeded()
                logger.warning("job %s of %s: %s %s", job.id, job.topic, place.shown, why)
                raise Bury(f"{place.shown} {why}")
            case TryAgain(why, after, is_failure):
                if is_failure:
                    destination.failed(why)
                else:
                    destination.succeeded()
                if after:
                    destination.leave_alone(after)
                self._again(job, place, why, after)

    def _again(self, job: Job, place: Place, why: str, after: float | None) -> None:
        pause_ms = place.terms.retry.pause_ms(job.attempt, random.random())
        if pause_ms is None:
            raise Bury(f"{place.shown} {why}, and attempt {job.attempt} was the last")
        raise RetryAfter(max(pause_ms / 1000, after or 0.0), f"{place.shown} {why}", counts=True)

    def _client(self, place: Place) -> httpx.AsyncClient:
        """One per set of allowed networks: connections are shared by those who may connect to the same places."""
        allowed = place.terms.allowed
        if allowed not in self._clients:
            self._clients[allowed] = httpx.AsyncClient(
                transport=self._transport(allowed), trust_env=False, follow_redirects=False, timeout=None
            )
        return self._clients[allowed]


async def _read_away(answer: httpx.Response) -> None:
    """Read the body, which nobody needs: a connection whose answer was not read to its end cannot be used again.

    As it comes: what it says it is packed with tells nothing of the answer, and may be wrong.
    """
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    size = 0
    async for part in answer.stream:
        size += len(part)
        if size > BODY_MAX_BYTES:
            return


def body_of(job: Job) -> tuple[str, bytes]:
    """The payload as a request carries it: JSON; of bytes, their base64 as text."""
    if isinstance(job.payload, bytes):
        return "text/plain; charset=us-ascii", base64.b64encode(job.payload)
    return "application/json", as_json(job.payload)


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """The job's own headers that a receiver gets: those that a request can carry and that are not wheelq's."""
    found = {}
    for name, value in headers.items():
        lower = name.lower()
        is_ours = lower.startswith((OWN_PREFIX, "webhook-")) or lower == HEADER or lower in NOT_PASSED_ON
        if not is_ours and _is_token(lower) and value.isascii() and value.isprintable():
            found[lower] = value
    return found


def _is_token(name: str) -> bool:
    return bool(name) and name.isascii() and all(char.isalnum() or char in "!#$%&'*+-.^_`|~" for char in name)
