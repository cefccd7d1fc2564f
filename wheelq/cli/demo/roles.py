"""The code of the demo's two child processes: `python -m wheelq.cli.demo.roles scheduler|worker PREFIX`.

WHEELQ_URL  ──▶ server
stdin       end of file: stop cleanly. It comes when the demo closes the pipe or has ended for any reason, so no
            child outlives its parent.
stdout      msgpack: the word "ready", then from the worker one report for every start of a handler
stderr      the log; shown only if the process ends too soon
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import msgpack

from wheelq.cli.demo.orders import KINDS
from wheelq.cli.demo.plan import FAILS_FIRST
from wheelq.cli.demo.verdict import DemoRun
from wheelq.model.job import Job
from wheelq.model.retry import Retry
from wheelq.scheduler import Scheduler
from wheelq.settings import Settings
from wheelq.worker import Worker

READY = "ready"
GRACE_S = 4.0
"""How long a stop may take before the process ends itself, because the demo may be gone."""
RETRY = Retry(max_attempts=3, base=1.0)


class CallbackFailed(Exception):
    """The shop did not answer the callback."""


def make_worker(settings: Settings) -> Worker:
    """Returns a worker with one handler for all topics, which only reports."""
    worker = Worker.connect(settings=settings, group="demo")

    async def handle(job: Job) -> None:
        failed = job.attempt == 1 and FAILS_FIRST in job.headers
        report(DemoRun(job.topic, job.id, job.due_ms, job.promoted_ms, job.started_ms, job.attempt, failed))
        if failed:
            raise CallbackFailed(job.payload["message"])

    # Planned failures are not logged: the log is for errors that end this process.
    logging.getLogger("wheelq.worker").addFilter(lambda record: "CallbackFailed" not in record.getMessage())
    for topic in KINDS:
        worker.handler(topic, retry=RETRY)(handle)
    return worker


def report(what: object) -> None:
    """Send a report to the demo, unbuffered, so that no report is lost if this process is killed."""
    os.write(sys.stdout.fileno(), msgpack.packb(what))


async def play(part: Scheduler | Worker) -> None:
    """Run a part until stdin ends."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(sys.stdin.fileno())
        loop.call_later(GRACE_S, os._exit, 1)
        part.stop()

    loop.add_reader(sys.stdin.fileno(), stop)
    report(READY)
    await part.run()


def main() -> None:
    role, prefix = sys.argv[1:]
    settings = Settings(prefix=prefix)
    asyncio.run(play(Scheduler.connect(settings=settings) if role == "scheduler" else make_worker(settings)))


if __name__ == "__main__":
    main()
