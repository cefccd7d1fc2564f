"""The server in memory: one for each name, with a clock of its own."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from wheelq import Client
from wheelq.base.clock import ManualClock
from wheelq.errors import ConfigurationError
from wheelq.protocol.call import command
from wheelq.transport import Address, AsyncTransport, Transport
from wheelq.transport.memory import MemoryServer, memory_server

URL = "memory://of-test-memory"


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    server = memory_server(URL)
    yield server
    server.reset()


def test_a_name_leads_to_one_server_in_the_process_and_another_name_to_another(server: MemoryServer) -> None:
    with Client.connect(URL) as one, Client.connect(URL) as other, Client.connect("memory://another") as elsewhere:
        one.schedule("orders", delay=60, key="k")
        assert other.get("orders", "k") is not None
        assert elsewhere.get("orders", "k") is None


def test_it_goes_by_the_system_clock_until_it_is_given_another(server: MemoryServer) -> None:
    with Client.connect(URL) as client:
        before = time.time_ns() // 1_000_000
        assert before <= client.schedule("orders", delay=0).due_ms <= time.time_ns() // 1_000_000
        server.clock = ManualClock(wall_ms=1_900_000_000_000)
        assert client.schedule("orders", delay=1).due_ms == 1_900_000_001_000


@pytest.mark.parametrize("ms", [1_795_270_010_437, 1_900_000_000_001, 2_000_000_000_999])
def test_whole_milliseconds_survive_the_way_through_seconds(server: MemoryServer, ms: int) -> None:
    """Where fakeredis truncates to milliseconds (stream ids) and where it rounds to microseconds (TIME)."""
    server.clock = ManualClock(wall_ms=ms)
    seconds = server.seconds()
    assert (int(1000 * seconds), round(seconds * 1_000_000)) == (ms, ms * 1000)


def test_a_manual_clock_keeps_whole_milliseconds_however_it_is_advanced() -> None:
    clock = ManualClock(wall_ms=1_795_270_010_437)
    for expected in range(1_795_270_010_438, 1_795_270_011_437):
        clock.advance(0.001)
        assert clock.wall_ms() == expected


def test_keys_expire_by_its_clock_and_other_fakes_keep_the_system_clock(server: MemoryServer) -> None:
    clock = server.clock = ManualClock(wall_ms=1_900_000_000_000)
    theirs = fakeredis.FakeRedis()
    assert abs(int(theirs.time()[0]) - time.time()) < 60
    transport = Transport(Address(URL))
    transport.send(command("SET", "k", "v", "PX", 5_000, read=bool))
    clock.advance(5)
    assert transport.send(command("EXISTS", "k", read=bool)), "its last millisecond"
    clock.advance(0.001)
    assert not transport.send(command("EXISTS", "k", read=bool))


def test_all_of_fakeredis_that_reads_the_time_is_given_the_servers() -> None:
    """A release that reads it in another way shows here, and not as a job that runs at the wrong time."""
    root = Path(fakeredis.__file__).parent
    for path in root.rglob("*.py"):
        source = path.read_text()
        name = ".".join(("fakeredis", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
        assert not re.search(r"from time import|time\.time_ns|datetime\.(now|utcnow|today)", source), name
        if "time.time()" in source and name in sys.modules:
            assert sys.modules[name].time is not time, name
            assert sys.modules[name].time.monotonic is time.monotonic


async def test_on_asyncio_a_read_that_waits_goes_by_its_clock_too(server: MemoryServer) -> None:
    clock = server.clock = ManualClock(wall_ms=1_900_000_000_000)
    reading, writing = (AsyncTransport(Address(URL)) for _ in range(2))
    block = ["BLOCK", 10_000, "STREAMS", "s", "$"]
    waiting = asyncio.create_task(reading.send(command("XREAD", *block, read=list, wait_ms=10_000)))
    for _ in range(100):
        await asyncio.sleep(0.001)  # turns of the event loop, of which a read needs a few
    clock.advance(1)
    added = await writing.send(command("XADD", "s", "*", "k", "v", read=bytes))
    assert added.startswith(b"1900000001000-")
    [[_, [[entry_id, _]]]] = await waiting
    assert entry_id == added
    await reading.close()
    await writing.close()


def test_without_fakeredis_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("wheelq.transport.memory")
    monkeypatch.setitem(sys.modules, "wheelq.transport.memory", None)
    with pytest.raises(ConfigurationError, match=r"memory:// needs fakeredis: pip install 'wheelq\[testing\]'"):
        Client.connect("memory://tests")
