"""Run by test_django with the Python that has Django: calls one function of this file and prints its answer as JSON."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import django

sys.path.insert(0, os.path.dirname(__file__))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import transaction  # noqa: E402
from django.utils import timezone  # noqa: E402
from project.shop import tasks  # noqa: E402

from wheelq.contrib.django.tasks import (  # noqa: E402
    InvalidTaskError,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)

TaskException = InvalidTaskError.__mro__[1]


def told(result):
    """A result as JSON has it."""
    return {
        "id": result.id,
        "status": str(result.status),
        "args": result.args,
        "kwargs": result.kwargs,
        "attempts": result.attempts,
        "value": result.return_value if str(result.status) == "SUCCESSFUL" else None,
        "errors": [[error.exception_class_path, error.traceback] for error in result.errors],
        "times": [moment is not None for moment in (result.enqueued_at, result.started_at, result.finished_at)],
    }


def enqueue(name, *args, **kwargs):
    heard = []

    def hear(sender, task_result, **_):
        heard.append(task_result.id)

    task_enqueued.connect(hear)
    result = getattr(tasks, name).enqueue(*args, **kwargs)
    return {**told(result), "heard": heard}


def enqueue_later(name, seconds, *args):
    task = getattr(tasks, name).using(run_after=timezone.now() + timedelta(seconds=seconds))
    return told(task.enqueue(*args))


def enqueue_in(backend, queue, name, *args):
    return told(getattr(tasks, name).using(backend=backend, queue_name=queue).enqueue(*args))


def enqueue_async(name, *args):
    import asyncio

    async def ask():
        return told(await getattr(tasks, name).aenqueue(*args))

    return asyncio.run(ask())


def ends():
    """The value, the attempts and the signals of tasks that end in several ways; the last has one attempt."""
    retry_until = tasks.retry_until
    ids = [retry_until.enqueue(*args).id for args in ((3, "uncounted"), (12, "counted"), (13, "counted"), (1, "bury"))]
    payload = {"task": retry_until.module_path, "args": [2, "counted"]}
    ids.append(f"patient:{retry_until.get_backend().client.schedule('patient', payload, delay=0, attempts=1).id}")
    done = [wait("retry_until", id) for id in ids]
    return [[one["value"], one["attempts"], *tasks.finished_signals(one["id"])] for one in done]


def look(name, id):
    return told(getattr(tasks, name).get_result(id))


def wait(name, id):
    """The result once it is finished, or after a minute."""
    deadline = time.monotonic() + 60
    while True:
        result = getattr(tasks, name).get_result(id)
        if result.is_finished or time.monotonic() > deadline:
            return told(result)
        time.sleep(0.02)


def in_transaction(how):
    """Enqueue in a transaction that commits, or does not; what can be looked up inside it and after it."""

    class Undo(Exception):
        pass

    inside = None
    try:
        with transaction.atomic():
            result = tasks.announce.enqueue(how)
            inside = exists(result)
            if how == "rollback":
                raise Undo
    except Undo:
        pass
    return {"inside": inside, "after": exists(result)}


def refused_in_transaction():
    """Enqueue, in a transaction, what no job can hold; what is said before the commit."""
    with transaction.atomic():
        try:
            tasks.announce.enqueue("long" * 1_000_000)
        except ValueError as error:
            return str(error)


def enqueue_renamed():
    """Enqueue a task whose function has another name since."""
    backend = task_backends["default"]
    payload = {"task": "project.shop.tasks.remind_by_post", "args": [], "kwargs": {}, "enqueued": 1763000000000}
    return backend.client.schedule("default", payload, delay=0).id


def recur():
    """Schedule what an occurrence of a recurring job is: its payload names a task. Returns the id of its result."""
    payload = {"task": "project.shop.tasks.add", "args": [5]}
    job = task_backends["default"].client.schedule("default", payload, delay=0, key="nightly@2030-01-01T01:00:00Z")
    return f"default:{job.id}"


def buried():
    """The errors of the tasks that are buried."""
    return [job.error for job in task_backends["default"].client.dead.list("default").jobs]


def exists(result):
    try:
        tasks.announce.get_result(result.id)
    except TaskResultDoesNotExist:
        return False
    return True


def refusals():
    """The name of the error for each thing that cannot be done."""
    return [
        refusal(lambda: tasks.add.using(priority=5)),
        refusal(lambda: tasks.add.using(queue_name="nowhere")),
        refusal(lambda: tasks.add.using(backend="any", queue_name="no spaces")),
        refusal(lambda: tasks.add.enqueue(object())),
        refusal(lambda: tasks.add.get_result("nonsense")),
        refusal(lambda: tasks.add.get_result("default:unknown")),
        refusal(lambda: tasks.add.get_result("no spaces:unknown")),
        refusal(lambda: tasks.add.get_result("default:" + "x" * 300)),
        refusal(lambda: tasks.send.get_result(tasks.add.enqueue(1).id)),
        refusal(lambda: type(task_backends["default"])("x", {"OPTIONS": {"max_attempt": 3}})),
        refusal(lambda: type(task_backends["default"])("x", {"OPTIONS": {"max_attempts": 0}})),
        refusal(lambda: type(task_backends["default"])("x", {"OPTIONS": {"keep_results": "a day"}})),
        refusal(lambda: type(task_backends["default"])("x", {"QUEUES": ["no spaces"]})),
        refusal(lambda: type(task_backends["default"])("x", {"OPTIONS": {"outbox": 1}})),
        refusal(lambda: type(task_backends["default"])("x", {"OPTIONS": {"on_commit": "no"}})),
    ]


def refusal(call):
    """The name of the error, as Django 6 calls it, and what it says."""
    try:
        call()
    except (TaskException, ImproperlyConfigured, TypeError) as error:
        name = "InvalidTask" if isinstance(error, InvalidTaskError) else type(error).__name__
        return [name, str(error)]
    return ["nothing", ""]


def enqueue_to_a_path(path):
    """Enqueue while Redis is away, with an outbox that is named by a Path."""
    options = {"OPTIONS": {"outbox": Path(path), "url": "redis://127.0.0.1:1"}}
    backend = type(task_backends["default"])("x", options)
    backend.enqueue(tasks.add, [2, 3], {})
    return os.path.exists(path)


def migrate():
    call_command("migrate", run_syncdb=True, verbosity=0)


if __name__ == "__main__":
    name, *rest = json.loads(sys.argv[1])
    print(json.dumps(globals()[name](*rest)))
