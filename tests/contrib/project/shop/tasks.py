"""Tasks of the project. Each leaves a line in the file that TEST_LOG names."""

import os
import time

from asgiref.sync import sync_to_async
from django.db import connection
from django.dispatch import receiver

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task

from wheelq import Bury, RetryAfter
from wheelq.contrib.django.tasks import task_finished


def note(*words):
    with open(os.environ["TEST_LOG"], "a") as log:
        print(*words, file=log)


@receiver(task_finished)
def note_end(task_result, **_):
    """Leave a line for each signal in a file of their own: the id, the status and the last error's class."""
    paths = [error.exception_class_path for error in task_result.errors]
    with open(os.environ["TEST_LOG"] + ".finished", "a") as log:
        print(task_result.id, task_result.status, *paths, file=log)


def finished_signals(id):
    """The status and the classes of errors that each signal about a task told."""
    with open(os.environ["TEST_LOG"] + ".finished") as log:
        return [rest for its_id, _, rest in (line.strip().partition(" ") for line in log) if its_id == id]


class Stock:
    class Empty(Exception):
        pass


@task
def add(a, b=1):
    note("add", a, b)
    return a + b


@task(queue_name="mail")
async def send(to):
    note("send", to)
    return {"to": to}


@task
def fail():
    raise ValueError("no such customer")


@task
def fail_as(how):
    if how == "lines":
        raise LookupError("no such row\nDETAIL: Key (id)=(1)\n\nHINT: add it")
    if how == "note":
        error = LookupError("no such row")
        error.add_note("while handling order 7")
        raise error
    if how == "nested":
        raise Stock.Empty
    if how == "group":
        raise ExceptionGroup("several", [KeyError("a"), ValueError("b")])
    if how == "local":
        raise type("<local>", (Exception,), {})("gone")
    raise RetryAfter(0, "account is locked", counts=True)


@task
def leave():
    raise SystemExit("the task leaves")


@task
def complex_exception():
    raise ValueError(ValueError("This task failed"))


@task(backend="patient", queue_name="patient")
def fail_twice():
    note("try")
    with open(os.environ["TEST_LOG"]) as log:
        tries = sum(line == "try\n" for line in log)
    if tries < 3:
        raise OSError(f"try {tries}")
    return tries


@task(backend="patient", queue_name="patient", takes_context=True)
def retry_until(context, last, how):
    """Ask for another run until this attempt, or this number of runs; or give up."""
    id = context.task_result.id
    note("run", id)
    with open(os.environ["TEST_LOG"]) as log:
        runs = sum(line == f"run {id}\n" for line in log)
    if how == "bury":
        raise Bury("no such customer")
    if (runs if how == "uncounted" else context.attempt) < last:
        raise RetryAfter(0, "not yet", counts=how == "counted")
    return context.attempt


@task(takes_context=True)
def look(context):
    return [context.task_result.id, context.attempt]


@task
def lasting(number):
    note("began", number)
    time.sleep(0.3)
    note("ended", number)


@task
def unserialisable():
    return object()


@task
def repeat(text, times):
    return text * times


@task
def use_database():
    from project.shop.models import Order

    note("reused" if connection.connection is not None else "fresh")
    return Order.objects.count()


@task
async def use_database_from_async():
    from project.shop.models import Order

    before = await sync_to_async(lambda: connection.connection)()
    note("reused" if before is not None else "fresh")
    return await Order.objects.acount()


@task(backend="careful", queue_name="careful")
def announce(name):
    note("announce", name)
