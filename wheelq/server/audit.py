"""The audit log: changes with their callers, and refused requests, one JSON object per line in the log `wheelq.audit`.

Sign-ins to the dashboard, right and wrong, are always logged. Scheduling, consuming and refused reads are logged only
with "all". The log never holds a payload, a header or a secret.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Self

from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request

from wheelq.errors import WheelqError
from wheelq.server import problems
from wheelq.server.access import Caller, Verb
from wheelq.server.problems import Problem, problem_of

logger = logging.getLogger("wheelq.audit")

DAILY = (Verb.SCHEDULE, Verb.CONSUME)


REFUSED = (401, 403)
GONE = 499
"""Replaces the status if the caller left before the answer."""


class Audit:
    """Writes the audit log."""

    def __init__(self, what: str) -> None:
        """`what`: "changes", "all" or "off"."""
        self._logged = {
            "off": frozenset[Verb](),
            "changes": frozenset(Verb) - {Verb.READ, *DAILY},
            "all": frozenset(Verb) - {Verb.READ},
        }[what]
        self._logs_refusals = what == "all"

    def of(self, request: Request, verb: Verb, address: str) -> AuditEntry:
        """Wraps a request that needs this verb, and logs it at its end, however it ends."""
        return AuditEntry(self, request, verb, address)

    def tell(self, entry: AuditEntry, status: int) -> None:
        """Log a request that was answered with this status."""
        if entry.verb in self._logged or (self._logs_refusals and status in REFUSED):
            key = (entry.caller and entry.caller.id) or None
            self._log(entry.request, key, entry.address, entry.verb, status, entry.topic)

    def tell_entry(self, request: Request, what: str, key: str, address: str, status: int) -> None:
        """Log a sign-in or a sign-out; without `key`, no key was known."""
        if self._logged:
            self._log(request, key or None, address, what, status)

    def _log(
        self, request: Request, key: str | None, address: str, verb: str, status: int, topic: str | None = None
    ) -> None:
        line: dict[str, Any] = {"key": key, "from": address, "verb": verb}
        line |= {"method": request.method, "path": request.scope["path"], "status": status}
        if topic is not None:
            line["topic"] = topic
        logger.info("%s", to_json(line).decode())


@dataclass(slots=True)
class AuditEntry:
    """The audited facts of one request."""

    audit: Audit
    request: Request
    verb: Verb
    address: str
    caller: Caller | None = None
    topic: str | None = None
    """Set if the path does not name it."""
    status: int = 500

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        match error:
            case Problem():
                self.status = error.kind.status
            case WheelqError():
                self.status = problem_of(error).kind.status
            case RequestValidationError():
                self.status = problems.INVALID.status
            case ClientDisconnect():
                self.status = GONE
        self.audit.tell(self, self.status)
