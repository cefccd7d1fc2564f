"""One queue on a server of its own: its processes, and the log in which its handlers write.

    with Play.of(peer, binary) as play:
        play.work()                                         the worker runs (and what the queue needs besides it)
        seconds, due_ms = play.produce(0, 3_500, 2_000, 0)  jobs 0 to 3,499 are scheduled, due in 2 seconds
        play.wait(3_500, 60)                                they have started

Every process writes and reads this machine's clock, so no clocks are compared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from loadtest.compare.peers import Peer
from loadtest.servers.nodes import free_port
from wheelq.embedded import EmbeddedServer

LOOK_S = 0.02
STOP_S = 30.0


class Play:
    """Gives a queue its work, and reads what its handlers wrote."""

    def __init__(self, peer: Peer, server: EmbeddedServer, directory: Path, running: ExitStack) -> None:
        self._peer, self._url, self._log = peer, server.url, directory / "log"
        self._running = running
        self._pids = [server.pid]
        self._workers: list[subprocess.Popen[bytes]] = []
        self._read = 0
        self.starts: dict[int, list[float]] = {}
        """By job: when its handlers started, in milliseconds since the Unix epoch; several if the job ran again."""
        self.ends: dict[int, float] = {}
        """By job: when its handler ended for the last time, if handlers sleep."""

    @classmethod
    @contextmanager
    def of(cls, peer: Peer, binary: Path) -> Iterator[Self]:
        """A private server, without append-only file; it and all processes end with the block."""
        with ExitStack() as running:
            directory = Path(running.enter_context(TemporaryDirectory(prefix="wheelq-compare-")))
            server = EmbeddedServer(binary=binary, port=free_port(), appendonly=False)
            yield cls(peer, running.enter_context(server), directory, running)

    def produce(self, first: int, count: int, ahead_ms: int, every_ms: float) -> tuple[float, int]:
        """Schedule jobs with the numbers from `first` on, each due `every_ms` after the other.

        Returns the seconds that it took, and when the first is due, `ahead_ms` after it began.
        """
        arguments = map(str, ("produce", self._url, first, count, ahead_ms, every_ms))
        done = subprocess.run(
            [*self._peer.command, *arguments], cwd=self._peer.directory, stdout=subprocess.PIPE, check=True
        )
        seconds, due_ms = done.stdout.split()
        return float(seconds), int(due_ms)

    def work(self, seconds: float = 0) -> None:
        """Start a worker whose handler takes `seconds`. The first call also starts the queue's other processes."""
        if not self._workers:
            for role in self._peer.before:
                self._start(role, self._url)
        self._workers.append(self._start("work", self._url, str(self._log), str(seconds)))

    def processor_s(self) -> float:
        """Seconds of processor time so far: of the server and of the queue's processes, but not of producers."""
        return sum(map(_processor_s, self._pids))

    def kill(self) -> float:
        """End the last worker by SIGKILL; returns the time of it, in milliseconds since the Unix epoch."""
        self._workers[-1].kill()
        self._workers[-1].wait()
        return now_ms()

    def wait(self, starts: int, timeout_s: float) -> bool:
        """Wait until the handlers of `starts` jobs have started; False if that takes longer than `timeout_s`."""
        return self._until(lambda: len(self.starts) >= starts, timeout_s)

    def wait_for_ends(self, ends: int, timeout_s: float) -> bool:
        """Wait until the handlers of `ends` jobs have ended; False if that takes longer than `timeout_s`."""
        return self._until(lambda: len(self.ends) >= ends, timeout_s)

    def _until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        give_up = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > give_up:
                return False
            for process in self._workers[-1:]:
                if process.poll() is not None:
                    raise RuntimeError(f"the worker of {self._peer.name} ended by itself: see what it printed")
            time.sleep(LOOK_S)
            self.look()
        return True

    def look(self) -> None:
        """Read what the handlers have written since the last look."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            what, number, at_ms = line.split()
            if what == b"start":
                self.starts.setdefault(int(number), []).append(float(at_ms))
            else:
                self.ends[int(number)] = float(at_ms)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*self._peer.command, *arguments], cwd=self._peer.directory, env=_environment())
        self._running.callback(_end, process)
        self._pids.append(process.pid)
        return process


def now_ms() -> float:
    """This machine's milliseconds since the Unix epoch."""
    return time.time() * 1000


def _processor_s(pid: int) -> float:
    """Returns the processor time of a process: that of its threads and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _environment() -> dict[str, str]:
    """This process's environment without wheelq's settings: every queue runs with its defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ_")}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
