"""Keeps parts running: starts them in order, restarts parts that end, and stops them in reverse order.

    groups:   server  →  scheduler  →  worker, worker …        started left to right, stopped right to left

A part that ends by itself is restarted after a pause, which doubles from 0.1 s to 10 s and is short again after ten
quiet seconds. Exit code 2 is the exception: it means that the command as given cannot work, so everything is stopped.
That applies to a part's first process only: if a password is wrong for a while later, nothing is stopped.

The first SIGINT or SIGTERM stops everything in order, the second at once. Children have their own sessions, so that
Ctrl-C in a terminal reaches only the supervisor, which keeps the order.

The lifeline ends the children if the supervisor dies, even by kill -9:

    supervisor ── holds the only writing end ──▶ pipe ──▶ reading end, in every child

Nothing is ever written. When the supervisor dies, its end closes and every child reads end of file. (The embedded
server has a similar guard; `embedded` explains why it is a pipe and not PR_SET_PDEATHSIG.)
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from wheelq.base.clock import Clock, SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import ConfigurationError

logger = logging.getLogger("wheelq.supervisor")

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Each asks for a clean stop; the last one comes when the terminal is closed."""
UNUSABLE = 2
LOOK_S = 0.05
GRACE_S = 60.0
"""Seconds that a process may take to stop cleanly before it is killed; above any sensible `grace_ms`."""
RELOAD = signal.SIGUSR1
"""Asks a worker process to end soon because its code has changed."""
RELOAD_GRACE_S = 0.5
"""Seconds that running handlers have to finish after a change of the code."""
HANDED_BACK_S = 5.0
"""Seconds within which a stopped worker has handed its jobs back."""
WATCH_MS = 500
"""Milliseconds after which a look for changes ends if it has found none."""
FIRST_PAUSE_S, LONGEST_PAUSE_S, QUIET_S = 0.1, 10.0, 10.0


class Part(Protocol):
    """Something that runs."""

    name: str

    def start(self) -> object:
        """Start or restart it. Raises: ConfigurationError."""

    def poll(self) -> int | None:
        """Returns None while it runs, then its exit code."""

    def ask_to_stop(self) -> None:
        """Ask it to stop cleanly. Called once: a second request would stop it at once."""

    def finish(self) -> None:
        """Return when it has ended."""

    def kill(self) -> None:
        """End it now."""


class ServerPart(EmbeddedServer):
    """The embedded server."""

    name = "server"
    finish = EmbeddedServer.stop

    def ask_to_stop(self) -> None:
        """Does nothing: `finish` asks and waits."""


class CommandPart:
    """A wheelq command in a process of its own, on a lifeline."""

    def __init__(self, name: str, arguments: Sequence[str], lifeline: int, *, stdout: int | None = None) -> None:
        """`stdout` is a file descriptor for its output; None: this process's."""
        self.name = name
        own = ["--lifeline", str(lifeline), "--speaker", name]
        self._arguments = [sys.executable, "-m", "wheelq", *arguments, *own]
        self._lifeline = lifeline
        self._stdout = stdout
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            pass_fds=(self._lifeline,),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The id of the process started last."""
        assert self._process is not None, "not started"
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll() if self._process else 0

    def ask_to_stop(self) -> None:
        if self._process:
            self._process.terminate()

    def finish(self, patience_s: float = GRACE_S) -> None:
        if self._process:
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                logger.warning("%s did not stop within %.0f s and is killed", self.name, patience_s)
                self.kill()

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()


def worker_parts(
    target: str, options: Sequence[str], own: Sequence[Sequence[str]], line: int, *, reload: bool
) -> list[CommandPart]:
    """Returns worker processes of MODULE:NAME on the lifeline `line`, one for each of `own`, its own options."""
    kind = Reloaded if reload else CommandPart
    names = ["worker"] if len(own) == 1 else [f"worker {number}" for number in range(1, len(own) + 1)]
    return [kind(name, ["worker", target, *options, *more], line) for name, more in zip(names, own, strict=True)]


@contextmanager
def lifeline() -> Iterator[int]:
    """Yields the reading end of a pipe for children to hold; only this process has the writing end."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(writing)
        os.close(reading)


class Supervisor:
    """Runs groups of parts until it is told to stop."""

    def __init__(self, groups: Sequence[Sequence[Part]], clock: Clock | None = None) -> None:
        self._groups = groups
        self._clock = clock or SystemClock()
        self._crashes = [Crashes(part) for group in groups for part in group]
        self._is_stopping = False

    def run(self, started: Callable[[], None]) -> int:
        """Start everything, call `started`, and keep it running until a signal; returns the exit code.

        Raises: ConfigurationError if a part cannot be started; the others are stopped.
        """
        heard = [one for one in STOPS if signal.getsignal(one) is not signal.SIG_IGN]  # as nohup has SIGHUP ignored
        handlers = {number: signal.signal(number, self._hear) for number in heard}
        try:
            for group in self._groups:
                for part in group:
                    part.start()
            started()
            code = self._watch()
            self._stop()
        except BaseException as reason:
            self._kill()
            if not isinstance(reason, KeyboardInterrupt):
                raise
            code = 128 + signal.SIGINT
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return code

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._is_stopping and number != signal.SIGHUP:  # that often comes twice, from the kernel and from the shell
            raise KeyboardInterrupt
        self._is_stopping = True

    def _watch(self) -> int:
        while not self._is_stopping:
            for crashes in self._crashes:
                if crashes.step(self._clock.monotonic()) == UNUSABLE:
                    return UNUSABLE
            time.sleep(LOOK_S)  # a signal does not cut it short, but is heard
        return 0

    def _stop(self) -> None:
        self._is_stopping = True
        for group in reversed(self._groups):
            for part in group:
                part.ask_to_stop()
            for part in group:
                part.finish()

    def _kill(self) -> None:
        for group in reversed(self._groups):
            for part in group:
                part.kill()


class Crashes:
    """Notices when a part ends, and restarts it."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._in_a_row = 0
        self._ended_at: float | None = None
        self._started_at = 0.0
        self._has_restarted = False

    def step(self, now: float) -> int | None:
        """Notice an end, or restart the part after its pause; returns the exit code of an end noticed now."""
        if self._ended_at is None:
            code = self._part.poll()
            if code is None:
                return None
            self._in_a_row = 1 if now - self._started_at > QUIET_S else self._in_a_row + 1
            self._ended_at = now
            if code != UNUSABLE or self._has_restarted:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                logger.warning("%s %s; it is started again in %.1f s", self._part.name, how, self._pause_s)
            return None if self._has_restarted else code
        if now - self._ended_at >= self._pause_s:
            self._ended_at, self._started_at, self._has_restarted = None, now, True
            try:
                self._part.start()
                logger.info("%s runs again", self._part.name)
            except ConfigurationError as error:
                logger.warning("%s: %s", self._part.name, error)
        return None

    @property
    def _pause_s(self) -> float:
        return float(min(FIRST_PAUSE_S * 2 ** min(self._in_a_row - 1, 20), LONGEST_PAUSE_S))


def hold(fd: int | None) -> None:
    """Stop this process cleanly when the writing end of the pipe `fd` is closed.

    A thread waits for it, because a handler may block the event loop.
    """
    if fd is not None:
        os.set_inheritable(fd, False)  # processes that a handler starts live independently
        threading.Thread(target=_wait, args=(fd,), name="wheelq lifeline", daemon=True).start()


def _wait(fd: int) -> None:
    os.read(fd, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


class Reloaded(CommandPart):
    """A worker process that restarts after `change()`, for `--reload`.

    Then a worker gives its handlers half a second and hands unfinished jobs back, so that the new worker runs them at
    once; when it is stopped, it gives them `grace_ms`, like any other. A plain handler cannot be cancelled: its process
    is killed after its jobs are handed back. If a module cannot be imported, its worker waits for the next change.
    """

    def __init__(self, name: str, arguments: Sequence[str], lifeline: int) -> None:
        super().__init__(name, arguments, lifeline)
        self._changed = threading.Event()

    def change(self) -> None:
        """Restart the worker because its code has changed. For any thread."""
        self._changed.set()

    def poll(self) -> int | None:
        if self._changed.is_set():
            self._changed.clear()
            if super().poll() is None:
                os.kill(self.pid, RELOAD)
                self.finish(HANDED_BACK_S)
            self.start()
        code = super().poll()
        return None if code == UNUSABLE else code  # it has logged what is wrong with the module: wait for a change


@contextmanager
def restarting_on_change(parts: Sequence[Part]) -> Iterator[None]:
    """Restart the workers within this context when a Python file below the current directory changes.

    Raises: ConfigurationError without watchfiles."""
    watched = [part for part in parts if isinstance(part, Reloaded)]
    if not watched:
        yield
        return
    try:
        import watchfiles
    except ImportError as error:
        raise ConfigurationError("--reload needs watchfiles: pip install 'wheelq[reload]'") from error
    here = Path.cwd()
    stop = threading.Event()

    def watch() -> None:
        looks = watchfiles.watch(
            here, watch_filter=watchfiles.PythonFilter(), stop_event=stop, rust_timeout=WATCH_MS, yield_on_timeout=True
        )
        for number, changes in enumerate(looks):
            if number == 0:  # from now on no change is missed
                logger.info("watching %s", here)
            if not changes:
                continue
            names = sorted({str(Path(path).relative_to(here)) for _, path in changes})
            logger.info("%s changed: the worker restarts", ", ".join(names))
            for part in watched:
                part.change()

    watching = threading.Thread(target=watch, name="wheelq reload", daemon=True)
    watching.start()
    try:
        yield
    finally:
        stop.set()
        watching.join(1.0)
