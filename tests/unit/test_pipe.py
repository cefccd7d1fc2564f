"""`Pipe`: one attempt to connect for all calls, short waits after silence, and cancelled tasks that break nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import uvloop

from tests.waiting import PATIENCE, until
from wheelq.base.clock import SystemClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import OutcomeUnknown, ServerError, Unavailable
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls.server import server_time_us
from wheelq.settings import ConnectionSettings
from wheelq.transport import Address, AsyncTransport
from wheelq.transport.pipe import Pipe

TIME = server_time_us()


class SilentServer:
    """Takes connections and never answers, until it is told to answer as the real one."""

    def __init__(self, path: Path, real: Path | None = None) -> None:
        self.url = f"unix://{path}"
        self.met = 0
        """Connections so far."""
        self.may_answer = asyncio.Event()
        self._path, self._real = path, real

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._meet, self._path)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += 1
        await self.may_answer.wait()
        assert self._real is not None
        there, back = await asyncio.open_unix_connection(self._real)
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(65_536):
        writer.write(part)
    writer.close()


@pytest.fixture
async def silent(tmp_path: Path, embedded: EmbeddedServer) -> AsyncIterator[SilentServer]:
    server = SilentServer(tmp_path / "silent.sock", Path(embedded.url.removeprefix("unix://")))
    listening = await server.serve()
    yield server
    listening.close()


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


def address(silent: SilentServer, *, connect_ms: int) -> Address:
    return Address(silent.url, ConnectionSettings(connect_timeout_ms=connect_ms, reply_timeout_ms=connect_ms))


async def test_calls_share_one_attempt_to_connect(silent: SilentServer) -> None:
    transport = AsyncTransport(address(silent, connect_ms=300))
    outcomes = await asyncio.gather(*(transport.send(TIME) for _ in range(20)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    assert len({id(outcome) for outcome in outcomes}) == 20, "each call has an error of its own"
    assert silent.met == 1
    await transport.close()


async def test_calls_to_a_server_that_was_silent_fail_soon_and_find_it_when_it_answers(silent: SilentServer) -> None:
    """The attempt goes on meanwhile, for as long as the first took: far longer than this test may."""
    pipe = Pipe(address(silent, connect_ms=60_000), SystemClock(), greeting_ms=100)
    with pytest.raises(Unavailable):
        await pipe.ask(TIME)
    pipe._greeting_ms = 600_000
    for _ in range(3):
        with pytest.raises(Unavailable, match="it does not answer"):
            await asyncio.wait_for(pipe.ask(TIME), PATIENCE)
    assert silent.met == 2
    silent.may_answer.set()
    await until(lambda: pipe.connection_id > 0)
    assert await pipe.ask(TIME)
    assert silent.met == 2
    await pipe.close()


async def test_a_server_that_answers_in_time_is_waited_for(silent: SilentServer) -> None:
    transport = AsyncTransport(address(silent, connect_ms=20_000))
    asked = asyncio.create_task(transport.send(TIME))
    await until(lambda: silent.met == 1)
    await asyncio.sleep(0.5)  # longer than a call waits after silence
    silent.may_answer.set()
    assert await asked
    await transport.close()


async def test_a_call_that_is_cancelled_while_connecting_leaves_the_attempt_to_the_others(
    silent: SilentServer,
) -> None:
    transport = AsyncTransport(address(silent, connect_ms=20_000))
    first, second = (asyncio.create_task(transport.send(TIME)) for _ in range(2))
    await until(lambda: silent.met == 1)
    first.cancel()
    silent.may_answer.set()
    assert await second
    await transport.close()


async def cancel_all() -> None:
    """As a framework that ends, or a test runner between two tests."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_when_all_tasks_were_cancelled_the_next_call_is_answered(embedded: EmbeddedServer) -> None:
    """By a connection that would not be given up for a minute."""
    transport = AsyncTransport(Address(embedded.url, ConnectionSettings(reply_timeout_ms=60_000)))
    await transport.send(TIME)
    await cancel_all()
    assert await asyncio.wait_for(transport.send(TIME), PATIENCE)
    await transport.close()


async def test_when_all_tasks_were_cancelled_while_connecting_calls_fail_and_the_next_is_answered(
    silent: SilentServer,
) -> None:
    transport = AsyncTransport(address(silent, connect_ms=60_000))
    outcome: list[ServerError] = []

    async def call() -> None:
        try:
            await transport.send(TIME)
        except ServerError as error:
            outcome.append(error)

    calling = asyncio.create_task(call())
    await until(lambda: silent.met == 1)
    [attempt] = [task for task in asyncio.all_tasks() if task.get_name() == "wheelq transport"]
    attempt.cancel()
    await calling
    assert isinstance(outcome[0], Unavailable)
    silent.may_answer.set()
    assert await asyncio.wait_for(transport.send(TIME), PATIENCE)
    await transport.close()


async def test_a_request_under_way_when_its_reader_is_cancelled_has_an_unknown_outcome(
    embedded: EmbeddedServer,
) -> None:
    transport = AsyncTransport(Address(embedded.url))
    await transport.send(TIME)
    asked = asyncio.create_task(transport.send(TIME))
    await asyncio.sleep(0)
    [reader] = [task for task in asyncio.all_tasks() if task.get_name() == "wheelq transport"]
    reader.cancel()
    with pytest.raises(OutcomeUnknown, match="all tasks were cancelled"):
        await asked
    await transport.close()


class BrokenAtOnce(Pipe):
    """Its first connection breaks after it was made, before the calls that waited for it have their turn."""

    has_broken = False

    async def _connect(self) -> Any:
        made = await super()._connect()
        if not self.has_broken:
            self.has_broken = True
            await self._break(ConnectionError("broken at once"))
        return made


def echo(word: str) -> Call[bytes]:
    return command("ECHO", word, read=lambda reply: reply)


async def test_a_call_whose_connection_broke_as_soon_as_it_was_made_gets_no_reply_of_another_call(
    embedded: EmbeddedServer,
) -> None:
    pipe = BrokenAtOnce(Address(embedded.url), SystemClock())
    first = asyncio.create_task(pipe.ask(echo("first")))
    await until(lambda: pipe.has_broken)
    assert await asyncio.wait_for(pipe.ask(echo("second")), PATIENCE) == b"second"
    with pytest.raises(Unavailable, match="it broke as soon as it was made"):
        await first
    await pipe.close()


async def test_after_a_write_was_cancelled_each_call_gets_its_own_reply(embedded: EmbeddedServer) -> None:
    """The driver closes the connection then, and would open another at the next call."""
    pipe = Pipe(Address(embedded.url), SystemClock())
    await pipe.ask(echo("first"))
    await pipe._connection.disconnect(nowait=True)  # as the driver does
    replies = await asyncio.gather(*(pipe.ask(echo(word)) for word in "abc"))
    assert replies == [b"a", b"b", b"c"]
    await pipe.close()


def test_on_uvloop_a_write_to_a_connection_that_was_just_closed_is_a_call_of_unknown_outcome(
    embedded: EmbeddedServer,
) -> None:
    """uvloop raises RuntimeError there, which ended a worker when its server was killed."""

    async def call_and_subscribe() -> None:
        pipe = Pipe(Address(embedded.url), SystemClock())
        await pipe.open()
        pipe._connection._writer.transport.abort()
        await asyncio.sleep(0)  # uvloop has closed it, and its reader does not know yet
        with pytest.raises(OutcomeUnknown, match=r"no reply came \(the connection was closed\)"):
            await pipe.ask(echo("lost"))
        assert await pipe.ask(echo("next")) == b"next"
        await pipe.close()
        transport = AsyncTransport(Address(embedded.url))
        listening = transport.subscription()
        await listening.open(["channel"])
        listening._connection._writer.transport.abort()
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="the connection was closed"):
            await listening.listen("another")
        await transport.close()

    uvloop.run(call_and_subscribe())


async def test_a_late_failure_of_a_former_connection_does_not_break_the_next(embedded: EmbeddedServer) -> None:
    pipe = Pipe(Address(embedded.url), SystemClock())
    await pipe.open()
    former = pipe._connection
    await pipe._break(ConnectionError("broken"))
    await pipe.open()
    present = pipe._connection
    former.send_packed_command = AsyncMock(side_effect=ConnectionError)
    await pipe._write(former, b"")
    assert pipe._connection is present
    await pipe.close()
