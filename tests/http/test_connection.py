"""Connections on which a caller begins something and does not finish it: they end, and hold nobody else up."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.found import ajob_of
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient
from wheelq.server import gate
from wheelq.server.connection import Limits

JOBS = "/v1/topics/orders/jobs"
GET = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
POLL = (
    b"POST /v1/topics/orders/groups/g/lease HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b'content-length: 11\r\n\r\n{"wait":20}'
)
POST = CHUNKED % JOBS.encode()


async def test_a_head_that_is_not_finished_in_time_is_refused(listen: Callable[..., Any]) -> None:
    listening = await listen(Limits(head_s=0.1))
    assert (await listening.said(GET)).startswith(b"HTTP/1.1 408 ")


async def test_a_connection_on_which_nothing_comes_is_closed(listen: Callable[..., Any]) -> None:
    listening = await listen(Limits(head_s=0.1))
    assert await listening.said() == b""


async def test_the_head_of_a_later_request_has_no_more_time(listen: Callable[..., Any]) -> None:
    """Also where it drips: a byte now and then buys nothing."""
    listening = await listen(Limits(head_s=1.0))
    async with listening.connection() as (reader, writer):
        writer.write(GET + b"\r\n")
        await reader.readuntil(b'"alive"}')

        async def drip() -> None:
            for byte in chain(GET, repeat(ord("x"))):
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(PATIENCE):
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        assert not dripping.done()
        dripping.cancel()


async def test_empty_lines_are_no_requests(listen: Callable[..., Any]) -> None:
    listening = await listen(Limits(head_s=0.2))
    assert await listening.said(b"\r\n" * 10) == b""
    listening = await listen(Limits(head_bytes=1_000))
    assert (await listening.said(b"\r\n" * 600)).startswith(b"HTTP/1.1 431 ")


async def test_every_part_of_a_head_is_bounded(listen: Callable[..., Any]) -> None:
    listening = await listen()
    for head in (
        b"GET /%b HTTP/1.1\r\n" % (b"x" * 200_000),
        b"GET / HTTP/1.1\r\na: %b\r\n" % (b"x" * 200_000),
        b"GET / HTTP/1.1\r\n%b: x\r\n" % (b"x" * 200_000),
        b"GET / HTTP/1.1\r\n%b" % (b"a: b\r\n" * 40_000),
        b"x" * 200_000,
    ):
        said = await listening.said(head)
        assert said.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")), said[:100]


async def test_a_head_just_below_the_limit_is_served(listen: Callable[..., Any]) -> None:
    listening = await listen()
    said = await listening.said(GET + b"a: %b\r\nconnection: close\r\n\r\n" % (b"x" * 65_000))
    assert said.startswith(b"HTTP/1.1 200 ")


async def test_trailers_are_bounded_and_reach_nobody(listen: Callable[..., Any]) -> None:
    listening, hasty = await listen(), await listen(Limits(head_s=0.2))
    body = b"b\r\n" + b'{"delay":9}' + b"\r\n0\r\n"
    assert b"HTTP/1.1 201 " in await listening.said(
        POST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + body + b"authorization: Bearer x\r\n\r\n"
    )
    for endless in (b"t: x\r\n" * 40_000, b"x" * 200_000, b"t: " + b"x" * 200_000):
        assert b"HTTP/1.1 201 " not in await listening.said(POST + body + endless)
    assert b"HTTP/1.1 201 " not in await hasty.said(POST + body + b"t: x\r\n")


async def test_endless_headers_are_kept_only_up_to_the_limit(listen: Callable[..., Any]) -> None:
    listening = await listen(Limits(linger_s=0.2))
    async with listening.connection() as (reader, writer):
        writer.write(GET)
        (connection,) = await _connections(listening)

        async def send() -> None:
            while True:
                writer.write(b"name: value\r\n" * 5_000)
                await writer.drain()

        sending = asyncio.create_task(send())
        async with asyncio.timeout(PATIENCE):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 431 ")
            await asyncio.wait([sending])
        assert isinstance(sending.exception(), ConnectionError)
        assert len(connection.headers) < 20_000


async def test_unfinished_heads_lock_nobody_out(listen: Callable[..., Any]) -> None:
    """At most so many are kept, and it is the oldest that go."""
    listening = await listen(Limits(newcomers=20, grace_s=0.05, head_s=PATIENCE))
    async with AsyncExitStack() as stack:
        unfinished = []
        for _ in range(60):
            reader, writer = await stack.enter_async_context(listening.connection())
            writer.write(GET)
            unfinished.append(reader)
        newcomers = listening.server.server_state.newcomers
        await until(lambda: len(newcomers) == 20)
        async with asyncio.timeout(PATIENCE):
            for reader in unfinished[:40]:
                assert await reader.read() == b""
        async with httpx.AsyncClient(base_url=listening.base, timeout=PATIENCE) as http:
            assert (await http.get("/healthz")).status_code == 200
        assert not any(reader.at_eof() for reader in unfinished[41:]), "the newest stay"


async def test_a_burst_of_callers_is_no_attack(listen: Callable[..., Any]) -> None:
    listening = await listen(Limits(newcomers=5))

    async def ask() -> bytes:
        return bytes(await listening.said(GET + b"connection: close\r\n\r\n"))

    for said in await asyncio.gather(*(ask() for _ in range(60))):
        assert said.startswith(b"HTTP/1.1 200 ")


async def test_the_longest_idle_connections_are_closed_when_connections_run_out(listen: Callable[..., Any]) -> None:
    """A request under way is left alone."""
    listening = await listen(Limits(connections=10))
    await listening.said(POST + b'b\r\n{"delay":9}\r\n0\r\n\r\n', b"GET / HTTP/1.0\r\n\r\n")
    async with AsyncExitStack() as stack:
        working, writer = await stack.enter_async_context(listening.connection())
        writer.write(POLL)
        leases = listening.server._service.leases
        await until(lambda: leases.waiting == 1)
        idle = []
        for _ in range(30):
            reader, writer = await stack.enter_async_context(listening.connection())
            writer.write(GET + b"\r\n")
            await reader.readuntil(b'"alive"}')
            idle.append(reader)
        async with asyncio.timeout(PATIENCE):
            for reader in idle[:20]:
                assert await reader.read() == b""
        assert not any(reader.at_eof() for reader in (working, *idle[-5:]))


async def test_a_caller_that_does_not_read_its_answers_is_cut_off(listen: Callable[..., Any]) -> None:
    listening = await listen(Limits(write_s=0.1))
    async with listening.connection() as (_, writer):
        connections = listening.server.server_state.connections
        try:
            while connections or not listening.server.server_state.total_requests:
                writer.write(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")
                await asyncio.sleep(0.005)
        except ConnectionError:
            pass
        await until(lambda: not connections)


async def test_more_requests_at_once_than_anybody_needs_are_not_kept(
    listen: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is closed without an answer, and the log has no error."""
    listening = await listen(Limits(pipelined=5))
    said = await listening.said((GET + b"\r\n") * 5 + GET + b"connection: close\r\n\r\n")
    assert said.count(b"HTTP/1.1 200 ") == 6
    assert (await listening.said((GET + b"\r\n") * 1_000)).count(b"HTTP/1.1 200 ") < 10
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_every_answered_job_is_made_as_sent_although_connections_are_closed(
    listen: Callable[..., Any], caplog: pytest.LogCaptureFixture, aclient: AsyncClient
) -> None:
    """The connection is closed between two requests: no body is taken for another's, and none is made after the cut."""
    listening = await listen(Limits(pipelined=5))

    def post(n: int, close: bool = False) -> bytes:
        body = b'{"delay": 60, "id": "job-%d", "payload": %d}' % (n, n)
        head = CHUNKED % JOBS.encode()
        head = head.replace(b"transfer-encoding: chunked", b"content-length: %d" % len(body))
        return (head.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") if close else head) + body

    said = await listening.said(b"".join(map(post, range(5))) + post(5, close=True))
    assert said.count(b"HTTP/1.1 201 ") == 6
    said = await listening.said(b"".join(map(post, range(6, 100))))
    answered = said.count(b"HTTP/1.1 201 ")
    waiting = {job.id for job in (await aclient.waiting("orders", limit=100)).jobs}
    assert answered + 6 <= len(waiting) < 20
    for n in range(len(waiting)):
        made = await ajob_of(aclient, "orders", f"job-{n}")
        assert made.payload == n
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_after_a_body_that_is_too_large_the_connection_is_closed(listen: Callable[..., Any]) -> None:
    """Only so much of its rest is read that the answer arrives."""
    listening = await listen(Limits(linger_s=0.2), body_max_bytes=1_000)
    chunk = b"400\r\n" + b" " * 1_024 + b"\r\n"
    async with listening.connection() as (reader, writer):
        writer.write(POST)

        async def send() -> None:
            while True:
                writer.write(chunk)
                await writer.drain()

        sending = asyncio.create_task(send())
        async with asyncio.timeout(PATIENCE):
            said = await reader.readuntil(b"\r\n\r\n")
            assert said.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close" in said
            await asyncio.wait([sending])
        assert isinstance(sending.exception(), ConnectionError)
    declared = POST.replace(b"transfer-encoding: chunked", b"content-length: 99999999")
    said = await listening.said(declared)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in said


async def test_the_rest_of_a_body_that_nobody_reads_has_a_while_and_then_the_next_request_is_served(
    listen: Callable[..., Any],
) -> None:
    listening = await listen(Limits(head_s=PATIENCE))
    lost = b"POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n"
    async with listening.connection() as (reader, writer):
        writer.write(lost)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        writer.write(b"12345" + GET + b"connection: close\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            assert b"HTTP/1.1 200 " in await reader.read()
    hasty = await listen(Limits(head_s=0.3))
    assert (await hasty.said(lost)).count(b"HTTP/1.1 ") == 1


async def test_at_a_stop_requests_on_their_way_are_answered(
    listen: Callable[..., Any],
) -> None:
    """However long they are on their way, within the time for that."""
    listening = await listen(Limits(parting_s=PATIENCE), drain_ms=int(4 * PATIENCE * 1000))  # a quarter is for parting
    stopped = asyncio.Event()
    ends = []

    async def ask(n: int) -> None:
        async with listening.connection() as (reader, writer):
            head = b""
            while b"connection: close" not in head:
                writer.write(GET + b"\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b'"alive"}')
                if n == 9:
                    await stopped.wait()
                await asyncio.sleep(0.01 * n)
            ends.append((stopped.is_set(), await reader.read()))

    async with listening.connection() as (reader, writer), asyncio.timeout(PATIENCE):
        writer.write(GET + b"\r\n")
        await reader.readuntil(b'"alive"}')
        asking = [asyncio.create_task(ask(n)) for n in range(10)]
        await until(lambda: listening.server.server_state.total_requests > 50)
        stopped.set()
        listening.server.stop()
        await asyncio.gather(*asking)
        assert ends == [(True, b"")] * 10
        writer.write(GET + b"\r\n")
        assert b"connection: close" in await reader.read()


async def test_at_a_stop_a_connection_that_stays_idle_is_closed_and_a_late_request_does_not_reset_it(
    listen: Callable[..., Any],
) -> None:
    listening = await listen(Limits(parting_s=0.1))
    async with listening.connection() as (reader, writer), asyncio.timeout(PATIENCE):
        writer.write(GET + b"\r\n")
        await reader.readuntil(b'"alive"}')
        (connection,) = await _connections(listening)
        listening.server.stop()
        await until(lambda: connection._is_deaf)
        writer.write(GET + b"\r\n")
        assert await reader.read() == b""


# Bodies


DRIPPING = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"


async def test_at_a_stop_a_body_that_is_still_coming_is_given_up(listen: Callable[..., Any], caplog: Any) -> None:
    listening = await listen(Limits(body_s=0.1), drain_ms=int(4 * PATIENCE * 1000))
    async with listening.connection() as (reader, writer), asyncio.timeout(PATIENCE):
        writer.write(DRIPPING % JOBS.encode())
        await until(lambda: bool(listening.server.server_state.tasks))
        listening.server.stop()
        said = await reader.read()
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b'"type":"/docs#stopping"' in said
    await until(lambda: not listening.server.server_state.tasks)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_request_with_two_hosts_is_refused(listen: Callable[..., Any]) -> None:
    """A proxy may have decided by the one, and the server by the other."""
    listening = await listen()
    assert (await listening.said(GET + b"Host: evil.example\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_wish_for_another_protocol_is_ignored_and_the_body_is_read(
    listen: Callable[..., Any], aclient: AsyncClient, caplog: Any, is_chunked: bool
) -> None:
    """Java's client sends it with its first request. It may come in any pieces, and the next request follows it."""
    listening = await listen()
    head = CHUNKED % JOBS.encode()
    body = b'{"delay": 60, "id": "job-%d"}'
    if is_chunked:
        body = b"1c\r\n" + body + b"\r\n0\r\n\r\n"
    else:
        head = head.replace(b"transfer-encoding: chunked", b"content-length: 28")
    wish = b"\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n\r\n"
    requests = [head.replace(b"\r\n\r\n", wish) + body % n for n in range(4)]
    last = GET + b"connection: close\r\n\r\n"
    assert (await listening.said(b"".join(requests[:2]) + last)).count(b"HTTP/1.1 201 ") == 2
    async with listening.connection() as (reader, writer), asyncio.timeout(PATIENCE):
        for byte in b"".join(requests[2:]) + last:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await reader.read()).count(b"HTTP/1.1 201 ") == 2
    assert {job.id for job in (await aclient.waiting("orders")).jobs} == {f"job-{n}" for n in range(4)}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_what_is_not_http_is_refused_and_logs_nothing(listen: Callable[..., Any], caplog: Any) -> None:
    """Anybody could fill the log otherwise."""
    listening = await listen()
    assert (await listening.said(b"hello\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_request_for_a_websocket_is_answered_as_one_without_and_logs_nothing(
    listen: Callable[..., Any], caplog: Any
) -> None:
    listening = await listen()
    upgrade = GET + b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n"
    async with listening.connection() as (reader, writer), asyncio.timeout(PATIENCE):
        writer.write(upgrade)
        assert (await reader.readuntil(b'"alive"}')).startswith(b"HTTP/1.1 200 ")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_the_time_for_a_body_is_for_all_of_it(listen: Callable[..., Any], monkeypatch: Any) -> None:
    """A byte now and then buys no more."""
    monkeypatch.setattr(gate, "BODY_S", 0.3)
    listening = await listen()
    async with listening.connection() as (reader, writer):
        writer.write(DRIPPING % JOBS.encode())

        async def drip() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(PATIENCE):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 408 ")
        dripping.cancel()


async def test_bodies_that_are_still_coming_hold_nobody_up(listen: Callable[..., Any]) -> None:
    """As many as may be under way can come at once; where there are more, the first is given up."""
    listening = await listen(max_in_flight=3)
    async with AsyncExitStack() as stack:
        dripping = []
        for n in range(5):
            reader, writer = await stack.enter_async_context(listening.connection())
            writer.write(DRIPPING % (JOBS.encode() if n % 2 else b"/delay/task/add"))
            dripping.append(reader)
            async with httpx.AsyncClient(base_url=listening.base, timeout=PATIENCE) as http:
                assert (await http.post(JOBS, json={"delay": 60})).status_code == 201
        async with asyncio.timeout(PATIENCE):
            for reader in dripping[:2]:
                assert await reader.readuntil(b"\r\n")
        assert not any(reader.at_eof() for reader in dripping[-2:])


@pytest.mark.parametrize("path", ["/v1/topics/orders/jobs", "/v1/topics/orders/settings", "/delay/task/add"])
async def test_an_upload_that_is_broken_off_is_no_error(listen: Callable[..., Any], path: str, caplog: Any) -> None:
    listening = await listen()
    method = b"PATCH" if "settings" in path else b"POST"
    with caplog.at_level(logging.INFO):
        async with listening.connection() as (_, writer):
            writer.write(DRIPPING.replace(b"POST", method) % path.encode())
            await _connections(listening)
        answered = listening.server._service.answered
        await until(lambda: bool(answered) and not listening.server.server_state.tasks)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def _connections(listening: Any) -> list[Any]:
    connections = listening.server.server_state.connections
    await until(lambda: bool(connections))
    return list(connections)


# TLS


@pytest.fixture
def tls(tmp_path: Path) -> tuple[dict[str, Any], ssl.SSLContext]:
    """Settings of a server that speaks TLS, and what its callers trust."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    return {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}, trusted


async def test_unfinished_tls_handshakes_lock_nobody_out(
    listen: Callable[..., Any], tls: tuple[dict[str, Any], ssl.SSLContext]
) -> None:
    """They count as unfinished heads do; the oldest go, whether they have said nothing or half of it."""
    files, trusted = tls
    listening = await listen(Limits(newcomers=20, grace_s=0.05, head_s=PATIENCE), **files)
    async with AsyncExitStack() as stack:
        unfinished = []
        for number in range(60):
            reader, writer = await stack.enter_async_context(listening.connection())
            writer.write(b"\x16\x03\x01\x02\x00" if number % 2 else b"")
            unfinished.append(reader)
        newcomers = listening.server.server_state.newcomers
        await until(lambda: len(newcomers) == 20)
        for reader in unfinished[:40]:
            assert await _is_cut_off(reader)
        async with httpx.AsyncClient(
            base_url=f"https://localhost:{listening.port}", verify=trusted, timeout=PATIENCE
        ) as https:
            assert (await https.get("/healthz")).status_code == 200
        assert not any(reader.at_eof() for reader in unfinished[41:]), "the newest stay"


async def test_a_busy_server_does_not_blame_its_callers(
    listen: Callable[..., Any], tls: tuple[dict[str, Any], ssl.SSLContext]
) -> None:
    """Handshakes take longer than their grace because each turn of its event loop does: all callers are answered."""
    files, trusted = tls
    listening = await listen(Limits(newcomers=5, grace_s=0.05), **files)

    def ask() -> bytes:
        with (
            socket.create_connection(("127.0.0.1", listening.port), PATIENCE) as plain,
            trusted.wrap_socket(plain, server_hostname="localhost") as caller,
        ):
            caller.sendall(GET + b"connection: close\r\n\r\n")
            return caller.recv(100)

    with ThreadPoolExecutor(30) as callers:
        asking = [asyncio.wrap_future(callers.submit(ask)) for _ in range(30)]
        while not all(one.done() for one in asking):
            time.sleep(0.06)  # noqa: ASYNC251
            await asyncio.sleep(0)
    for said in await asyncio.gather(*asking):
        assert said.startswith(b"HTTP/1.1 200 ")


async def test_a_tls_handshake_has_its_time(
    listen: Callable[..., Any], tls: tuple[dict[str, Any], ssl.SSLContext]
) -> None:
    files, _ = tls
    listening = await listen(Limits(head_s=0.2), **files)
    async with listening.connection() as (reader, _):
        assert await _is_cut_off(reader)
    state = listening.server.server_state
    await until(lambda: not state.newcomers and not state.connections)


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_served(
    listen: Callable[..., Any], tls: tuple[dict[str, Any], ssl.SSLContext]
) -> None:
    """Client and server speak in memory, so that the last part of the handshake and the request go in one piece."""
    files, trusted = tls
    listening = await listen(**files)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = trusted.wrap_bio(received, sent, server_hostname="localhost")
    async with listening.connection() as (reader, writer), asyncio.timeout(PATIENCE):
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(sent.read())
                received.write(await reader.read(65_536))
        session.write(GET + b"connection: close\r\n\r\n")
        writer.write(sent.read())
        said = b""
        while b'"alive"}' not in said:
            try:
                said += session.read(65_536)
            except ssl.SSLWantReadError:
                received.write(await reader.read(65_536))
    assert said.startswith(b"HTTP/1.1 200 ")


async def _is_cut_off(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(PATIENCE):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


@pytest.mark.parametrize("rest", [b"XX", b"\r\nzz\r\n", b"\r\n0\r\ncontent-length: 9\r\n\r\n"])
async def test_a_body_that_is_malformed_is_refused_at_once(listen: Callable[..., Any], rest: bytes) -> None:
    """Not only after the time that a whole body has."""
    listening = await listen(Limits())
    assert (await listening.said(POST + b"2\r\n{}" + rest)).startswith(b"HTTP/1.1 400 ")
