"""Leases: asked for, handed out, answered for."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from wheelq.errors import InvalidInput
from wheelq.protocol.calls.leases import LONGEST_MS
from wheelq.server.leases import HANDLE_PATTERN, Delivered
from wheelq.server.schemas.jobs import moment, payload_fields
from wheelq.server.schemas.model import WHOLE, Answer, Model

MOST = 100
LONGEST_S = LONGEST_MS // 1000
LONGEST_WAIT_S = 20
GROUP_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

GROUP: dict[str, Any] = {
    "name": "group",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": GROUP_PATTERN, "examples": ["billing"]},
    "description": "Who consumes: each group gets every job, and within a group each job goes to one.",
}
Handle = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^{HANDLE_PATTERN}$"})]
Handles = Annotated[
    list[Handle], Field(min_length=1, max_length=500, description="Handles of leases, as they were handed out.")
]


class LeaseRequest(Model):
    """How many jobs, for how long."""

    count: Annotated[int, Field(ge=1, le=MOST, description="How many at most."), WHOLE] = 1
    lease: Annotated[float, Field(gt=0, le=LONGEST_S, description="For how many seconds.")] = 30
    wait: Annotated[
        float, Field(ge=0, le=LONGEST_WAIT_S, description="How many seconds to wait for the first, if none is ready.")
    ] = 0

    model_config = ConfigDict(json_schema_extra={"examples": [{"count": 10, "lease": 30, "wait": 20}]})


class AckRequest(Model):
    """What was done."""

    handles: Handles

    model_config = ConfigDict(json_schema_extra={"examples": [{"handles": ["0.1763000000000-0.1.6f726465722d3432"]}]})


class ExtendRequest(AckRequest):
    """What takes longer."""

    lease: Annotated[float, Field(gt=0, le=LONGEST_S, description="For how many seconds from now.")] = 30


class ReleaseRequest(AckRequest):
    """What others may have."""

    pause: Annotated[float, Field(ge=0, le=LONGEST_S, description="After how many seconds.")] = 0


class LeasedJob(Answer):
    """A job and its lease."""

    handle: str
    id: str
    due_ms: int
    due: str
    payload: Any = None
    payload_base64: str | None = None
    headers: dict[str, str]
    attempt: int
    deliveries: int = Field(description="How often it was leased; above 1: somebody may have begun it before.")


class LeasedJobs(Answer):
    """What was leased; empty when nothing was ready."""

    jobs: list[LeasedJob]


class Answered(Answer):
    """For each handle, in order: whether it was still leased under it. If not, nothing was done."""

    done: list[bool]


def check_group(group: str) -> str:
    """The group's name, if it is one. Raises: InvalidInput."""
    if not re.match(GROUP_PATTERN, group) or group.endswith("\n"):
        raise InvalidInput("group", f"{group!r} is none: use 1 to 64 letters, digits, '.', '_' or '-'")
    return group


def leased(found: list[Delivered]) -> dict[str, Any]:
    """Leases as an answer: see `LeasedJobs`."""
    return {
        "jobs": [
            {
                "handle": item.handle,
                "id": item.entry.id,
                "due_ms": item.entry.due_ms,
                "due": moment(item.entry.due_ms),
                **payload_fields(item.record.payload),
                "headers": dict(item.record.headers),
                "attempt": item.entry.attempt,
                "deliveries": item.entry.deliveries,
            }
            for item in found
        ]
    }
