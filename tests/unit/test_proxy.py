"""The proxy of the torture test: passes bytes on, and does to them exactly what it is told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from loadtest.servers.proxy import Proxy
from tests.waiting import PATIENCE, eventually


class Echo:
    """A server that answers each line with the same in capitals, and remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.always = b""
        """What it answers to each line instead."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            try:
                for line in stream:
                    self.heard.append(line)
                    stream.write(self.always or line.upper())
                    stream.flush()
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()

    def has_heard(self, line: bytes) -> bool:
        return eventually(lambda: line in self.heard)


class Caller:
    """A client on one door."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("redis://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self._stream = self._socket.makefile("rb")

    def say(self, line: bytes) -> None:
        self._socket.sendall(line)

    def hear(self, timeout: float = PATIENCE) -> bytes | None:
        """A line; empty when the connection has ended; None when nothing came in time."""
        self._socket.settimeout(timeout)
        try:
            return self._stream.readline()
        except TimeoutError:
            self._stream = self._socket.makefile("rb")  # one that timed out cannot be read again
            return None
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def ask(self, line: bytes) -> bytes | None:
        self.say(line)
        return self.hear()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.url) as proxy:
        yield proxy


def test_bytes_go_both_ways(proxy: Proxy) -> None:
    """Without orders it is as if it were not there."""
    caller = Caller(proxy.url("a"))
    assert caller.ask(b"one\n") == b"ONE\n"
    assert caller.ask(b"x" * 300_000 + b"\n") == b"X" * 300_000 + b"\n"


def test_a_door_keeps_its_address(proxy: Proxy) -> None:
    """The same name is the same door; another name is another."""
    assert proxy.url("a") == proxy.url("a") != proxy.url("b")


def test_addresses_of_servers_are_replaced_by_those_of_the_parts_own_doors() -> None:
    """In the forms in which nodes of a cluster and sentinels tell them; other numbers stay as they are."""
    first, second = Echo(), Echo()
    with Proxy(first.url, second.url) as proxy:
        caller = Caller(proxy.url("a"))
        port, door = (address.rpartition(":")[2] for address in (second.url, proxy.addresses("a")[1]))
        first.always = (
            f"-MOVED 7 127.0.0.1:{port}\r\n127.0.0.1\r\n:{port}\r\n127.0.0.1\r\n$5\r\n{port}\r\n:{port}\r\n".encode()
        )
        caller.say(b"where?\n")
        heard = b"".join(caller.hear() or b"" for _ in range(7))
        assert heard == first.always.replace(port.encode(), door.encode(), 3), "the last stands behind no host"
        assert Caller(f"redis://127.0.0.1:{door}").ask(b"one\n") == b"ONE\n"
        proxy.cut("a")
        assert caller.hear() == b""
    first.close()
    second.close()


def test_cut_ends_the_connections_of_one_door_only(proxy: Proxy) -> None:
    """The other door's connections live, and new ones can be made at once."""
    a, b = Caller(proxy.url("a")), Caller(proxy.url("b"))
    assert a.ask(b"one\n") == b.ask(b"one\n") == b"ONE\n"
    proxy.cut("a")
    assert a.hear() == b""
    assert b.ask(b"two\n") == Caller(proxy.url("a")).ask(b"two\n") == b"TWO\n"


def test_a_shut_door_ends_new_connections(proxy: Proxy) -> None:
    """They are made, and closed; those from before stay."""
    before = Caller(proxy.url("a"))
    assert before.ask(b"one\n") == b"ONE\n"
    proxy.shut(True, "a")
    assert Caller(proxy.url("a")).hear() == b""
    assert before.ask(b"two\n") == b"TWO\n"
    proxy.shut(False, "a")
    assert Caller(proxy.url("a")).ask(b"three\n") == b"THREE\n"


def test_delay_holds_bytes_up_in_order(proxy: Proxy) -> None:
    """Both ways, so a round trip takes twice as long."""
    caller = Caller(proxy.url("a"))
    proxy.delay(0.1, "a")
    asked_at = time.monotonic()
    assert caller.ask(b"one\n") == b"ONE\n"
    assert time.monotonic() - asked_at >= 0.2
    proxy.delay(0.0)
    assert caller.ask(b"two\n") == b"TWO\n"


def test_swallow_lets_the_request_through_and_not_the_reply(proxy: Proxy, echo: Echo) -> None:
    """It happened, and the caller does not hear of it; the connection ends with the swallowing."""
    caller = Caller(proxy.url("a"))
    assert caller.ask(b"before\n") == b"BEFORE\n"
    proxy.swallow(True, "a")
    caller.say(b"lost\n")
    assert echo.has_heard(b"lost\n")
    assert caller.hear(0.1) is None
    proxy.swallow(False, "a")
    assert caller.hear() == b"", "a connection that has missed a reply must not carry others"


def test_swallow_spares_connections_that_missed_nothing(proxy: Proxy) -> None:
    """Who asked nothing meanwhile notices nothing."""
    caller = Caller(proxy.url("a"))
    assert caller.ask(b"before\n") == b"BEFORE\n"
    proxy.swallow(True)
    proxy.swallow(False)
    assert caller.ask(b"after\n") == b"AFTER\n"


def test_silence_carries_nothing_and_tells_nobody(proxy: Proxy, echo: Echo) -> None:
    """The old connection is open and dead; a new one is sound."""
    caller = Caller(proxy.url("a"))
    assert caller.ask(b"before\n") == b"BEFORE\n"
    proxy.silence("a")
    caller.say(b"into the void\n")
    assert caller.hear(0.2) is None
    assert Caller(proxy.url("a")).ask(b"new\n") == b"NEW\n"
    assert b"into the void\n" not in echo.heard


@pytest.mark.parametrize("how", ["cut", "closed"])
def test_a_request_held_up_does_not_arrive_after_its_sender_has_gone(proxy: Proxy, echo: Echo, how: str) -> None:
    """Else a call that was given up could still happen, long after."""
    caller = Caller(proxy.url("a"))
    assert caller.ask(b"before\n") == b"BEFORE\n"
    proxy.delay(4.0, "a")  # far longer than the proxy needs to receive it
    caller.say(b"too late\n")
    time.sleep(0.1)
    if how == "cut":
        proxy.cut("a")
    else:
        caller.close()
    time.sleep(4.5)
    assert b"too late\n" not in echo.heard


def test_a_server_that_is_not_there_ends_the_connection() -> None:
    """As when a server restarts: the port answers, and the connection ends."""
    with Proxy("redis://127.0.0.1:9") as proxy:
        assert Caller(proxy.url("a")).hear() == b""
