"""scheduler, worker: commands that run until a signal.

The first SIGINT or SIGTERM stops them cleanly, the second at once. Errors in the module of MODULE:NAME are explained in
terms of that module.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import logging
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wheelq import logs
from wheelq.base.clock import SystemClock
from wheelq.base.plural import counted
from wheelq.cli.monitoring import LOOPBACK, MetricsHost, MetricsPort, monitored
from wheelq.cli.options import Config, LogFormat, LogLevel, Url
from wheelq.cli.supervisor import (
    RELOAD,
    RELOAD_GRACE_S,
    CommandPart,
    Supervisor,
    hold,
    lifeline,
    restarting_on_change,
    worker_parts,
)
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.settings import LOG_FORMATS, LOG_LEVELS, Settings, resolve_url, settings_in_force
from wheelq.settings.environment import CONFIG, variable_of
from wheelq.transport.startup import StartupPolicy, until_usable
from wheelq.worker import Worker

if TYPE_CHECKING:
    from wheelq.admin import Inspector

logger = logging.getLogger("wheelq")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOWN_FRAMES = 3
_NOT_THEIRS = ("<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
YOUNG_OBJECTS = 10_000  # new objects between two runs of the garbage collector; Python's default is 700 or 2,000

Target = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="A Worker, or a function that makes one, in a module.")
]
Processes = Annotated[
    int, typer.Option("--processes", "-p", min=1, max=1_000, help="How many worker processes to run.")
]
Reload = Annotated[
    bool, typer.Option("--reload", help="Restart when a Python file below this directory changes; needs watchfiles.")
]
WithScheduler = Annotated[
    bool, typer.Option("--with-scheduler", help="Run a scheduler, too, in a process beside the workers.")
]
WithCourier = Annotated[
    str | None,
    typer.Option("--courier", help="Run a courier, too, for the outbox in this database (SQLAlchemy's URL)."),
]
LogJobs = Annotated[bool, typer.Option("--log-jobs", help="Log a line for every job: attempt, lateness, duration.")]


@dataclass(frozen=True)
class Logged:
    """The options of processes about settings, logs and metrics."""

    config: Config = None
    log_level: LogLevel = None
    log_format: LogFormat = None
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = LOOPBACK

    def log_to_stderr(self, speaker: str | None) -> Settings:
        """Set up logging, with `speaker` before the lines of one process among several; returns the settings in force.

        Child processes, and Worker.connect() in a module, get the same by the environment. Raises: ConfigurationError.
        """
        settings = settings_in_force(self.config)
        level, format = (self.log_level or settings.log_level).lower(), self.log_format or settings.log_format
        if level not in LOG_LEVELS:
            raise InvalidInput("log-level", f"{level!r} must be debug, info, warning or error")
        if format not in LOG_FORMATS:
            raise InvalidInput("log-format", f"{format!r} must be text or json")
        logs.set_up(logging.getLevelNamesMapping()[level.upper()], format, speaker)
        given = {"log_level": self.log_level and level, "log_format": self.log_format}
        os.environ |= {variable_of("", name): value for name, value in given.items() if value}
        if self.config is not None:
            os.environ[CONFIG] = str(self.config.absolute())
        return settings

    def monitoring_options(self, number: int) -> list[str]:
        """Returns the options of the child process with this number, whose port is `metrics_port + number`."""
        if self.metrics_port is None:
            return []
        return ["--metrics-port", str(self.metrics_port + number), "--metrics-host", self.metrics_host]


@dataclass(frozen=True)
class Daemon(Logged):
    """The options of commands that run until a signal."""

    url: Url = None
    lifeline: Annotated[int | None, typer.Option("--lifeline", hidden=True)] = None
    speaker: Annotated[str | None, typer.Option("--speaker", hidden=True)] = None

    def begin(self) -> Settings:
        """Hold the lifeline and set up logging; returns the settings in force. Raises: ConfigurationError."""
        hold(self.lifeline)
        return self.log_to_stderr(self.speaker)

    def run(
        self,
        settings: Settings,
        run: Callable[[], Coroutine[Any, Any, None]],
        stop: Callable[[], None],
        reload: Callable[[], None] | None = None,
    ) -> None:
        """Run a coroutine on an event loop (uvloop if installed) until it ends or a signal stops it.

        `reload` stops it where its code has changed.

        Its health and metrics are answered at --metrics-port meanwhile.
        """

        def hear(number: signal.Signals) -> None:
            loop = asyncio.get_running_loop()
            for each in STOP_SIGNALS:
                loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL)
            logger.info("%s: stopping; a second signal stops at once", number.name)  # not earlier: it would not yet
            stop()

        async def listen_and_run() -> None:
            loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                loop.add_signal_handler(number, hear, number)
            if reload is not None:
                loop.add_signal_handler(RELOAD, reload)
            _spare_the_collector()
            async with monitored(self.metrics_port, self.metrics_host, self.url, settings):
                await run()

        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(listen_and_run())


def scheduler(daemon: Daemon, courier: WithCourier = None) -> None:
    """Run a scheduler node until SIGINT or SIGTERM. Start as many as you like: each shard has one leader.

    If the server is away or loading its data, the command waits for it. With --courier, the scheduler and the courier
    are two processes.
    """
    from wheelq.admin import Inspector  # a worker process needs neither, and starts sooner without
    from wheelq.scheduler import Scheduler

    settings = daemon.begin()
    if courier:
        if daemon.url or settings.url:
            os.environ["WHEELQ_URL"] = resolve_url(daemon.url, settings)
        with lifeline() as line:
            node_part = CommandPart("scheduler", ["scheduler", *daemon.monitoring_options(0)], line)
            parts = [[node_part], [*courier_parts(courier, line)]]
            raise typer.Exit(Supervisor(parts).run(lambda: logger.info("a scheduler and a courier run")))
    node, stopping = Scheduler.connect(daemon.url, settings), asyncio.Event()

    async def look_and_run() -> None:
        with Inspector.connect(daemon.url, settings) as inspector:
            look = partial(asyncio.to_thread, _warn_of_problems, inspector)
            if not await until_usable(look, stopping, SystemClock(), logger, StartupPolicy.OUTAGES):
                return
        logger.info("scheduler %s runs on %s", node.node, inspector.shown)
        await node.run(patiently=True)

    def stop() -> None:
        stopping.set()
        node.stop()

    daemon.run(settings, look_and_run, stop)
    logger.info("scheduler %s has stopped; it promoted %s", node.node, counted(node.promoted, "job"))


def worker(
    daemon: Daemon,
    target: Target,
    processes: Processes = 1,
    log_jobs: LogJobs = False,
    reload: Reload = False,
    with_scheduler: WithScheduler = False,
) -> None:
    """Run a worker until SIGINT or SIGTERM; running handlers may finish then. Waits for a server that is away.

    MODULE:NAME is a Worker, such as shop.jobs:worker, or a function without arguments that makes one; the current
    directory is searched too. Worker.connect() in the module uses --config and --url, unless the module passes others.
    With -p N it runs N processes, and restarts a process that crashes. --reload is for development. With
    --with-scheduler, one machine needs no separate `wheelq scheduler`.
    """
    settings = daemon.begin()
    if daemon.url or settings.url:  # before the module is imported: Worker.connect() reads it
        os.environ["WHEELQ_URL"] = resolve_url(daemon.url, settings)
    if log_jobs:
        os.environ[variable_of("worker", "log_jobs")] = "true"
        logging.getLogger("wheelq.jobs").setLevel(logging.DEBUG)  # for a worker with its own settings
    if reload or with_scheduler or processes > 1:
        monitoring = [daemon.monitoring_options(number) for number in range(processes + 1)]
        options = ["--log-jobs"] if log_jobs else []
        raise typer.Exit(_run_processes(target, options, monitoring, reload=reload, with_scheduler=with_scheduler))
    found = load_worker(target)

    async def run() -> None:  # logged once signals are handled, because a reader of the log may send one
        logger.info("worker %s runs, group %s, topics %s", found.name, found.group, ", ".join(found.topics) or "none")
        await found.run(patiently=True)

    daemon.run(settings, run, found.stop, lambda: found.stop(RELOAD_GRACE_S))
    done, failed = counted(found.handled, "job"), counted(found.failed, "run")
    logger.info("worker %s has stopped; %s done, %s failed", found.name, done, failed)


def _run_processes(
    target: str, options: list[str], monitoring: Sequence[Sequence[str]], *, reload: bool, with_scheduler: bool
) -> int:
    """`monitoring` has the separate options of each worker process, and last those of the scheduler."""
    with lifeline() as line:
        workers = worker_parts(target, options, monitoring[:-1], line, reload=reload)
        schedulers = [CommandPart("scheduler", ["scheduler", *monitoring[-1]], line)] if with_scheduler else []

        def started() -> None:
            logger.info("%s %s", counted(len(workers), "worker process runs", "worker processes run"), target)

        with restarting_on_change(workers):
            return Supervisor([[*schedulers], [*workers]]).run(started)


def courier_parts(database: str | None, line: int) -> list[CommandPart]:
    """Returns the courier's process, if there is a database, whose URL no list of processes shows."""
    if database is None:
        return []
    os.environ["WHEELQ_DATABASE"] = database
    return [CommandPart("courier", ["courier"], line)]


def needs_extra(command: str, *modules: str, extra: str = "server") -> None:
    """Raises: ConfigurationError, if a module that a command needs is not installed."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{command} needs {', '.join(missing)}: pip install 'wheelq[{extra}]'")


def _warn_of_problems(inspector: Inspector) -> None:
    """Log each problem of the server. Raises: ServerError."""
    from wheelq.admin.diagnosis import Level, diagnose_server

    for finding in diagnose_server(inspector.server_facts()):
        if finding.level is Level.PROBLEM:
            logger.warning("%s. %s", finding.title, finding.explanation)


def _spare_the_collector() -> None:
    """Make the garbage collector run less often: loaded modules stay, and jobs and requests leave few cycles.

    Otherwise it takes a quarter of the processor time of a busy HTTP server.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    import uvloop  # the extra `fast`

    return uvloop.new_event_loop


def load_worker(target: str) -> Worker:
    """Returns the worker named by `shop.jobs:worker`: a Worker, or a function without arguments that makes one.

    The current directory is searched first. Raises: InvalidInput, ConfigurationError.
    """
    module_name, colon, name = target.partition(":")
    if not module_name or not colon or not name.isidentifier():
        raise InvalidInput("MODULE:NAME", f"{target!r} must look like shop.jobs:worker")
    if "/" in module_name or module_name.endswith(".py"):  # a path, which the shell has completed
        meant = module_name.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise InvalidInput("MODULE:NAME", f"{target!r} names a file, not a module: did you mean {meant}:{name}?")
    module = _import(module_name)
    try:
        found = getattr(module, name)
    except AttributeError as error:
        workers = sorted(other for other, value in vars(module).items() if isinstance(value, Worker))
        has = f"it has {', '.join(workers)}" if workers else "it has no Worker at its top level"
        raise ConfigurationError(f"module {module_name} has no {name!r}; {has}") from error
    if not isinstance(found, Worker) and _is_factory(found):
        with _explained(target, "fails"):
            found = found()
    if not isinstance(found, Worker):
        raise ConfigurationError(
            f"{target} is a {type(found).__name__}, not a Worker: name one made with Worker.connect(), or a function "
            "without arguments that returns one"
        )
    return found


def _is_factory(found: Any) -> bool:
    """Whether it can be called without arguments."""
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        return False
    return True


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _explained(name, "does not import"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
            raise ConfigurationError(
                f"there is no module {error.name!r} in {here} or among the installed packages: run the command in the "
                "directory that holds it, or name that directory in PYTHONPATH"
            ) from error


@contextmanager
def _explained(name: str, what: str) -> Iterator[None]:
    """Raises: ConfigurationError, for any error of the user's code, with the last lines of its traceback there."""
    try:
        yield
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
        lines = traceback.format_list((theirs or frames[-1:])[-SHOWN_FRAMES:]) + traceback.format_exception_only(error)
        shown, remedy = "".join(lines).rstrip(), f"python -c 'import {name.partition(':')[0]}'"
        raise ConfigurationError(f"{name} {what}:\n{shown}\nFix this, and try it with: {remedy}") from error
