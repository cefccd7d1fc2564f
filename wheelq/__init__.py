"""wheelq runs a job at the moment it is due: durable in Redis, exact to a few milliseconds, never early.

    producer ──schedule──▶ delayed (sorted set) ──preload──▶ timing wheel ──promote──▶ ready (stream) ──▶ worker

One job's way through the house is also the reading order:

    client.Client.schedule          checks and packs            (aio.AsyncClient is its twin)
    protocol.batches, .calls        describe the round trip as a value
    protocol/lua/schedule.lua       writes it to the sorted set; rings the leader when it is due soon
      … waits …
    scheduler.loop, .window         the shard's leader loads what is near
    wheel                           says which ids are due now
    protocol/lua/promote.lua        sorted set → stream, in one step
    worker.loop                     reads the stream
    worker.handlers, .outcome       run the handler, decide what its result means
    protocol/lua/ack.lua            done

Redis decides and the wheel hints: the sorted set is the only truth about what waits, and the wheel, the lease and
every message may be lost at any moment; that may cost lateness, never a job.
"""

from __future__ import annotations

from wheelq.aio import AsyncClient
from wheelq.client import Client
from wheelq.errors import WheelqError
from wheelq.job import (
    CancelOutcome,
    Job,
    JobInfo,
    JobSpec,
    JobState,
    Receipt,
    RescheduleOutcome,
    RunNowOutcome,
)
from wheelq.retry import Retry
from wheelq.scheduler import Scheduler
from wheelq.settings import Settings
from wheelq.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "CancelOutcome",
    "Client",
    "Job",
    "JobInfo",
    "JobSpec",
    "JobState",
    "Receipt",
    "RescheduleOutcome",
    "Retry",
    "RunNowOutcome",
    "Scheduler",
    "Settings",
    "WheelqError",
    "Worker",
]
