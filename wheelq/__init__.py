"""wheelq runs a job at the moment it is due: durable in Redis, exact to a few milliseconds, never early.

    producer ──schedule──▶ waiting (sorted set) ──preload──▶ timing wheel ──promote──▶ ready (stream) ──▶ worker

This is the way of one job through the code, and the order in which to read it:

    client.Client.schedule          takes the call              (`aio.AsyncClient` on asyncio)
    producer.scheduling             checks the job, packs it (`submission`) and finds its shard (`topics`); repeats a
                                    call whose reply was lost; while Redis is away, `fallback` uses the `outbox`
    producer.driver                 carries out each step, blocking or on asyncio; fails fast (`breaker`)
    protocol.calls.producer         describes the round trip as a value; `transport` alone talks to Redis
    protocol/lua/schedule.lua       writes it to the sorted set; hints the leader if it is due soon
      … waits …
    scheduler.loop, .leader         the shard's leader loads the jobs that are due soon
    scheduler.wheel                 says which ids are due now
    protocol/lua/promote.lua        sorted set → stream, in one step
    worker.lanes.reader             reads the stream
    worker.delivery.running         one delivery: runs the handler (`handlers`)
    worker.outcome                  decides what its result means
    protocol/lua/ack.lua            done

The other rooms, from the top down; a module imports only from rooms below its own:

    cli             the `wheelq` command
    testing         a scheduler and workers in memory, with time travel
    contrib         wheelq in the frameworks of others: Django
    server          the HTTP server: jobs, topics, dashboard, metrics
    client, aio     `Client`, and `AsyncClient`, from which it is generated
    callbacks       calls HTTP receivers when jobs are due
    sinks           batch handlers that store jobs exactly once
    admin           shows operators what a server holds; `diagnosis` explains it
    worker          runs handlers
    scheduler       promotes due jobs; makes the occurrences of recurring jobs
    producer        all client calls, written once for both clients: schedule, cancel, look up, wait, rerun, configure
    transport       connections to Redis; the only room that imports redis
    protocol        keys, records, calls and Lua scripts; `PROTOCOL.md` explains them for other languages
    logs, reminders log lines with their job; warnings that repeat only once a minute
    model           jobs, states, topics, dead jobs, recurring jobs, retries
    settings        every setting, its default and its environment variable
    embedded        a Redis-compatible server from a wheel
    guide           the pages of `wheelq guide` and of the server's `/guide`
    errors          the error tree
    telemetry       OpenTelemetry: spans, context in the headers of jobs, metrics
    base            clock, ids, metrics, liveness

Redis decides and the wheel hints: the sorted set is the only truth about waiting jobs. The wheel, the lease and every
message may be lost at any moment; that may delay a job, but never loses one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wheelq.aio import AsyncClient
    from wheelq.base.metrics import Histogram, Lateness
    from wheelq.client import Client
    from wheelq.errors import (
        AuthenticationFailed,
        BatchFailed,
        BeingRemoved,
        CircuitOpen,
        ConfigurationError,
        DuplicateJob,
        InUse,
        InvalidInput,
        InvalidJob,
        InvalidSetting,
        JobFailed,
        JobNotFound,
        NotFinished,
        NotPermitted,
        NotPrimary,
        NotReplicated,
        OutboxFull,
        OutcomeUnknown,
        PartlyScheduled,
        PayloadMismatch,
        PayloadTooLarge,
        RecurringUnreadable,
        Refused,
        ServerBusy,
        ServerError,
        ServerFull,
        ServerTooOld,
        TlsFailed,
        TopicFull,
        TopicNotFound,
        TopicUnreadable,
        Unavailable,
        WheelqError,
        WrongDatabase,
        WrongServerKind,
    )
    from wheelq.model.dead import DeadJob, DeadPage, Replayed, ReplayOutcome
    from wheelq.model.job import (
        BulkProgress,
        CancelOutcome,
        Job,
        JobSpec,
        Receipt,
        RescheduleOutcome,
        RunNowOutcome,
        WaitingPage,
    )
    from wheelq.model.recurring import RecurringInfo, RecurringOutcome, RecurringReceipt
    from wheelq.model.retry import Bury, Retry, RetryAfter
    from wheelq.model.state import Attempt, GroupInfo, JobInfo, JobPage, JobState, ListedJob, Progress
    from wheelq.model.task import Task, TaskDecorator, TaskJob
    from wheelq.model.topic import Group, Span, Topic, TopicChanges, TopicInfo, TopicMinute
    from wheelq.producer.history import Rerun
    from wheelq.producer.outbox.store import OutboxInfo
    from wheelq.scheduler import Scheduler
    from wheelq.settings import Settings
    from wheelq.worker import Worker


__version__ = "0.2.0"

__all__ = [
    "AsyncClient",
    "Attempt",
    "AuthenticationFailed",
    "BatchFailed",
    "BeingRemoved",
    "BulkProgress",
    "Bury",
    "CancelOutcome",
    "CircuitOpen",
    "Client",
    "ConfigurationError",
    "DeadJob",
    "DeadPage",
    "DuplicateJob",
    "Group",
    "GroupInfo",
    "Histogram",
    "InUse",
    "InvalidInput",
    "InvalidJob",
    "InvalidSetting",
    "Job",
    "JobFailed",
    "JobInfo",
    "JobNotFound",
    "JobPage",
    "JobSpec",
    "JobState",
    "Lateness",
    "ListedJob",
    "NotFinished",
    "NotPermitted",
    "NotPrimary",
    "NotReplicated",
    "OutboxFull",
    "OutboxInfo",
    "OutcomeUnknown",
    "PartlyScheduled",
    "PayloadMismatch",
    "PayloadTooLarge",
    "Progress",
    "Receipt",
    "RecurringInfo",
    "RecurringOutcome",
    "RecurringReceipt",
    "RecurringUnreadable",
    "Refused",
    "ReplayOutcome",
    "Replayed",
    "Rerun",
    "RescheduleOutcome",
    "Retry",
    "RetryAfter",
    "RunNowOutcome",
    "Scheduler",
    "ServerBusy",
    "ServerError",
    "ServerFull",
    "ServerTooOld",
    "Settings",
    "Span",
    "Task",
    "TaskDecorator",
    "TaskJob",
    "TlsFailed",
    "Topic",
    "TopicChanges",
    "TopicFull",
    "TopicInfo",
    "TopicMinute",
    "TopicNotFound",
    "TopicUnreadable",
    "Unavailable",
    "WaitingPage",
    "WheelqError",
    "Worker",
    "WrongDatabase",
    "WrongServerKind",
]

_NAMES = {
    "wheelq.aio": "AsyncClient",
    "wheelq.base.metrics": "Histogram Lateness",
    "wheelq.client": "Client",
    "wheelq.errors": (
        "AuthenticationFailed BatchFailed BeingRemoved CircuitOpen ConfigurationError DuplicateJob InUse "
        "InvalidInput InvalidJob InvalidSetting JobFailed JobNotFound NotFinished NotPermitted NotPrimary "
        "NotReplicated OutboxFull OutcomeUnknown PartlyScheduled PayloadMismatch PayloadTooLarge "
        "RecurringUnreadable Refused ServerBusy ServerError ServerFull ServerTooOld TlsFailed TopicFull "
        "TopicNotFound TopicUnreadable Unavailable WheelqError WrongDatabase WrongServerKind"
    ),
    "wheelq.model.dead": "DeadJob DeadPage Replayed ReplayOutcome",
    "wheelq.model.job": "BulkProgress CancelOutcome Job JobSpec Receipt RescheduleOutcome RunNowOutcome WaitingPage",
    "wheelq.model.recurring": "RecurringInfo RecurringOutcome RecurringReceipt",
    "wheelq.model.retry": "Bury Retry RetryAfter",
    "wheelq.model.state": "Attempt GroupInfo JobInfo JobPage JobState ListedJob Progress",
    "wheelq.model.task": "Task TaskDecorator TaskJob",
    "wheelq.model.topic": "Group Span Topic TopicChanges TopicInfo TopicMinute",
    "wheelq.producer.history": "Rerun",
    "wheelq.producer.outbox.store": "OutboxInfo",
    "wheelq.scheduler": "Scheduler",
    "wheelq.settings": "Settings",
    "wheelq.worker": "Worker",
}
"""The public names by module. A module is imported when one of its names is first used, so that the command line and
programs that need only a client start fast."""
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = frozenset({"embedded", "errors", "logs", "settings", "sinks", "testing"})


if not TYPE_CHECKING:  # else type checkers would take any name for a public one

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"wheelq.{name}")
        if name not in _WHERE:
            raise AttributeError(f"module 'wheelq' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_WHERE[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
