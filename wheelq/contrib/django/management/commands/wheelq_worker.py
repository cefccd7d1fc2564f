"""manage.py wheelq_worker: runs tasks until SIGINT or SIGTERM; running tasks may then finish."""

from __future__ import annotations

import asyncio
import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from wheelq.contrib.django.backend import WheelqBackend
from wheelq.contrib.django.running import make_worker
from wheelq.contrib.django.tasks import task_backends
from wheelq.errors import WheelqError
from wheelq.scheduler import Scheduler


class Command(BaseCommand):
    """Runs the tasks of a wheelq backend."""

    help = "Runs the tasks of a wheelq backend until SIGINT or SIGTERM; running tasks may then finish."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options of the command."""
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
        if unknown := set(queues) - backend.queues:
            raise CommandError(f"--queue {', '.join(sorted(unknown))}: TASKS[{name!r}] has {sorted(backend.queues)}")
        if options["concurrency"] is not None and options["concurrency"] < 1:
            raise CommandError("--concurrency: must be at least 1")
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
