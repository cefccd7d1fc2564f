"""Targets, and the receivers that they lead to."""

from __future__ import annotations

from typing import Any

from wheelq.callbacks.destination import DestinationInfo
from wheelq.producer.breaker import BreakerState
from wheelq.server.schemas.model import Answer

TARGET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "The receiver to call when the job is due: a registered service and a path under its URL, or a URL "
    "that is allowed here. The payload is POSTed there, signed (Standard Webhooks), and retried until it is accepted.",
    "oneOf": [
        {
            "properties": {"service": {"type": "string"}, "path": {"type": "string"}},
            "required": ["service"],
            "additionalProperties": False,
        },
        {"properties": {"url": {"type": "string"}}, "required": ["url"], "additionalProperties": False},
    ],
    "examples": [{"service": "billing", "path": "/orders/expired"}],
}


class DestinationView(Answer):
    """A receiver of callbacks, as this server process sees it."""

    name: str
    state: BreakerState
    """closed: it is called. open: it has failed repeatedly, and is not called. half_open: it is tried."""
    in_flight: int
    deferred: int
    succeeded: int
    failed: int
    last_error: str | None


class DestinationList(Answer):
    """The receivers that this process has called so far, by name."""

    destinations: list[DestinationView]


def destination_view(info: DestinationInfo) -> dict[str, Any]:
    """A receiver as an answer: see `DestinationView`."""
    return {name: getattr(info, name) for name in DestinationView.model_fields}
