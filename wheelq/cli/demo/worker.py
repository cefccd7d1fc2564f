"""The demo's worker, which `wheelq worker` runs: its handler writes a line of JSON to stdout at each start."""

from __future__ import annotations

import json
import logging
import os
import sys

from wheelq.cli.demo.orders import FAILS_FIRST, KINDS
from wheelq.cli.demo.verdict import DemoRun
from wheelq.model.job import Job
from wheelq.model.retry import Retry
from wheelq.worker import Worker

RETRY = Retry(max_attempts=3, base=1.0)


class CallbackFailed(Exception):
    """The shop did not answer the callback."""


def reporting_worker() -> Worker:
    """Returns a worker with one handler for all topics, which only reports."""
    worker = Worker.connect(group="demo")
    # Planned failures are not logged: the log is for what the demo did not plan.
    logging.getLogger("wheelq.worker").addFilter(lambda record: "CallbackFailed" not in record.getMessage())

    async def handle(job: Job) -> None:
        failed = job.attempt == 1 and FAILS_FIRST in job.headers
        run = DemoRun(job.topic, job.id, job.due_ms, job.promoted_ms, job.started_ms, job.attempt, failed)
        os.write(sys.stdout.fileno(), json.dumps(run).encode() + b"\n")  # unbuffered: a kill loses no report
        if failed:
            raise CallbackFailed("no answer")

    for topic in KINDS:
        worker.handler(topic, retry=RETRY)(handle)
    return worker
