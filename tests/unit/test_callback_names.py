"""How the names of receivers are resolved: slow name servers hold up nobody else."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.waiting import PATIENCE, in_time, until
from wheelq.base.clock import ManualClock, SystemClock
from wheelq.callbacks.caller import CallbackCaller
from wheelq.callbacks.names import FRESH_S, OLD_S, Names
from wheelq.callbacks.services import Services
from wheelq.callbacks.target import Target
from wheelq.model.job import Job


class NameServer:
    """Answers after `go_on`, or at once for the names in `quick`; those that are not in `addresses` do not exist."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.quick: set[str] = set()
        self.asked: list[str] = []
        self._steps = threading.Semaphore(0)

    def go_on(self, count: int = 1) -> None:
        self._steps.release(count)

    def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        if host not in self.quick:
            self._steps.acquire()
        if host not in self.addresses:
            raise OSError(f"no {host}")
        return self.addresses[host]


@pytest.fixture
def server() -> NameServer:
    return NameServer()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def names(server: NameServer, clock: ManualClock) -> AsyncIterator[Names]:
    names = Names(clock, server.look_up, threads=1)
    yield names
    names.close()
    server.go_on(1_000)


async def test_an_answer_is_remembered_and_renewed_without_making_anyone_wait(
    names: Names, server: NameServer, clock: ManualClock
) -> None:
    server.addresses["shop"] = ["192.0.2.1"]
    first = [asyncio.create_task(names.resolve("shop", 443)) for _ in range(3)]
    await until(lambda: server.asked == ["shop"])
    server.go_on()
    assert await in_time(asyncio.gather(*first)) == [["192.0.2.1"]] * 3
    clock.advance(FRESH_S - 1)
    assert await names.resolve("shop", 80) == ["192.0.2.1"]
    assert server.asked == ["shop"]
    clock.advance(1)
    server.addresses["shop"] = ["192.0.2.2"]
    assert await in_time(names.resolve("shop", 443)) == ["192.0.2.1"], "the look-up goes on meanwhile"
    await until(lambda: server.asked == ["shop", "shop"])
    server.go_on()
    await until(lambda: names._answers["shop"].addresses == ["192.0.2.2"])
    clock.advance(OLD_S)
    server.quick.add("shop")
    server.addresses["shop"] = ["192.0.2.3"]
    assert await in_time(names.resolve("shop", 443)) == ["192.0.2.3"], "too old to be used"


async def test_a_failure_is_not_remembered_and_does_not_replace_an_answer(
    names: Names, server: NameServer, clock: ManualClock
) -> None:
    server.quick.add("shop")
    with pytest.raises(OSError, match="no shop"):
        await in_time(names.resolve("shop", 443))
    server.addresses["shop"] = ["192.0.2.1"]
    assert await in_time(names.resolve("shop", 443)) == ["192.0.2.1"]
    del server.addresses["shop"]
    clock.advance(FRESH_S)
    assert await names.resolve("shop", 443) == ["192.0.2.1"]
    await until(lambda: not names._running)
    assert await names.resolve("shop", 443) == ["192.0.2.1"], "name servers fail for a moment"
    clock.advance(OLD_S)
    with pytest.raises(OSError, match="no shop"):
        await in_time(names.resolve("shop", 443))


async def test_known_names_come_first_and_failed_ones_last(
    names: Names, server: NameServer, clock: ManualClock
) -> None:
    server.quick |= {"known", "failed"}
    server.addresses["known"] = ["192.0.2.1"]
    await in_time(names.resolve("known", 443))
    with pytest.raises(OSError, match="no failed"):
        await in_time(names.resolve("failed", 443))
    clock.advance(OLD_S)
    asking = [asyncio.create_task(names.resolve(name, 443)) for name in ("slow", "failed", "new", "known")]
    await until(lambda: "slow" in server.asked)
    server.go_on(1_000)
    await in_time(asyncio.gather(*asking, return_exceptions=True))
    assert server.asked[2:] == ["slow", "known", "new", "failed"]


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Look-ups of `….slow` never end, before the returned function is called; every other name is this machine's."""
    ended, real = threading.Event(), socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **named: Any) -> Any:
        if str(host).endswith(".slow"):
            ended.wait(PATIENCE)
            raise OSError("no such name")
        return real("127.0.0.1" if str(host).endswith(".test") else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return ended.set


async def test_a_healthy_receiver_is_called_while_the_names_of_others_are_looked_up(
    slow_names: Callable[[], None],
) -> None:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 \r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        terms = {"may_be_plain": True, "networks": ["127.0.0.0/8"], "timeout": PATIENCE}
        register = {"urls": {"allow": [f"http://*.slow:{port}", f"http://*.test:{port}"], **terms}}
        caller = CallbackCaller(Services.read(register), SystemClock())

        def job(host: str) -> Job:
            headers = {"wheelq-target": Target(url=f"http://{host}:{port}/").header()}
            return Job("1", "orders", {}, 0, 1, 0, "1-1", headers)

        calls = [asyncio.create_task(caller(job(f"shop-{n}.slow"))) for n in range(40)]
        await until(lambda: sum(info.in_flight for info in caller.infos()) == 40)
        await asyncio.wait_for(caller(job("shop.test")), PATIENCE / 2)
        slow_names()
        await asyncio.gather(*calls, return_exceptions=True)
        await caller.close()


def test_a_process_ends_while_names_are_looked_up() -> None:
    program = """
import asyncio, socket, time
from wheelq.base.clock import SystemClock
from wheelq.callbacks.names import Names
socket.getaddrinfo = lambda *_, **__: time.sleep(3600)

async def main():
    names = Names(SystemClock())
    looking = [asyncio.create_task(names.resolve(f"shop-{n}.slow", 443)) for n in range(200)]
    await asyncio.wait(looking, timeout=0.1)
    names.close()

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
