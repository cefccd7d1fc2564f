"""scheduler, worker, up: what runs until it is told to stop.

The first SIGINT or SIGTERM stops in good order, the second at once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from wheelq import logs
from wheelq.cli.lifeline import hold
from wheelq.cli.options import Config, LogFormat, LogLevel, Url, settings_of
from wheelq.cli.output import say
from wheelq.cli.reload import run_reloading
from wheelq.cli.supervisor import CommandPart, Part, ServerPart, Supervisor, lifeline, worker_parts
from wheelq.cli.target import load_worker
from wheelq.clock import SystemClock
from wheelq.diagnosis import Level, diagnose_server
from wheelq.embedded import EmbeddedServer
from wheelq.errors import InvalidInput
from wheelq.inspector import Inspector
from wheelq.patience import until_usable
from wheelq.scheduler import Scheduler
from wheelq.settings import resolve_url
from wheelq.words import counted

logger = logging.getLogger("wheelq")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
YOUNG_OBJECTS = 10_000  # after as many new ones the collector looks at them; Python says 700 or 2,000
UP_PORT = 7379  # not 6379, where a Redis of the machine's own may listen
UP_DATA = Path("wheelq-data")

Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="A Worker, or a function that makes one, in a module.")
]
Processes = Annotated[int, typer.Option("--processes", "-p", min=1, help="How many worker processes to run.")]
Reload = Annotated[
    bool, typer.Option("--reload", help="Start anew when a Python file below this directory changes; needs watchfiles.")
]
Grace = Annotated[float | None, typer.Option("--grace", hidden=True)]
Lifeline = Annotated[int | None, typer.Option("--lifeline", hidden=True)]


def scheduler(
    url: Url = None,
    config: Config = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    lifeline: Lifeline = None,
) -> None:
    """Run a scheduler node until SIGINT or SIGTERM. Start as many as you like: each shard has one leader.

    A server that is away, or loads its data, is waited for.
    """
    hold(lifeline)
    log_to_stderr(log_level, log_format)
    settings = settings_of(config)
    node, stopping = Scheduler.connect(url, settings), asyncio.Event()

    async def look_and_run() -> None:
        with Inspector.connect(url, settings) as inspector:
            look = partial(asyncio.to_thread, _warn_of_problems, inspector)
            if not await until_usable(look, stopping, SystemClock(), logger, patiently=True):
                return
        logger.info("scheduler %s runs on %s", node.node, inspector.shown)
        await node.run(patiently=True)

    def stop() -> None:
        stopping.set()
        node.stop()

    run_until_signal(look_and_run, stop)
    logger.info("scheduler %s has stopped; it promoted %s", node.node, counted(node.promoted, "job"))


def worker(
    target: Target,
    processes: Processes = 1,
    url: Url = None,
    config: Config = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    reload: Reload = False,
    grace: Grace = None,
    lifeline: Lifeline = None,
) -> None:
    """Run a worker until SIGINT or SIGTERM, when running handlers may finish. A server that is away is waited for.

    MODULE:NAME is a Worker, such as shop.jobs:worker, or a function without arguments that makes one; modules are
    looked for in the current directory too. --url (or WHEELQ_URL, or url in --config) is what Worker.connect() without
    a URL uses. With -p N that many processes run, and one that crashes is started again. --reload is for development.
    """
    hold(lifeline)
    log_to_stderr(log_level, log_format)
    settings = settings_of(config)
    if url or settings.url:
        os.environ["WHEELQ_URL"] = resolve_url(url, settings)  # before the module is imported: it connects there
    options = ["--log-level", log_level, "--log-format", log_format]
    if reload:
        raise typer.Exit(run_reloading(target, processes, options))
    if processes > 1:
        raise typer.Exit(_run_processes(target, processes, options))
    found = load_worker(target)

    async def run() -> None:  # told once signals are heard: who reads it may send one
        logger.info("worker %s runs, group %s, topics %s", found.name, found.group, ", ".join(found.topics) or "none")
        await found.run(patiently=True)

    run_until_signal(run, lambda: found.stop(grace))
    done, failed = counted(found.handled, "job"), counted(found.failed, "run")
    logger.info("worker %s has stopped; %s done, %s failed", found.name, done, failed)


def up(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:NAME]", help="The worker to run; none if not given.")
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="Where the server keeps its data.")] = UP_DATA,
    port: Annotated[int, typer.Option("--port", help="Where the server listens, on this machine only.")] = UP_PORT,
    processes: Processes = 1,
    config: Config = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Run everything: a server of its own, a scheduler and a worker, each in a process. Needs no Redis.

    What crashes is started again. SIGINT or SIGTERM stops the worker, then the scheduler, then the server; the data
    stays in --data.
    """
    log_to_stderr(log_level, log_format)
    server = EmbeddedServer(data, port=port)
    url = server.start().url
    os.environ["WHEELQ_URL"] = url
    options = ["--url", url, "--log-level", log_level, "--log-format", log_format]
    options += ["--config", str(config)] if config else []
    with lifeline() as line:
        scheduling = CommandPart("scheduler", ["scheduler", *options], line)
        working = worker_parts(target, processes, options, line, CommandPart) if target else []
        groups: list[list[Part]] = [[ServerPart(server)], [scheduling], [*working]]

        def started() -> None:
            say(f"server     {url}, process {server.pid}, data in {data}")
            say(f"scheduler  process {scheduling.pid}")
            for part in working:
                say(f"worker     process {part.pid}, {target}")
            if not working:
                say("worker     none: wheelq up MODULE:NAME runs one")
            say(f"export WHEELQ_URL={url}")

        raise typer.Exit(Supervisor(groups).run(started))


def _run_processes(target: str, processes: int, options: list[str]) -> int:
    with lifeline() as line:
        parts: list[Part] = [*worker_parts(target, processes, options, line, CommandPart)]
        return Supervisor([parts]).run(
            lambda: logger.info("%s %s", counted(processes, "worker process runs", "worker processes run"), target)
        )


def log_to_stderr(level: str, format: str) -> None:
    known = logging.getLevelNamesMapping()
    if level.upper() not in known:
        raise InvalidInput("log-level", f"{level!r} must be debug, info, warning or error")
    if format not in ("text", "json"):
        raise InvalidInput("log-format", f"{format!r} must be text or json")
    logs.set_up(known[level.upper()], format)


def _warn_of_problems(inspector: Inspector) -> None:
    """Log what makes the server unfit to keep jobs. Raises: ServerError."""
    for finding in diagnose_server(inspector.server_facts()):
        if finding.level is Level.PROBLEM:
            logger.warning("%s. %s", finding.title, finding.explanation)


def run_until_signal(run: Callable[[], Coroutine[Any, Any, None]], stop: Callable[[], None]) -> None:
    """Run it on an event loop, with uvloop where that is installed, until it ends or a signal says so."""

    def hear(number: signal.Signals) -> None:
        logger.info("%s: stopping; once more stops at once", number.name)
        loop = asyncio.get_running_loop()
        for each in STOP_SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        stop()

    async def listen_and_run() -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, hear, number)
        _spare_the_collector()
        await run()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(listen_and_run())


def _spare_the_collector() -> None:
    """What was loaded so far is here to stay, and jobs and requests leave few cycles: do not look for them so often.

    Looking takes a quarter of the processor time of a busy HTTP server otherwise.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    import uvloop  # the extra `fast`

    return uvloop.new_event_loop
