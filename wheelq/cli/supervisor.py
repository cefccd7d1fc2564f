"""Keeps parts running: starts them in order, starts again what ended, stops them in reverse order.

    groups:   server  →  scheduler  →  worker, worker …        started left to right, stopped right to left

Who ends by itself is started again after a pause that doubles from 0.1 s to 10 s, and is short again after ten quiet
seconds. Exit code 2 is the exception: it says that the command as given cannot work, so everything is stopped.
The first SIGINT or SIGTERM stops in good order, the second at once. Children are in sessions of their own, so that
Ctrl-C in a terminal reaches only the supervisor and the order is kept; they die with it by the lifeline.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TypeVar

from wheelq.cli.lifeline import GRACE_S
from wheelq.clock import Clock, SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import ConfigurationError

logger = logging.getLogger("wheelq.supervisor")

UNUSABLE = 2
LOOK_S = 0.05
FIRST_PAUSE_S, LONGEST_PAUSE_S, QUIET_S = 0.1, 10.0, 10.0


class Part(Protocol):
    """Something that runs."""

    name: str

    def start(self) -> None:
        """Start it, also again. Raises: ConfigurationError."""
        ...

    def poll(self) -> int | None:
        """None while it runs, then its exit code."""
        ...

    def ask_to_stop(self) -> None:
        """Let it begin to stop in good order. Called once: asking twice means at once."""
        ...

    def finish(self) -> None:
        """Return when it has ended."""
        ...

    def kill(self) -> None:
        """End it now."""
        ...


class ServerPart:
    """The embedded server."""

    name = "server"

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    def start(self) -> None:
        self._server.start()

    def poll(self) -> int | None:
        return self._server.poll()

    def ask_to_stop(self) -> None:
        """Nothing yet: `finish` asks and waits."""

    def finish(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        self._server.kill()


class CommandPart:
    """A wheelq command in a process of its own, on a lifeline."""

    def __init__(self, name: str, arguments: Sequence[str], lifeline: int) -> None:
        self.name = name
        self._arguments = [sys.executable, "-m", "wheelq", *arguments, "--lifeline", str(lifeline)]
        self._lifeline = lifeline
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._arguments, stdin=subprocess.DEVNULL, pass_fds=(self._lifeline,), start_new_session=True
        )

    @property
    def pid(self) -> int:
        """Of the process started last."""
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


C = TypeVar("C", bound=CommandPart)


def worker_parts(target: str, processes: int, options: Sequence[str], line: int, kind: type[C]) -> list[C]:
    """So many worker processes of MODULE:NAME, on the lifeline `line`."""
    names = ["worker"] if processes == 1 else [f"worker {number}" for number in range(1, processes + 1)]
    return [kind(name, ["worker", target, *options], line) for name in names]


@contextmanager
def lifeline() -> Iterator[int]:
    """The reading end for children to hold; the writing end is this process's alone."""
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
        """Start everything, call `started`, and keep it running until a signal comes; the exit code.

        Raises: ConfigurationError when a part cannot be started; what had been started is stopped.
        """
        handlers = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
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
        if self._is_stopping:
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
    """One part's ends and restarts."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._in_a_row = 0
        self._ended_at: float | None = None
        self._started_at = 0.0

    def step(self, now: float) -> int | None:
        """Notice an end; start again once the pause is over. The exit code of an end noticed now."""
        if self._ended_at is None:
            code = self._part.poll()
            if code is None:
                return None
            self._in_a_row = 1 if now - self._started_at > QUIET_S else self._in_a_row + 1
            self._ended_at = now
            if code != UNUSABLE:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                logger.warning("%s %s; it is started again in %.1f s", self._part.name, how, self._pause_s)
            return code
        if now - self._ended_at >= self._pause_s:
            self._ended_at, self._started_at = None, now
            try:
                self._part.start()
                logger.info("%s runs again", self._part.name)
            except ConfigurationError as error:
                logger.warning("%s: %s", self._part.name, error)
        return None

    @property
    def _pause_s(self) -> float:
        return float(min(FIRST_PAUSE_S * 2 ** (self._in_a_row - 1), LONGEST_PAUSE_S))
