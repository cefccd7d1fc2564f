"""A job as a task's result.

waiting, ready, retrying ─▶ READY      running ─▶ RUNNING      done ─▶ SUCCESSFUL      dead ─▶ FAILED
"""

from __future__ import annotations

import re

from wheelq.client import Client
from wheelq.contrib.django.payloads import change, queue_and_id, result_of
from wheelq.contrib.django.tasks import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from wheelq.model.job import from_ms
from wheelq.model.state import JobInfo, JobState

STATES = {
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.DONE: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
}

BECAUSE = "\nThe above exception was the direct cause of the following exception:\n"
AROUND = "\nRuntimeError: the handler called sys.exit("
"""The error in which the worker wraps the SystemExit of a task, so that the worker goes on. It is not shown: users of
Django expect the SystemExit alone."""


def look_up(client: Client, result_id: str, backend: str) -> TaskResult:
    """Returns the result with this id. Raises: TaskResultDoesNotExist, InvalidTaskError."""
    queue, id = queue_and_id(result_id)
    info = client.get(queue, id)
    if info is None:
        raise TaskResultDoesNotExist(result_id)
    result = result_of(info.payload, id, queue, backend, info.scheduled_ms)
    workers = [attempt.worker for attempt in info.attempts]
    if info.worker and len(workers) < info.attempt and info.state is not JobState.RETRYING:
        workers.append(info.worker)
    started = [attempt.started for attempt in info.attempts]
    last = from_ms(info.started_ms) if info.started_ms else (started[-1] if started else None)
    change(
        result,
        status=STATES.get(info.state, TaskResultStatus.READY),
        started_at=started[0] if started else last,
        last_attempted_at=last,
        finished_at=from_ms(info.finished_ms) if info.finished_ms else None,
        worker_ids=workers,
        errors=_errors(client, info),
        _return_value=info.result if info.state is JobState.DONE else None,
    )
    return result


def error_of(traceback: str) -> TaskError:
    """Returns the error of a traceback, or of its last line alone."""
    wrapped, cause, _ = traceback.rpartition(BECAUSE)
    if cause and AROUND in traceback:
        traceback = wrapped
    lines = [line for line in traceback.strip().splitlines() if line and not line.startswith(" ")]
    named = re.match(r"[\w.]+", lines[-1]) if lines else None
    path = named[0] if named else "Exception"
    return TaskError(exception_class_path=path if "." in path else f"builtins.{path}", traceback=traceback)


def _errors(client: Client, info: JobInfo) -> list[TaskError]:
    """Returns one error for each known failed attempt; that of a dead job has its whole traceback."""
    errors = [attempt.error for attempt in info.attempts if attempt.error]
    if info.state is JobState.DEAD:
        page = client.dead.list(info.topic, id=info.id)
        last = [dead.traceback or dead.error for dead in page.jobs]
        errors = [*errors[:-1], *last[-1:]] if last else errors
    return [error_of(text) for text in errors]
