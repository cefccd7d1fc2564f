"""The audit log: who changed what, a JSON object a line in the log `wheelq.audit`.

Scheduling and consuming are the daily work and told only if asked for. No payload, header or secret is ever in it.
"""

from __future__ import annotations

import logging

from pydantic_core import to_json
from starlette.requests import Request

from wheelq.server.access.keyring import Caller
from wheelq.server.access.keys import Verb

logger = logging.getLogger("wheelq.audit")

DAILY = (Verb.SCHEDULE, Verb.CONSUME)


class Audit:
    """Writes the audit log."""

    def __init__(self, what: str) -> None:
        """`what`: "changes", "all" or "off"."""
        self._told = {
            "off": frozenset[Verb](),
            "changes": frozenset(Verb) - {Verb.READ, *DAILY},
            "all": frozenset(Verb) - {Verb.READ},
        }[what]

    def tell(self, caller: Caller, verb: Verb, request: Request, address: str, status: int) -> None:
        """A request was answered with this status."""
        if verb in self._told:
            who = {"key": caller.id or None, "from": address, "verb": verb}
            what = {"method": request.method, "path": request.url.path, "status": status}
            logger.info("%s", to_json({**who, **what}).decode())
