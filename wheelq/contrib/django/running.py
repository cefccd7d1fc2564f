"""The worker of a backend's queues.

Every task runs in a thread, an async one on an event loop of that thread. Connections to databases that are too old or
broken are closed before and after each task, in the thread that used them, as Django does around requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from traceback import format_exception
from typing import Any

from django.db import close_old_connections

from wheelq.base.clock import wall_ms
from wheelq.contrib.django.backend import WheelqBackend
from wheelq.contrib.django.payloads import change, result_of
from wheelq.contrib.django.results import error_of
from wheelq.contrib.django.tasks import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from wheelq.model.job import Job, from_ms
from wheelq.worker import Worker


def make_worker(backend: WheelqBackend, queues: Sequence[str] = (), concurrency: int | None = None) -> Worker:
    """Returns a worker for these queues of the backend, or for all. `concurrency` is the number of threads."""
    options = backend.parsed
    settings = options.settings()
    if concurrency is not None:
        settings = replace(settings, worker=replace(settings.worker, concurrency=concurrency, threads=concurrency))
    worker = Worker.connect(options.url, settings=settings)

    def run(job: Job) -> Any:
        close_old_connections()
        try:
            return _run(backend, worker.name, job)
        finally:
            close_old_connections()

    for queue in queues or sorted(backend.queues):
        worker.handler(queue, retry=options.retry)(run)
    return worker


def _run(backend: WheelqBackend, worker: str, job: Job) -> Any:
    result = result_of(job.payload, job.id, job.topic, backend.alias)
    now = from_ms(wall_ms())
    earlier = [worker] * job.attempt  # only their number counts here; the stored result has their workers
    change(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now, worker_ids=earlier)
    task_started.send(type(backend), task_result=result)
    task = result.task
    before = (TaskContext(task_result=result),) if task.takes_context else ()
    try:
        value = normalize_json(task.call(*before, *result.args, **result.kwargs))
    except BaseException as error:
        if job.attempt >= backend.parsed.max_attempts:
            failed = error_of("".join(format_exception(error)))
            _finish(backend, result, status=TaskResultStatus.FAILED, errors=[failed])
        raise
    _finish(backend, result, status=TaskResultStatus.SUCCESSFUL, _return_value=value)
    return value


def _finish(backend: WheelqBackend, result: TaskResult, **values: Any) -> None:
    change(result, finished_at=from_ms(wall_ms()), **values)
    task_finished.send(type(backend), task_result=result)
