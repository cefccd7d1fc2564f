"""`WheelqBackend`: a task becomes a job, its queue a topic, its `run_after` the due time, to the millisecond."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any, Self, cast

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

from wheelq.base.clock import wall_ms
from wheelq.client import Client
from wheelq.contrib.django.payloads import change, new_result, new_result_id, payload_of, queue_and_id
from wheelq.contrib.django.results import look_up
from wheelq.contrib.django.tasks import BaseTaskBackend, InvalidTaskError, Task, TaskResult, task_enqueued
from wheelq.errors import InvalidInput, WheelqError
from wheelq.model.checks import check_topic
from wheelq.model.job import JobSpec, from_ms
from wheelq.model.retry import Retry
from wheelq.producer.preparation import Preparation
from wheelq.settings import Settings, settings_in_force

RESULT_MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Options:
    """OPTIONS of a backend in TASKS."""

    url: str | None = None
    """The server; else WHEELQ_URL."""
    outbox: str | os.PathLike[str] | bool | None = None
    """An SQLite file on a local disk that keeps tasks while the server is away; True: the tables of the app
    `wheelq.contrib.django.outbox`, in Django's own transaction."""
    on_commit: bool = False
    """Whether to enqueue only when the database transaction commits."""
    keep_results: float = 86_400
    """Seconds for which the result of a finished task can be looked up. Set when a queue is used for the first time."""
    max_attempts: int = 1
    """How many attempts a task has before it counts as failed; the pauses between them grow."""

    @classmethod
    def read(cls, alias: str, options: Mapping[str, Any]) -> Self:
        """Raises: ImproperlyConfigured."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; it can be {', '.join(known)}"
                raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {name!r} is unknown{hint}")
        made = cls(**options)
        if isinstance(made.max_attempts, bool) or not isinstance(made.max_attempts, int) or made.max_attempts < 1:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: max_attempts must be a whole number from 1 on")
        if not isinstance(made.outbox, str | os.PathLike | bool | None):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS']: outbox must be a path, or True, not {made.outbox!r}"
            )
        if not isinstance(made.url, str | None) or not isinstance(made.on_commit, bool):
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: url must be text, and on_commit True or False")
        if made.outbox is True and made.on_commit:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: outbox=True needs no on_commit: leave it out")
        if not isinstance(made.keep_results, int | float) or not 0 < made.keep_results < 10**9:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: keep_results must be seconds, above 0")
        return made

    @property
    def retry(self) -> Retry:
        return Retry(max_attempts=self.max_attempts)

    def settings(self) -> Settings:
        """The settings in force, with topics that keep results.

        Without a URL if WHEELQ_URL is set: a client then reads the variable at its first use, and a test may set it.
        """
        settings = settings_in_force()
        if os.environ.get("WHEELQ_URL"):
            settings = replace(settings, url=None)
        keep_ms = round(self.keep_results * 1000)
        return replace(settings, topic=replace(settings.topic, keep_done_ms=keep_ms, result_max_bytes=RESULT_MAX_BYTES))


@lru_cache
def client_of(options: Options) -> Client:
    """Returns the client for these options: one for all threads of a process; forks get separate connections."""
    file = None if isinstance(options.outbox, bool) else options.outbox
    return Client.connect(options.url, settings=options.settings(), outbox=file)


class WheelqBackend(BaseTaskBackend):
    """A backend for TASKS. A task runs at least once; one that raises has failed after OPTIONS["max_attempts"]."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = False
    """Priorities are not supported, because due times decide the order: give urgent tasks a separate queue."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Raises: ImproperlyConfigured."""
        super().__init__(alias, params)
        self.parsed = Options.read(alias, self.options)
        for queue in self.queues:
            try:
                check_topic(queue)
            except InvalidInput as error:
                raise ImproperlyConfigured(f"TASKS[{alias!r}]['QUEUES']: {queue!r}: {error.problem}") from error

    @property
    def client(self) -> Client:
        """The client that all threads of this process share. Raises: ConfigurationError."""
        return client_of(self.parsed)

    def validate_task(self, task: Task) -> None:
        """Raises: InvalidTaskError, also for the name of a queue that cannot be that of a topic."""
        super().validate_task(task)
        try:
            check_topic(task.queue_name)
        except InvalidInput as error:
            raise InvalidTaskError(f"queue_name: {error.problem}") from error

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Schedule a job for the task. Raises: InvalidTaskError, and as `Client.schedule` does: with `on_commit`,
        InvalidInput at once, and errors of the server from the commit.
        """
        self.validate_task(task)
        result = new_result(task, new_result_id(task.queue_name), args, kwargs, self.alias)
        if self.parsed.on_commit:
            now_ms = wall_ms()
            Preparation(task.queue_name, self.parsed.settings().client, now_ms).job(self._job(result, now_ms))
            transaction.on_commit(partial(self._schedule, result))
        else:
            self._schedule(result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Returns a result. Raises: TaskResultDoesNotExist, also if it is no longer kept; ServerError."""
        return look_up(self.client, result_id, self.alias)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Returns the messages of `manage.py check` about this backend."""
        try:
            client_of(self.parsed)
        except WheelqError as error:
            return [checks.Error(f"TASKS[{self.alias!r}]: {error}", id="wheelq.E001")]
        return []

    def _job(self, result: TaskResult, now_ms: int) -> JobSpec:
        after = result.task.run_after
        if after is not None and timezone.is_naive(after):
            after = timezone.make_aware(after)
        _, id = queue_and_id(result.id)
        return JobSpec(payload_of(result, now_ms), key=id, delay=0 if after is None else None, at=after)

    def _schedule(self, result: TaskResult) -> None:
        now_ms = wall_ms()
        queue, job = result.task.queue_name, self._job(result, now_ms)
        call: dict[str, Any] = {"payload": job.payload, "key": job.key, "delay": job.delay, "at": job.at}
        if self.parsed.outbox is True:
            from wheelq.contrib.django.outbox.writing import DjangoConnection, DjangoOutbox  # needs SQLAlchemy

            DjangoOutbox(self.parsed.settings()).schedule(cast(Any, DjangoConnection()), queue, **call)
        else:
            self.client.schedule(queue, **call)
        change(result, enqueued_at=from_ms(now_ms))
        task_enqueued.send(type(self), task_result=result)
