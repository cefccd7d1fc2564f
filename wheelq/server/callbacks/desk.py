"""`Desk`: takes jobs with a target in. It refuses what could not be called, and sees to it that somebody will call."""

from __future__ import annotations

from typing import Any

from wheelq.aio import AsyncClient
from wheelq.clock import Clock
from wheelq.errors import InvalidInput
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.server.callbacks.services import Services
from wheelq.server.callbacks.target import Target
from wheelq.server.callbacks.worker import GROUP
from wheelq.transport import AsyncTransport

TRUSTED_S = 60.0
"""How long a topic that was prepared is taken to be so: its number of shards may change."""


class Desk:
    """Jobs with a target, before they are made."""

    def __init__(
        self, services: Services | None, client: AsyncClient, transport: AsyncTransport, keys: Keys, clock: Clock
    ) -> None:
        self._services = services
        self._client = client
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._prepared: dict[tuple[str, str], float] = {}

    @property
    def is_open(self) -> bool:
        """Whether there is a register of receivers at all."""
        return self._services is not None

    def check(self, written: Any) -> Target:
        """A target as a caller wrote it, if it may be called. Raises: InvalidInput."""
        if self._services is None:
            raise InvalidInput("target", "this server has no register of receivers (services in [server])")
        target = Target.read(written)
        target.place(self._services)
        return target

    async def prepare(self, topic: str) -> None:
        """To be called before a job with a target is made. Raises: the server's errors, and then none is to be made."""
        if not self._is_trusted(topic, GROUP):
            now = self._clock.monotonic()
            await self._client.make_group(topic, GROUP)
            await self._transport.send(registry.add_callback_topic(self._keys, topic))
            await self._transport.send(registry.announce(self._keys, topic))
            self._prepared[topic, GROUP] = now + TRUSTED_S

    async def keep_apart(self, topic: str, group: str) -> None:
        """To be called before a job without a target is made for a group that may not have begun.

        Where callbacks are made their group may be the topic's only one, and has nothing to do with such a job: it
        would be done. Raises as `prepare` does.
        """
        if self._services is not None and not self._is_trusted(topic, group):
            now = self._clock.monotonic()
            await self._client.make_group(topic, group)
            self._prepared[topic, group] = now + TRUSTED_S

    def _is_trusted(self, topic: str, group: str) -> bool:
        return self._prepared.get((topic, group), 0.0) > self._clock.monotonic()
