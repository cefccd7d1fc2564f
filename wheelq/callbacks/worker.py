"""`CallbackWorker`: an ordinary worker, whose handler for every topic is the `CallbackCaller`.

It serves all topics in which a job with a target was ever scheduled. The server records these topics, and creates the
callbacks' group on each before its first such job, so that no job is missed however late this worker starts. Other
groups of the topic are not affected, and jobs without a target are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wheelq.base.clock import Clock, SystemClock
from wheelq.callbacks.caller import PLACES, CallbackCaller
from wheelq.callbacks.destination import DestinationInfo
from wheelq.callbacks.services import Services
from wheelq.errors import ConfigurationError
from wheelq.model.retry import Retry
from wheelq.producer.breaker import BreakerState
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.settings import Settings
from wheelq.transport import AsyncTransport, server_address
from wheelq.worker import Worker

GROUP = "callbacks"


class CallbackWorker:
    """Makes the callbacks of one process."""

    def __init__(
        self, transport: AsyncTransport, services: Services, settings: Settings, clock: Clock | None = None
    ) -> None:
        keys, clock = Keys(settings.prefix), clock or SystemClock()
        self._caller = CallbackCaller(services, clock, settings.callbacks)
        own = replace(settings.worker, concurrency=PLACES)
        self._worker = Worker(transport, GROUP, keys, own, clock, report=self._open_destinations)
        # The caller decides about retries, by the terms of each receiver.
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
        transport = AsyncTransport(server_address(url, settings))
        return cls(transport, services, settings)

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
        """Returns the state of each receiver in this process."""
        return self._caller.infos()


FOR_EVER = Retry(max_attempts=None)
