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
    sql             `SqlOutbox`: schedules in a transaction of the user's database; its courier
    callbacks       calls HTTP receivers when jobs are due
    sinks           handlers that pass jobs on: to a SQL database exactly once, to Kafka at least once
    admin           shows operators what a server holds; `diagnosis` explains it
    worker          runs handlers
    scheduler       promotes due jobs; makes the occurrences of recurring jobs
    following       what follows a job: carries it to its shard
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

from wheelq.base.version import __version__ as __version__

if TYPE_CHECKING:
    from wheelq.aio import AsyncClient as AsyncClient
    from wheelq.base.metrics import Histogram as Histogram
    from wheelq.base.metrics import Lateness as Lateness
    from wheelq.client import Client as Client
    from wheelq.errors import AuthenticationFailed as AuthenticationFailed
    from wheelq.errors import BatchFailed as BatchFailed
    from wheelq.errors import BeingRemoved as BeingRemoved
    from wheelq.errors import BundleClosed as BundleClosed
    from wheelq.errors import BundleNotFound as BundleNotFound
    from wheelq.errors import CircuitOpen as CircuitOpen
    from wheelq.errors import ConfigurationError as ConfigurationError
    from wheelq.errors import DuplicateJob as DuplicateJob
    from wheelq.errors import GroupNotFound as GroupNotFound
    from wheelq.errors import InUse as InUse
    from wheelq.errors import InvalidInput as InvalidInput
    from wheelq.errors import InvalidJob as InvalidJob
    from wheelq.errors import InvalidSetting as InvalidSetting
    from wheelq.errors import JobFailed as JobFailed
    from wheelq.errors import JobNotFound as JobNotFound
    from wheelq.errors import NotFinished as NotFinished
    from wheelq.errors import NotLeader as NotLeader
    from wheelq.errors import NotPermitted as NotPermitted
    from wheelq.errors import NotPrimary as NotPrimary
    from wheelq.errors import NotReplicated as NotReplicated
    from wheelq.errors import OutboxFull as OutboxFull
    from wheelq.errors import OutcomeUnknown as OutcomeUnknown
    from wheelq.errors import PartlyScheduled as PartlyScheduled
    from wheelq.errors import PayloadMismatch as PayloadMismatch
    from wheelq.errors import PayloadTooLarge as PayloadTooLarge
    from wheelq.errors import RecurringUnreadable as RecurringUnreadable
    from wheelq.errors import Refused as Refused
    from wheelq.errors import ResultMismatch as ResultMismatch
    from wheelq.errors import ServerBusy as ServerBusy
    from wheelq.errors import ServerError as ServerError
    from wheelq.errors import ServerFull as ServerFull
    from wheelq.errors import ServerTooOld as ServerTooOld
    from wheelq.errors import TlsFailed as TlsFailed
    from wheelq.errors import TopicFull as TopicFull
    from wheelq.errors import TopicNotFound as TopicNotFound
    from wheelq.errors import TopicUnreadable as TopicUnreadable
    from wheelq.errors import Unavailable as Unavailable
    from wheelq.errors import WheelqError as WheelqError
    from wheelq.errors import WritesRefused as WritesRefused
    from wheelq.errors import WrongDatabase as WrongDatabase
    from wheelq.errors import WrongServerKind as WrongServerKind
    from wheelq.model.bundle import Bundle as Bundle
    from wheelq.model.bundle import BundleState as BundleState
    from wheelq.model.bundle import Continuation as Continuation
    from wheelq.model.bundle import Receipts as Receipts
    from wheelq.model.dead import DeadJob as DeadJob
    from wheelq.model.dead import DeadPage as DeadPage
    from wheelq.model.dead import Replayed as Replayed
    from wheelq.model.dead import ReplayOutcome as ReplayOutcome
    from wheelq.model.job import BulkProgress as BulkProgress
    from wheelq.model.job import CancelOutcome as CancelOutcome
    from wheelq.model.job import Following as Following
    from wheelq.model.job import Job as Job
    from wheelq.model.job import JobSpec as JobSpec
    from wheelq.model.job import Receipt as Receipt
    from wheelq.model.job import RescheduleOutcome as RescheduleOutcome
    from wheelq.model.job import RunNowOutcome as RunNowOutcome
    from wheelq.model.job import WaitingPage as WaitingPage
    from wheelq.model.recurring import RecurringInfo as RecurringInfo
    from wheelq.model.recurring import RecurringOutcome as RecurringOutcome
    from wheelq.model.recurring import RecurringReceipt as RecurringReceipt
    from wheelq.model.retry import Bury as Bury
    from wheelq.model.retry import Retry as Retry
    from wheelq.model.retry import RetryAfter as RetryAfter
    from wheelq.model.state import Attempt as Attempt
    from wheelq.model.state import GroupInfo as GroupInfo
    from wheelq.model.state import JobInfo as JobInfo
    from wheelq.model.state import JobPage as JobPage
    from wheelq.model.state import JobState as JobState
    from wheelq.model.state import ListedJob as ListedJob
    from wheelq.model.state import Progress as Progress
    from wheelq.model.task import Task as Task
    from wheelq.model.task import TaskDecorator as TaskDecorator
    from wheelq.model.task import TaskJob as TaskJob
    from wheelq.model.topic import Group as Group
    from wheelq.model.topic import Span as Span
    from wheelq.model.topic import Topic as Topic
    from wheelq.model.topic import TopicChanges as TopicChanges
    from wheelq.model.topic import TopicInfo as TopicInfo
    from wheelq.model.topic import TopicMinute as TopicMinute
    from wheelq.producer.history import Rerun as Rerun
    from wheelq.producer.outbox.store import OutboxInfo as OutboxInfo
    from wheelq.scheduler import Scheduler as Scheduler
    from wheelq.settings import Settings as Settings
    from wheelq.worker import Router as Router
    from wheelq.worker import Worker as Worker


_NAMES = {
    "wheelq.aio": "AsyncClient",
    "wheelq.base.metrics": "Histogram Lateness",
    "wheelq.client": "Client",
    "wheelq.errors": (
        "AuthenticationFailed BatchFailed BeingRemoved BundleClosed BundleNotFound CircuitOpen ConfigurationError "
        "DuplicateJob GroupNotFound InUse InvalidInput InvalidJob InvalidSetting JobFailed JobNotFound NotFinished "
        "NotLeader NotPermitted NotPrimary NotReplicated OutboxFull OutcomeUnknown PartlyScheduled PayloadMismatch "
        "PayloadTooLarge RecurringUnreadable Refused ResultMismatch ServerBusy ServerError ServerFull ServerTooOld "
        "TlsFailed TopicFull TopicNotFound TopicUnreadable Unavailable WheelqError WritesRefused WrongDatabase "
        "WrongServerKind"
    ),
    "wheelq.model.bundle": "Bundle BundleState Continuation Receipts",
    "wheelq.model.dead": "DeadJob DeadPage Replayed ReplayOutcome",
    "wheelq.model.job": (
        "BulkProgress CancelOutcome Following Job JobSpec Receipt RescheduleOutcome RunNowOutcome WaitingPage"
    ),
    "wheelq.model.recurring": "RecurringInfo RecurringOutcome RecurringReceipt",
    "wheelq.model.retry": "Bury Retry RetryAfter",
    "wheelq.model.state": "Attempt GroupInfo JobInfo JobPage JobState ListedJob Progress",
    "wheelq.model.task": "Task TaskDecorator TaskJob",
    "wheelq.model.topic": "Group Span Topic TopicChanges TopicInfo TopicMinute",
    "wheelq.producer.history": "Rerun",
    "wheelq.producer.outbox.store": "OutboxInfo",
    "wheelq.scheduler": "Scheduler",
    "wheelq.settings": "Settings",
    "wheelq.worker": "Router Worker",
}
"""The public names by module. A module is imported when one of its names is first used, so that the command line and
programs that need only a client start fast."""
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_WHERE)
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
