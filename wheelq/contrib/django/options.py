"""The OPTIONS of a backend, checked when Django loads it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Self

from django.core.exceptions import ImproperlyConfigured

from wheelq.client import Client
from wheelq.model.retry import Retry
from wheelq.settings import Settings, settings_in_force

RESULT_MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Options:
    """OPTIONS of a backend in TASKS."""

    url: str | None = None
    """The server; else WHEELQ_URL."""
    outbox: str | None = None
    """An SQLite file on a local disk that keeps tasks while the server is away."""
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
        if not isinstance(made.keep_results, int | float) or not 0 < made.keep_results < 10**9:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: keep_results must be seconds, above 0")
        return made

    @property
    def retry(self) -> Retry:
        """How a failed task is tried again."""
        return Retry(max_attempts=self.max_attempts)

    def settings(self) -> Settings:
        """The settings in force, with topics that keep results."""
        settings = settings_in_force()
        keep_ms = round(self.keep_results * 1000)
        return replace(settings, topic=replace(settings.topic, keep_done_ms=keep_ms, result_max_bytes=RESULT_MAX_BYTES))


@lru_cache
def client_of(options: Options) -> Client:
    """Returns the client for these options: one for all threads of a process; forks get separate connections."""
    return Client.connect(options.url, settings=options.settings(), outbox=options.outbox)
