"""Tasks of the project. Each leaves a line in the file that TEST_LOG names."""

import os
import time

from asgiref.sync import sync_to_async
from django.db import connection

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task


def note(*words):
    with open(os.environ["TEST_LOG"], "a") as log:
        print(*words, file=log)


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
