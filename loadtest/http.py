"""The HTTP server's figures on this machine, beside a FastAPI route that does nothing, in the same run.

    python -m loadtest.http                      # a private Valkey, one server process, one that serves the empty route
    python -m loadtest.http --quick --json http.json

    single       jobs made one a request, by 64 connections and by one     floor: the empty route, by as many
    bulk         jobs made 500 a request, four connections
    classic add  tasks added by the classic API, one connection            the service it comes from took 259 a second

Each figure and its floor are measured in turns, and the round with the median ratio counts. At the end there must be as
many waiting jobs as requests were answered with 2xx. Over one connection, each job waits for Redis, and the empty route
waits for nothing; so the target is for many connections.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any, cast

import uvloop

from loadtest.bench.figures import Figure, Outcome, Target, middle
from loadtest.command import run_rounds
from loadtest.servers.nodes import free_port
from loadtest.servers.processes import running
from wheelq import Client
from wheelq.embedded import HOST

BULK = 500
EMPTY_ROUTE = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/empty")
async def empty() -> dict[str, str]:
    return {}
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False,
            log_level="warning")
"""


class Connection(asyncio.Protocol):
    """One connection, which sends the next request when the previous one was answered."""

    def __init__(self, requests: Iterator[bytes], done: Callable[[int], None]) -> None:
        self._requests = requests
        self._done = done
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        """Read an answer: its status, and its body by the content length."""
        self._seen += data
        end = self._seen.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._seen[:end].lower()
        start = head.index(b"content-length:") + 15
        length = int(head[start : head.find(b"\r", start) if b"\r" in head[start:] else None])
        if len(self._seen) >= end + 4 + length:
            self._seen = self._seen[end + 4 + length :]
            self._done(int(head[9:12]))
            self._next()

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire."""
    kind = "content-type: application/json\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\n{kind}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask_once(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """One request over a connection of its own: status and body. Raises: OSError, EOFError.

    Hundreds of them may hang at once: a client with a pool would spend its time on looking through that.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request(method, path, body).replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head[9:12]), await reader.read()
    finally:
        writer.close()


async def drive(port: int, connections: int, made: Callable[[int], bytes], count: int) -> tuple[float, int]:
    """Returns good answers (2xx) a second, and how many there were; `made(n)` is the n-th request."""
    statuses: list[int] = []
    finished = asyncio.get_running_loop().create_future()

    def done(status: int) -> None:
        statuses.append(status)
        if len(statuses) == count:
            finished.set_result(None)

    requests = (made(n) for n in range(count))
    started = time.perf_counter()
    for _ in range(connections):
        await asyncio.get_running_loop().create_connection(lambda: Connection(requests, done), HOST, port)
    async with asyncio.timeout(120):
        await finished
    good = sum(200 <= status < 300 for status in statuses)
    return good / (time.perf_counter() - started), good


class Bench:
    """Both servers, and the jobs that were made."""

    def __init__(self, port: int, empty_port: int, scale: float) -> None:
        self._port = port
        self._empty_port = empty_port
        self._scale = scale
        self.made = 0
        """Jobs that were acknowledged with 2xx."""

    def rate(self, connections: int, count: int, made: Callable[[int], bytes], jobs: int = 1) -> float:
        """Jobs a second."""
        per_second, good = _run(drive(self._port, connections, made, max(connections, round(count * self._scale))))
        self.made += good * jobs
        return per_second * jobs

    def empty_rate(self, connections: int, count: int) -> float:
        """Requests a second to the empty route."""
        call = request("GET", "/empty")
        return _run(drive(self._empty_port, connections, lambda _: call, max(connections, round(count * self._scale))))[
            0
        ]

    def single(self, connections: int, count: int, rounds: int) -> tuple[float, float]:
        """One job a request; the figure and its floor."""
        call = request("POST", "/v1/topics/orders/jobs", b'{"payload":{"id":42,"user":"u-1024"},"delay":3600}')
        self.rate(connections, count // 4, lambda _: call)
        pairs = [
            (self.rate(connections, count, lambda _: call), self.empty_rate(connections, count)) for _ in range(rounds)
        ]
        return middle(pairs)

    def bulk(self, rounds: int) -> float:
        """500 jobs a request."""
        jobs = [{"payload": {"id": n, "user": f"u-{n}"}, "delay": 3600} for n in range(BULK)]
        call = request("POST", "/v1/topics/orders/bulk", json.dumps({"jobs": jobs}).encode())
        return sorted(self.rate(4, 200, lambda _: call, BULK) for _ in range(rounds))[rounds // 2]

    def classic(self, rounds: int) -> float:
        """One task a request, one connection."""

        def task(n: int) -> bytes:
            content = json.dumps({"order": n})
            body = {"topic": "classic", "timing_moment": int(time.time()) + 3600, "content": content}
            return request("POST", "/delay/task/add", json.dumps(body).encode())

        return sorted(self.rate(1, 3_000, task) for _ in range(rounds))[rounds // 2]


def _run(main: Coroutine[Any, Any, tuple[float, int]]) -> tuple[float, int]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def measure(url: str, scale: float, rounds: int) -> Outcome:
    """Measure all figures on the server at `url`, which must be empty."""
    with ExitStack() as stack:
        port, empty_port = free_port(), free_port()
        serve = [sys.executable, "-m", "wheelq", "server", "--port", str(port), "--url", url, "--log-level", "warning"]
        stack.enter_context(running(serve, port))
        stack.enter_context(running([sys.executable, "-c", EMPTY_ROUTE, str(empty_port)], empty_port))
        bench = Bench(port, empty_port, scale)
        single, empty = bench.single(64, 12_000, rounds)
        one, empty_one = bench.single(1, 3_000, rounds)
        bulk = bench.bulk(rounds)
        classic = bench.classic(rounds)
    with Client.connect(url) as client:
        waiting = sum(topic.waiting for topic in client.topics())
    figures = [
        Figure("single, 64 connections", single, "jobs/s", Target(share=0.5), empty),
        Figure("single, one connection", one, "jobs/s", floor=empty_one),
        Figure("bulk of 500", bulk, "jobs/s", Target(at_least=20_000)),
        Figure("classic add, one connection", classic, "jobs/s", Target(at_least=1_000)),
    ]
    return Outcome("http", figures, bench.made, {"lost or doubled": abs(waiting - bench.made)})


if __name__ == "__main__":
    sys.exit(run_rounds("http", __doc__, measure, quick=0.05))
