"""A job as a task's result: where it stands in the group of Django's workers. Other groups may have the job too.

waiting, ready, retrying ─▶ READY      running ─▶ RUNNING      done ─▶ SUCCESSFUL      dead ─▶ FAILED
"""

from __future__ import annotations

import re
import sys
from inspect import isclass
from pkgutil import resolve_name

from wheelq.client import Client
from wheelq.contrib.django.payloads import change, queue_and_id, result_of
from wheelq.contrib.django.tasks import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from wheelq.model import state
from wheelq.model.job import from_ms
from wheelq.model.state import GroupInfo, JobState

GROUP = "default"
"""The group of `manage.py wheelq_worker`."""
STATES = {
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.DONE: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
}

BECAUSE = "\nThe above exception was the direct cause of the following exception:\n"
AROUND = "\nRuntimeError: the handler called sys.exit("
"""The error in which the worker wraps the SystemExit of a task, so that the worker goes on. It is not shown: users of
Django expect the SystemExit alone."""

CHAINED = re.compile(r"^(?:The above|During handling of the above) exception.*:\n", re.M)
NAMED = re.compile(r"(?:.*\n(?: .*\n)+?)?(?:  \| )?([\w.]+)(?=:|$)", re.M)
"""A class after the frames of the last traceback, whose beginning may be cut off, or at the beginning of a line."""


def look_up(client: Client, result_id: str, backend: str) -> TaskResult:
    """Returns the result with this id. Raises: TaskResultDoesNotExist, InvalidTaskError."""
    queue, id = queue_and_id(result_id)
    info = client.get(queue, id)
    if info is None:
        raise TaskResultDoesNotExist(result_id)
    own = info.groups.get(GROUP, GroupInfo(JobState.READY))  # none while it waits, or before the first worker
    result = result_of(info.payload, id, queue, backend, info.scheduled_ms)
    started = [attempt.started for attempt in own.attempts]
    last = from_ms(own.started_ms) if own.started_ms else (started[-1] if started else None)
    change(
        result,
        status=STATES.get(own.state, TaskResultStatus.READY),
        started_at=started[0] if started else last,
        last_attempted_at=last,
        finished_at=from_ms(own.finished_ms) if own.finished_ms else None,
        worker_ids=_workers(own),
        errors=_errors(client, queue, id, own),
        _return_value=own.result if own.state is JobState.DONE else None,
    )
    return result


def error_of(text: str) -> TaskError:
    """Returns the error of a traceback, or of its last line alone: an Exception, if that names no class."""
    wrapped, cause, _ = text.rpartition(BECAUSE)
    if cause and AROUND in text:
        text = wrapped
    named = NAMED.match(CHAINED.split(text)[-1].lstrip())
    path = named[1] if named else ""
    path = path if "." in path else f"builtins.{path}"
    module, _, name = path.rpartition(".")
    try:  # a line may be any text, by which no module is to be imported
        found = resolve_name(path) if "\n" in text else getattr(sys.modules[module], name)
    except Exception:  # noqa: BLE001  # whatever a module raises while it is imported
        found = None
    is_error = isclass(found) and issubclass(found, BaseException)
    return TaskError(exception_class_path=path if is_error else "builtins.Exception", traceback=text)


def _workers(own: GroupInfo) -> list[str]:
    """Returns the worker of each attempt; "" for early ones, of which only the number is known."""
    workers = [attempt.worker for attempt in own.attempts]
    if own.worker and (own.state is JobState.RUNNING or (own.state is JobState.DONE and not own.started_ms)):
        workers.append(own.worker)
    number = own.attempt or 0
    if len(own.attempts) < state.ATTEMPTS_KEPT:  # the list is complete, and has the runs that count as no attempt, too
        number = min(number, len(workers))
    elif own.state in (JobState.READY, JobState.RETRYING):
        number = max(number - 1, 1)  # the next one has not begun
    return ([""] * number + workers)[-number:]


def _errors(client: Client, queue: str, id: str, own: GroupInfo) -> list[TaskError]:
    """Returns one error for each known failed attempt; that of a dead job has its whole traceback."""
    errors = [attempt.error for attempt in own.attempts if attempt.error]
    if own.state is JobState.DEAD:
        page = client.dead.list(queue, id=id, group=GROUP)
        last = [dead.traceback or dead.error for dead in page.jobs]
        errors = [*errors[:-1], *last[-1:]] if last else errors
    return [error_of(text) for text in errors]
