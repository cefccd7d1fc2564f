"""`Service`: the objects that the routes use; made once for each server process.

It holds the client, the coalescing of jobs, the API keys, the rates and the audit log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Self

from starlette.requests import Request

from wheelq import __version__
from wheelq.admin.facts import findings
from wheelq.admin.figures import ASKS_ALWAYS
from wheelq.admin.metrics import FleetMetrics
from wheelq.base.clock import Clock, SystemClock
from wheelq.base.fresh import Fresh
from wheelq.callbacks.caller import CallbackWorker
from wheelq.callbacks.services import Services
from wheelq.errors import JobFailed, JobNotFound, NotFinished, ServerError
from wheelq.following.carrier import Carrier
from wheelq.model.job import Payload
from wheelq.producer.driver import AsyncDriver
from wheelq.protocol.keys import Keys
from wheelq.reminders import Reminders
from wheelq.server import problems, readiness
from wheelq.server.access import ANYONE, Caller, Keyring, Rates, Verb
from wheelq.server.audit import Audit
from wheelq.server.classic import TaskIds, Tasks
from wheelq.server.client import ServerClient
from wheelq.server.coalescing import Coalescing
from wheelq.server.dashboard.snapshot import FleetSnapshot, TabStream
from wheelq.server.dashboard.timeline import DueCounts, TopicHistory
from wheelq.server.idempotency import Answers
from wheelq.server.intake import Intake
from wheelq.server.leases import Leases
from wheelq.server.problems import Problem
from wheelq.server.readiness import Readiness, ReadinessCheck
from wheelq.server.schemas.reading import BodyLimits
from wheelq.settings import Settings, settings_in_force
from wheelq.transport import AsyncTransport, server_address

logger = logging.getLogger("wheelq.server")

BEARER = "bearer "
DIAGNOSIS_FRESH_S = 30.0
"""For how many seconds the findings of the doctor are reused."""
HOST_CHARS = 270
"""The longest host name, and a port."""


class Service:
    """The delay service behind HTTP. For one event loop."""

    def __init__(self, transport: AsyncTransport, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.transport = transport
        self.keys = Keys(settings.prefix)
        self.client = ServerClient(
            transport, self.keys, settings.client, settings.topic, self.clock, settings.breaker, settings.outbox
        )
        self.coalescing = Coalescing(self.client, settings.client, self.clock)
        services = Services.load(settings.server.services) if settings.server.services else None
        self.intake = Intake(services, self.client, settings.client, transport, self.keys, self.clock)
        self.calling: CallbackWorker | None = None
        """Makes callbacks, if this process does so."""
        if services is not None and settings.server.calls:
            self.calling = CallbackWorker(transport.spare(), services, settings, self.clock)
        self.fleet_metrics = FleetMetrics(transport, self.keys, self.clock, __version__)
        self.job_limits = BodyLimits.of_a_job(settings.client.payload_max_bytes)
        self.answers = Answers(transport, self.keys, settings.server.idempotency_ms)
        self.needs_key = needs_key(settings)
        self.keyring = Keyring(transport, self.keys, self.clock, settings.server.keys_ms)
        self.rates = Rates(settings.server.rate)
        self.audit = Audit(settings.server.audit)
        carrier = Carrier(transport, self.keys, settings.client, settings.topic, self.clock)
        self.leases = Leases(self.client, transport, self.keys, self.clock, settings.server, carrier)
        ids, kept_ms = TaskIds(transport, self.keys, self.clock), settings.server.classic_kept_ms
        self.tasks = Tasks(
            self.client, self.coalescing, self.leases, self.intake, transport, self.keys, kept_ms, self.clock, ids
        )
        self.readiness_check = ReadinessCheck(transport, self.keys, self.clock)
        self.reminders = Reminders(self.clock)
        """Logs once, and not for every request, that Redis is away or refuses."""
        self.snapshot = FleetSnapshot(transport, self.keys, self.clock)
        asking = AsyncDriver(transport, ASKS_ALWAYS, self.clock)
        diagnose = partial(findings, self.keys, self.clock, transport)
        self.diagnosis = Fresh(lambda: asking.run(diagnose()), DIAGNOSIS_FRESH_S, self.clock)
        self.due_counts = DueCounts(transport, self.keys, self.clock)
        self.history = TopicHistory(transport, self.keys, self.clock)
        self.stream = TabStream(self.snapshot, self.clock)
        self.answered: Counter[int] = Counter()
        """The requests of this process, by status."""
        self.is_draining = False
        """Whether the server stops: it should get no more requests, and none may wait any longer."""
        self._awaited: set[asyncio.Future[Payload]] = set()

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """The service on the server at `url` (else WHEELQ_URL). Raises: ConfigurationError."""
        given, settings = settings, settings or settings_in_force()
        return cls(AsyncTransport(server_address(url, given)), settings)

    @asynccontextmanager
    async def running(
        self, tell_end: Callable[[asyncio.Task[None]], object] = lambda task: None
    ) -> AsyncIterator[None]:
        """Runs the background tasks. Redis may be away: until the keys have been read, requests are refused.

        `tell_end` gets a background task that has ended unexpectedly.
        """
        async with self.client:
            background = [asyncio.create_task(self.leases.run(), name="wheelq lease clock")]
            if self.needs_key:
                background.append(asyncio.create_task(self.keyring.run(), name="wheelq API keys"))
            calling = None
            if self.calling is not None:
                calling = asyncio.create_task(self.calling.run_within(), name="wheelq callbacks")
            ending = [*background, *([calling] if calling is not None else [])]
            for task in ending:
                task.add_done_callback(tell_end)
            try:
                yield
            finally:
                for task in ending:
                    task.remove_done_callback(tell_end)
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                if self.calling is not None and calling is not None:
                    self.calling.stop(self.settings.server.drain_ms / 1000)
                    await asyncio.gather(calling, return_exceptions=True)
                self.readiness_check.close()
                self.snapshot.close()
                self.diagnosis.close()
                self.stream.close()
                await self.leases.close()

    def drain(self) -> None:
        """Answer requests that only wait, because the server is about to stop."""
        self.is_draining = True
        self.stream.close()
        self.leases.wake_all()
        for awaited in self._awaited:
            awaited.cancel()

    async def until_finished(
        self, topic: str, id: str, partition_key: str | None, wait_s: float, gone: Callable[[], Awaitable[None]]
    ) -> None:
        """Wait up to `wait_s` until a job is finished, or given up in a group. Raises what else `client.wait` raises.

        Ends earlier if `gone` returns because the caller has left, if the server stops, and if very many requests wait.
        """
        if self.is_draining or self.leases.waiting >= self.settings.server.max_waiting:
            return
        awaited = asyncio.ensure_future(self.client.wait(topic, id, timeout=wait_s, partition_key=partition_key))
        leaving = asyncio.ensure_future(gone())
        self._awaited.add(awaited)
        self.leases.waiting += 1
        try:
            await asyncio.wait((awaited, leaving), return_when=asyncio.FIRST_COMPLETED)
            if awaited.done() and not awaited.cancelled():
                with suppress(JobFailed, JobNotFound, NotFinished):  # looking the job up tells the same
                    awaited.result()
        finally:
            self.leases.waiting -= 1
            self._awaited.discard(awaited)
            awaited.cancel()
            leaving.cancel()
            await asyncio.gather(awaited, leaving, return_exceptions=True)

    async def readiness(self) -> Readiness:
        """Checks whether requests should come here; never raises, and answers within `readiness.DEADLINE_S`."""
        if self.is_draining:
            return readiness.unready("this server stops", answers=True)
        found = await self.readiness_check.look()
        if not self.keyring.problems:
            return found
        return found.model_copy(update={"problems": [*found.problems, *self.keyring.problems]})

    def log_failure(self, request: Request, problem: Problem, error: Exception) -> None:
        """Log an error that is no fault of the caller, who is told less."""
        if problem.kind is problems.BROKEN:
            logger.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
        if isinstance(error, ServerError):
            self.reminders.warn(logger, "requests cannot be served", error)

    def admit(self, caller: Caller, address: str, verb: Verb, topic: str | None) -> None:
        """Raises: Problem, unless the caller may do this with the topic, and not too often."""
        wait_s = self.rates.wait_s(caller.id or address, self.clock.monotonic())
        if wait_s:
            raise Problem(problems.TOO_MANY, retry_after_s=wait_s)
        caller.check_may(verb, topic)

    async def admit_again(self, request: Request, verb: Verb, topic: str | None) -> None:
        """Checks the key of a request that has waited. Raises: Problem, if it no longer permits this; ServerError."""
        if self.needs_key:
            (await self.caller_of(request)).check_may(verb, topic)

    async def caller_of(self, request: Request, without: str = "") -> Caller:
        """Returns the caller of a request. A request without a key counts as one with the key `without`, if given.

        Raises: Problem; ServerError.
        """
        if not self.needs_key:
            if self.settings.server.access == "auto" and not _names_this_machine(request.headers.get("host", "")):
                raise Problem(problems.FOREIGN_ORIGIN, "The Host is not this machine's; see access in [server].")
            _check_origin(request, self.settings.server.cors_origins.split())
            return ANYONE
        token = request.headers.get("authorization", "")
        if token[: len(BEARER)].lower() == BEARER:
            caller = await self.keyring.caller(token[len(BEARER) :].strip())
            if caller is not None:
                return caller
        elif without and not token and (caller := await self.keyring.named(without)) is not None:
            _check_origin(request, self.settings.server.cors_origins.split())
            return caller
        what = "The API key is not known, has expired or was revoked." if token else ""
        raise Problem(problems.NO_KEY, what, more={"www-authenticate": "Bearer"})


def needs_key(settings: Settings) -> bool:
    """Whether requests need an API key; with "auto" this depends on the address."""
    access = settings.server.access
    return access == "keys" or (access == "auto" and not is_loopback(settings.server.host))


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _names_this_machine(host: str) -> bool:
    """Whether a Host is a name of loopback: a foreign page whose name resolves to this machine sends its own name."""
    return len(host) <= HOST_CHARS and _is_loopback_host(host)


@lru_cache(maxsize=100)
def _is_loopback_host(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return is_loopback(name.strip("[]").lower().removesuffix("."))


def _check_origin(request: Request, allowed: list[str]) -> None:
    """Raises: Problem, for a foreign web page. Where no key is needed, all that can connect are trusted, but not the
    pages in their browsers.
    """
    origin = request.headers.get("origin")
    if origin is None or origin in allowed:
        return
    if origin.partition("://")[2] != request.headers.get("host"):
        raise Problem(problems.FOREIGN_ORIGIN, f"{origin} is not among cors_origins.")
