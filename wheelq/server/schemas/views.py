"""A job as it is looked up: all that the library's `client.get` tells."""

from __future__ import annotations

import base64
from typing import Any

from pydantic import ConfigDict, Field

from wheelq.server.schemas.jobs import moment, payload_fields
from wheelq.server.schemas.model import Answer
from wheelq.state import GroupInfo, JobInfo, JobState, Progress

_PROGRESS: dict[str, Any] = {"fraction": 0.4, "text": "page 2 of 5", "at_ms": 1_763_000_002_500}
_GROUP: dict[str, Any] = {
    "state": "running",
    "due_ms": 1_763_000_000_000,
    "attempt": 2,
    "worker": "host-7-a1b2c3",
    "deliveries": 1,
    "started_ms": 1_763_000_002_004,
    "finished_ms": None,
    "reason": None,
    "last_error": "TimeoutError: the printer does not answer",
    "result": None,
    "progress": _PROGRESS,
}
_JOB: dict[str, Any] = {
    "id": "order-42",
    "topic": "orders",
    "state": "running",
    "due_ms": 1_763_000_000_000,
    "due": "2025-11-13T02:13:20.000Z",
    "payload": {"id": 42},
    "headers": {"trace": "a1"},
    "attempt": 2,
    "scheduled_ms": 1_762_998_200_000,
    "promoted_ms": 1_762_999_990_001,
    "started_ms": 1_763_000_002_004,
    "finished_ms": None,
    "worker": "host-7-a1b2c3",
    "last_error": "TimeoutError: the printer does not answer",
    "result": None,
    "progress": _PROGRESS,
    "replays": 0,
    "shard": 0,
    "groups": {"billing": _GROUP},
}
_DONE: dict[str, Any] = {
    **_GROUP,
    "state": "done",
    "finished_ms": 1_763_000_004_000,
    "result": {"pages": 5},
    "progress": None,
}


class ProgressView(Answer):
    """How far a handler said it was."""

    fraction: float = Field(description="0 to 1.")
    text: str
    at_ms: int = Field(description="When it said so.")


class _Run(Answer):
    """What there is to say of the runs in one group, or of those in the group that is least far."""

    state: JobState
    worker: str | None = Field(description="Who has the job, or had it last.")
    started_ms: int | None = Field(description="When it was begun; while it runs, known once it told its progress.")
    last_error: str | None = Field(description="What the last attempt that failed said.")
    result: Any = Field(default=None, description="What the handler returned; kept for the topic's keep_done_ms.")
    result_base64: str | None = Field(default=None, description="The same, if it is bytes, in place of `result`.")
    progress: ProgressView | None


class GroupView(_Run):
    """Where a job stands in one group. What is not known, or has not happened, is null."""

    model_config = ConfigDict(json_schema_extra={"examples": [_GROUP, _DONE]})

    due_ms: int | None = Field(description="When this attempt is, or was, due.")
    attempt: int | None
    deliveries: int | None = Field(description="How often this attempt was handed out; above 1: a worker has died.")
    finished_ms: int | None = Field(description="When it was done, or given up.")
    reason: str | None = Field(description="Why it was given up.")


class JobView(_Run):
    """Where a job stands, all in all and in each group. What is not known, or has not happened, is null.

    All in all it is as far as the group that is least far, whose details these are.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [_JOB]})

    id: str
    topic: str
    due_ms: int
    due: str
    payload: Any = None
    payload_base64: str | None = None
    headers: dict[str, str]
    attempt: int
    scheduled_ms: int | None = Field(description="When its producer made it, by the producer's clock.")
    promoted_ms: int | None = Field(description="When it was made ready for the first time.")
    finished_ms: int | None = Field(description="When the last group finished it.")
    replays: int = Field(description="How often it was called back from the dead.")
    shard: int
    groups: dict[str, GroupView] = Field(
        description="By group; one that leases is named http.NAME here. Empty while the job is delayed."
    )


def job_view(info: JobInfo) -> dict[str, Any]:
    """See `JobView`."""
    same = ("id", "topic", "due_ms", "attempt", "scheduled_ms", "promoted_ms", "finished_ms", "replays", "shard")
    return {
        **{name: getattr(info, name) for name in same},
        "due": moment(info.due_ms),
        **payload_fields(info.payload),
        "headers": dict(info.headers),
        **_run(info),
        "groups": {name: _group(group) for name, group in info.groups.items()},
    }


def _group(info: GroupInfo) -> dict[str, Any]:
    same = ("due_ms", "attempt", "deliveries", "finished_ms", "reason")
    return {**{name: getattr(info, name) for name in same}, **_run(info)}


def _run(info: JobInfo | GroupInfo) -> dict[str, Any]:
    same = ("state", "worker", "started_ms", "last_error")
    return {
        **{name: getattr(info, name) for name in same},
        **_result(info.result),
        "progress": _progress(info.progress),
    }


def _result(result: Any) -> dict[str, Any]:
    if isinstance(result, bytes):
        return {"result_base64": base64.b64encode(result).decode()}
    return {"result": result}


def _progress(said: Progress | None) -> dict[str, Any] | None:
    return None if said is None else {"fraction": said.fraction, "text": said.text, "at_ms": said.at_ms}
