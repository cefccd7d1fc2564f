"""`CallbackWorker`: an ordinary worker, whose handler for every topic is the `Caller`.

It serves the topics of which some job had a target when it was made: the server notes them, and makes the group of the
callbacks on each before its first such job, so that none is missed however late this worker starts. Other groups of
the same topic are not concerned, and jobs without a target are passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wheelq.clock import Clock, SystemClock
from wheelq.errors import ConfigurationError
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.retry import Retry
from wheelq.server.callbacks.caller import PLACES, Caller
from wheelq.server.callbacks.destination import DestinationInfo
from wheelq.server.callbacks.services import Services
from wheelq.settings import Settings, resolve_url
from wheelq.transport import Address, AsyncTransport
from wheelq.worker import Worker

GROUP = "callbacks"


class CallbackWorker:
    """Makes the callbacks of one process."""

    def __init__(
        self, transport: AsyncTransport, services: Services, settings: Settings, clock: Clock | None = None
    ) -> None:
        keys, clock = Keys(settings.prefix), clock or SystemClock()
        self._caller = Caller(services, clock, settings.callbacks)
        self._worker = Worker(transport, GROUP, keys, replace(settings.worker, concurrency=PLACES), clock)
        # How often and how soon is each receiver's own business, and decided by the caller.
        self._worker.handler_for_each(lambda: transport.send(registry.callback_topics(keys)), retry=FOR_EVER)(
            self._caller
        )

    @classmethod
    def connect(cls, url: str | None, settings: Settings) -> CallbackWorker:
        """A worker for the register that the settings name. Raises: ConfigurationError."""
        if not settings.server.services:
            raise ConfigurationError(
                "no register of receivers: name one (config/services.toml shows how) as services in [server], "
                "or as WHEELQ_SERVER_SERVICES"
            )
        services = Services.load(settings.server.services)
        transport = AsyncTransport(Address(resolve_url(url, settings), settings.connection))
        return cls(transport, services, settings)

    async def run(self) -> None:
        """Call until stopped; a server that is away at the start is waited for. Raises as `Worker.run` does."""
        try:
            await self._worker.run(patiently=True)
        finally:
            await self._caller.close()

    def stop(self, grace: float | None = None) -> None:
        """Let `run` end: requests under way may finish within `grace` seconds."""
        self._worker.stop(grace)

    def destinations(self) -> Sequence[DestinationInfo]:
        """How each receiver stands, as this process sees it."""
        return self._caller.infos()


FOR_EVER = Retry(max_attempts=None)
