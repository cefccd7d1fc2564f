"""`Intake`: accepts jobs with a target: refuses targets that cannot be called, registers the topic for callbacks."""

from __future__ import annotations

from typing import Any

from wheelq.aio import AsyncClient
from wheelq.base.clock import Clock
from wheelq.callbacks.caller import GROUP
from wheelq.callbacks.services import Services
from wheelq.callbacks.target import Target
from wheelq.errors import InvalidInput
from wheelq.model.checks import check_topic
from wheelq.model.job import JobSpec, OnDuplicate
from wheelq.producer.preparation import Preparation
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.server.access import Caller, Verb
from wheelq.server.schemas.jobs import NewJob
from wheelq.settings import ClientSettings
from wheelq.transport import AsyncTransport

TRUSTED_S = 1.0
"""How long a topic counts as prepared; it may be removed, or get more shards."""


class Intake:
    """Checks and prepares jobs with a target before they are scheduled."""

    def __init__(
        self,
        services: Services | None,
        client: AsyncClient,
        settings: ClientSettings,
        transport: AsyncTransport,
        keys: Keys,
        clock: Clock,
    ) -> None:
        """`settings` are those of the client."""
        self._services = services
        self._client = client
        self._settings = settings
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._prepared: dict[tuple[str, str], float] = {}

    @property
    def is_open(self) -> bool:
        """Whether there is a register of receivers at all."""
        return self._services is not None

    def check(self, written: Any) -> Target:
        """Returns the target of a request if it may be called. Raises: InvalidInput."""
        if self._services is None:
            raise InvalidInput("target", "this server has no register of receivers (services in [server])")
        target = Target.read(written)
        target.place(self._services)
        return target

    def check_on_dead(self, on_dead: str | None, caller: Caller) -> None:
        """Raises: InvalidInput for a receiver that this server knows not to be callable, Problem for a topic for which
        the caller may not schedule jobs.
        """
        service, colon, path = (on_dead or "").partition(":")
        if on_dead and not colon:
            caller.check_may(Verb.SCHEDULE, on_dead, "on_dead")
        if colon and self._services is not None:
            try:
                Target(service, path).place(self._services)
            except InvalidInput as error:
                raise InvalidInput("on_dead", error.problem) from error

    async def admit(self, topic: str, job: NewJob, on_duplicate: OnDuplicate, caller: Caller) -> None:
        """Call this before scheduling a job. Raises: InvalidInput, Problem, errors of Redis; then do not schedule."""
        self.check_on_dead(job.on_dead, caller)
        if job.target is not None:
            self.check(job.target)
            await self.prepare(topic, job.spec(job.id), on_duplicate)

    async def prepare(self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate) -> None:
        """Call this before scheduling a job with a target.

        Raises: InvalidInput, before a topic is made; the server's errors. Do not schedule the job after an error.
        """
        if not self._is_trusted(topic, GROUP):
            self.check_job(topic, spec, on_duplicate)
            now = self._clock.monotonic()
            await self._client.make_group(topic, GROUP)
            await self._transport.send(registry.add_callback_topic(self._keys, topic))
            await self._transport.send(registry.announce(self._keys, topic))
            self._prepared[topic, GROUP] = now + TRUSTED_S

    def check_job(self, topic: str, spec: JobSpec, on_duplicate: OnDuplicate) -> None:
        """Check a job before anything is made for it. Raises: InvalidInput."""
        Preparation(check_topic(topic), self._settings, self._clock.wall_ms(), on_duplicate).job(spec)

    async def keep_apart(self, topic: str, group: str) -> None:
        """Call this before scheduling a job without a target for a group that may not exist yet.

        Otherwise the callbacks' group could be the topic's only one. It ignores such a job, which would then count as
        done. Raises as `prepare` does.
        """
        if self._services is not None and not self._is_trusted(topic, group):
            now = self._clock.monotonic()
            await self._client.make_group(topic, group)
            self._prepared[topic, group] = now + TRUSTED_S

    def _is_trusted(self, topic: str, group: str) -> bool:
        return self._prepared.get((topic, group), 0.0) > self._clock.monotonic()
