"""`Service`: what the routes work with; made once for each server process.

Everything below it is used through here: the client, the jobs that are gathered, keys, rates and the audit log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from ipaddress import ip_address
from typing import Self

from starlette.requests import Request

from wheelq.aio import AsyncClient
from wheelq.clock import Clock, SystemClock
from wheelq.errors import ConfigurationError, ServerError
from wheelq.protocol.keys import Keys
from wheelq.server import problems, readiness
from wheelq.server.access.keyring import ANYONE, Caller, Keyring
from wheelq.server.access.keys import Verb
from wheelq.server.access.rate import Rates
from wheelq.server.audit import Audit
from wheelq.server.callbacks.desk import Desk
from wheelq.server.callbacks.services import Services
from wheelq.server.callbacks.worker import CallbackWorker
from wheelq.server.classic.tasks import Tasks
from wheelq.server.gathering import Gathering
from wheelq.server.idempotency import Answers
from wheelq.server.leases import Leases
from wheelq.server.problems import Problem
from wheelq.server.readiness import Readiness
from wheelq.settings import Settings, resolve_url
from wheelq.transport import Address, AsyncTransport

logger = logging.getLogger("wheelq.server")

BEARER = "bearer "


class Service:
    """The delay service behind HTTP. For one event loop."""

    def __init__(self, transport: AsyncTransport, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.transport = transport
        self.keys = Keys(settings.prefix)
        self.client = AsyncClient(
            transport, self.keys, settings.client, settings.topic, self.clock, settings.breaker, settings.outbox
        )
        self.gathering = Gathering(self.client, settings.client, self.clock)
        services = Services.load(settings.server.services) if settings.server.services else None
        self.desk = Desk(services, self.client, transport, self.keys, self.clock)
        self.calling: CallbackWorker | None = None
        """Makes the callbacks, if this process does."""
        if services is not None and settings.server.calls:
            self.calling = CallbackWorker(transport.sibling(), services, settings, self.clock)
        self.answers = Answers(transport, self.keys, settings.server.idempotency_ms)
        self.needs_key = needs_key(settings)
        self.keyring = Keyring(transport, self.keys, self.clock, settings.server.keys_ms)
        self.rates = Rates(settings.server.rate)
        self.audit = Audit(settings.server.audit)
        self.leases = Leases(
            transport, self.keys, self.clock, settings.server.max_deliveries, settings.server.max_waiting
        )
        self.tasks = Tasks(
            self.client,
            self.gathering,
            self.leases,
            self.desk,
            transport,
            self.keys,
            settings.server.classic_kept_ms,
            self.clock,
        )
        self.answered: Counter[int] = Counter()
        """Requests of this process, by status."""
        self.is_draining = False
        """Whether the server stops: it should get no more requests, and nothing is to wait any longer."""

    @classmethod
    def connect(cls, url: str | None = None, settings: Settings | None = None) -> Self:
        """The service on the server at `url` (else WHEELQ_URL). Raises: ConfigurationError."""
        settings = settings or Settings()
        return cls(AsyncTransport(Address(resolve_url(url, settings), settings.connection)), settings)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Looks after itself meanwhile. Raises: ConfigurationError, if nobody could use it; ServerError."""
        if self.needs_key and not await self.keyring.read():
            raise ConfigurationError(
                "this server asks for API keys, and there is none: make one (wheelq keys create NAME --scope '*:*'), "
                'or let anyone in who can connect (access = "open" in [server], or WHEELQ_SERVER_ACCESS=open)'
            )
        async with self.client:
            background = [asyncio.create_task(self.keyring.run())] if self.needs_key else []
            calling = asyncio.create_task(self.calling.run()) if self.calling is not None else None
            if calling is not None:
                calling.add_done_callback(_tell_of_its_end)
            try:
                yield
            finally:
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)
                if self.calling is not None and calling is not None:
                    self.calling.stop(self.settings.server.drain_ms / 1000)
                    await asyncio.gather(calling, return_exceptions=True)
                await self.leases.close()

    def drain(self) -> None:
        """The server is about to stop: answer what only waits."""
        self.is_draining = True
        self.leases.wake_all()

    async def readiness(self) -> Readiness:
        """Whether requests should come here; never raises, and never takes longer than Redis may."""
        if self.is_draining:
            return readiness.unready("this server stops")
        try:
            return await readiness.look(self.transport, self.keys, await self.client.topics())
        except ServerError as error:
            return readiness.unready(error)

    def admit(self, caller: Caller, address: str, verb: Verb, topic: str | None) -> None:
        """Raises: Problem, unless the caller may do this with the topic, and not too often."""
        wait_s = self.rates.wait_s(caller.id or address, self.clock.monotonic())
        if wait_s:
            raise Problem(problems.TOO_MANY, retry_after_s=wait_s)
        if not caller.may(verb, topic):
            on = f"on topic {topic!r}" if topic else "on any topic"
            raise Problem(problems.NOT_ALLOWED, f"The key has no scope for {verb} {on}.")

    async def caller_of(self, request: Request, without: str = "") -> Caller:
        """Who makes this request; one that brings no key stands for the key `without`, if that is named.

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
        elif without and not token and (caller := self.keyring.named(without)) is not None:
            return caller
        what = "The API key is not known, has expired or was revoked." if token else ""
        raise Problem(problems.NO_KEY, what, more={"www-authenticate": "Bearer"})


def _tell_of_its_end(calling: asyncio.Task[None]) -> None:
    if not calling.cancelled() and (error := calling.exception()) is not None:
        logger.error("this process makes no callbacks any more", exc_info=error)


def needs_key(settings: Settings) -> bool:
    """Whether requests need an API key; with "auto" that depends on who can connect."""
    access = settings.server.access
    return access == "keys" or (access == "auto" and not is_loopback(settings.server.host))


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to what listens there."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else ""


@lru_cache(maxsize=100)
def _names_this_machine(host: str) -> bool:
    """Whether a Host is a name of loopback: a page whose name was made to lead here has its own."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return is_loopback(name.strip("[]"))


def _check_origin(request: Request, allowed: list[str]) -> None:
    """An open server trusts whoever can connect; the pages that a browser there shows are somebody else's."""
    origin = request.headers.get("origin")
    if origin is None or origin in allowed:
        return
    if origin.partition("://")[2] != request.headers.get("host"):
        raise Problem(problems.FOREIGN_ORIGIN, f"{origin} is not among cors_origins.")
