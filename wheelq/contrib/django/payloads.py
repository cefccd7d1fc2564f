"""A task as the payload of a job, and back.

    {"task": "shop.tasks.send", "args": [42], "kwargs": {}, "enqueued": 1763000000000}

Others may leave out all but the task, as a recurring job does; it then counts as enqueued when its job was scheduled.
The id of a task's result is QUEUE:ID, with the job's id in the queue's topic: that is enough to look it up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.module_loading import import_string

from wheelq.base.ids import make_id
from wheelq.contrib.django.tasks import InvalidTaskError, Task, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from wheelq.errors import InvalidInput
from wheelq.model.checks import check_id, check_topic
from wheelq.model.job import from_ms

SEPARATOR = ":"


def new_result_id(queue: str) -> str:
    return f"{queue}{SEPARATOR}{make_id()}"


def new_result(
    task: Task, id: str, args: Sequence[Any], kwargs: Mapping[str, Any], backend: str, enqueued: datetime | None = None
) -> TaskResult:
    """Returns a result with status READY."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=enqueued,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def queue_and_id(result_id: str) -> tuple[str, str]:
    """Returns the queue's topic and the job's id. Raises: TaskResultDoesNotExist."""
    queue, _, id = result_id.partition(SEPARATOR)
    try:
        check_topic(queue)
        check_id(id)
    except InvalidInput as error:
        raise TaskResultDoesNotExist(result_id) from error
    return queue, id


def payload_of(result: TaskResult, enqueued_ms: int) -> dict[str, Any]:
    path = result.task.module_path
    return {"task": path, "args": result.args, "kwargs": result.kwargs, "enqueued": enqueued_ms}


def result_of(payload: Any, id: str, queue: str, backend: str, scheduled_ms: int | None) -> TaskResult:
    """Returns a result with status READY for the task in a payload.

    Raises: InvalidTaskError, if the task is not found.
    """
    try:
        path, args, kwargs = payload["task"], payload.get("args", []), payload.get("kwargs", {})
        enqueued_ms = payload.get("enqueued", scheduled_ms)
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidTaskError(f"the payload of job {id} is not that of a task: {error!r}") from error
    try:
        task = import_string(path)
    except ImportError as error:
        raise InvalidTaskError(
            f"{path} is not a task that this process finds ({error}). If it was renamed, keep the old name until its "
            f"jobs have run; if this process runs older code, update it. Then replay job {id}"
        ) from error
    if not isinstance(task, Task):
        raise InvalidTaskError(f"{path} is not a task: decorate it with @task, then replay job {id}")
    own = task.using(queue_name=queue, backend=backend)
    enqueued = from_ms(enqueued_ms) if enqueued_ms else None
    return new_result(own, f"{queue}{SEPARATOR}{id}", args, kwargs, backend, enqueued)


def change(result: TaskResult, **values: Any) -> None:
    """Set fields of a result, which is frozen for its users."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
