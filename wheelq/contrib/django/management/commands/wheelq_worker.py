"""manage.py wheelq_worker: runs tasks until SIGINT or SIGTERM; running tasks may then finish.

Every task runs in a thread, an async one on an event loop of that thread. Connections to databases that are too old or
broken are closed before and after each task, in the thread that used them, as Django does around requests.
"""

from __future__ import annotations

import asyncio
import signal
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections

from wheelq.base.clock import wall_ms
from wheelq.contrib.django.backend import WheelqBackend
from wheelq.contrib.django.payloads import change, result_of
from wheelq.contrib.django.results import GROUP, error_of
from wheelq.contrib.django.tasks import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from wheelq.errors import InvalidInput, PayloadTooLarge, ServerError, WheelqError
from wheelq.model.job import Job, from_ms
from wheelq.model.retry import Bury
from wheelq.protocol.codec import encode_result
from wheelq.scheduler import Scheduler
from wheelq.worker import Worker
from wheelq.worker.outcome import Buried, of_failure


class Command(BaseCommand):
    """Runs the tasks of a wheelq backend."""

    help = "Runs the tasks of a wheelq backend until SIGINT or SIGTERM; running tasks may then finish."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="its name in TASKS (default: default)")
        parser.add_argument("--queue", action="append", default=[], help="a queue to serve, repeatable (default: all)")
        parser.add_argument("--concurrency", type=int, help="how many tasks run at the same time (default: 32)")
        parser.add_argument("--with-scheduler", action="store_true", help="run a scheduler node in this process too")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal. Raises: CommandError."""
        name, queues = options["backend"], options["queue"]
        backend = task_backends[name]
        if not isinstance(backend, WheelqBackend):
            raise CommandError(f"TASKS[{name!r}] is not a wheelq backend, but {type(backend).__name__}")
        if not (queues or backend.queues):
            raise CommandError(f"--queue: name the queues, because TASKS[{name!r}] takes any (QUEUES is empty)")
        if backend.queues and (unknown := set(queues) - backend.queues):
            raise CommandError(f"--queue {', '.join(sorted(unknown))}: TASKS[{name!r}] has {sorted(backend.queues)}")
        if options["concurrency"] is not None and options["concurrency"] < 1:
            raise CommandError("--concurrency: must be at least 1")
        if backend.parsed.outbox is True:  # else a courier, which does not know what is to be kept, would make them
            with suppress(ServerError):
                for queue in queues or backend.queues:
                    backend.client.configure(queue)
        try:
            asyncio.run(self._run(backend, queues, options["concurrency"], options["with_scheduler"]))
        except WheelqError as error:
            raise CommandError(str(error)) from error

    async def _run(
        self, backend: WheelqBackend, queues: list[str], concurrency: int | None, with_scheduler: bool
    ) -> None:
        worker = make_worker(backend, queues, concurrency)
        scheduler = Scheduler.connect(backend.parsed.url, backend.parsed.settings()) if with_scheduler else None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, worker.stop)
        self.stdout.write(f"worker {worker.name} runs, queues {', '.join(worker.topics)}")
        self.stdout.flush()
        beside = asyncio.create_task(scheduler.run(patiently=True)) if scheduler else None
        try:
            await worker.run(patiently=True)
        finally:
            if scheduler is not None and beside is not None:
                scheduler.stop()
                await beside
        self.stdout.write(f"worker {worker.name} has stopped; it ran {worker.handled} tasks")


def make_worker(backend: WheelqBackend, queues: Sequence[str] = (), concurrency: int | None = None) -> Worker:
    """Returns a worker for these queues of the backend, or for all. `concurrency` is the number of threads."""
    options = backend.parsed
    settings = options.settings()
    if concurrency is not None:
        settings = replace(settings, worker=replace(settings.worker, concurrency=concurrency, threads=concurrency))
    worker = Worker.connect(options.url, group=GROUP, settings=settings)

    def run(job: Job) -> Any:
        close_old_connections()
        try:
            return _run(backend, worker, job)
        finally:
            close_old_connections()

    for queue in queues or sorted(backend.queues):
        worker.handler(queue, retry=options.retry)(run)
    return worker


def _run(backend: WheelqBackend, worker: Worker, job: Job) -> Any:
    result = result_of(job.payload, job.id, job.topic, backend.alias, job.scheduled_ms)
    now = from_ms(wall_ms())
    earlier = [worker.name] * job.attempt  # only their number counts here; the stored result has their workers
    change(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now, worker_ids=earlier)
    task_started.send(type(backend), task_result=result)
    task = result.task
    before = (TaskContext(task_result=result),) if task.takes_context else ()
    try:
        value = normalize_json(task.call(*before, *result.args, **result.kwargs))
        _check_value(value, worker, job.topic)
    except BaseException as error:
        outcome = of_failure(error, job.attempt, backend.parsed.retry.for_job(job.max_attempts), draw=0)
        if isinstance(outcome, Buried):
            _finish(backend, result, status=TaskResultStatus.FAILED, errors=[error_of(outcome.traceback)])
        raise
    _finish(backend, result, status=TaskResultStatus.SUCCESSFUL, _return_value=value)
    return value


def _check_value(value: Any, worker: Worker, queue: str) -> None:
    """Raises: Bury, if the queue keeps results, but cannot keep this one: another attempt would not help."""
    topic = next((shard.topic for shard in worker._shards.shards if shard.keys.topic == queue), None)
    if topic is not None and topic.keep_done_ms:
        try:
            encode_result(value, topic.result_max_bytes)
        except InvalidInput as error:
            problem = f"the return value cannot be kept: {error.problem}"
            if isinstance(error, PayloadTooLarge):
                problem += f": wheelq configure {queue} --result-max-bytes {error.payload_bytes}"
            raise Bury(problem) from error


def _finish(backend: WheelqBackend, result: TaskResult, **values: Any) -> None:
    change(result, finished_at=from_ms(wall_ms()), **values)
    task_finished.send(type(backend), task_result=result)
