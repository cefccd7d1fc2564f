"""Callbacks of one process: how many a second, how late beside a dead receiver, and the rate of a plain httpx loop.

    python -m loadtest.callbacks      # a private Valkey, a scheduler, a caller and a receiver, each a process
    python -m loadtest.callbacks --quick --json callbacks.json

    throughput   jobs that are due already, called by one `wheelq callbacks`      floor: httpx, as many requests at once
    lateness     200 callbacks a second to a healthy receiver, due over time, alone and beside as many to a blackhole

The receiver answers 200 at once and is the same for both. Every job is counted there by its id: none may be missing.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import uvloop

from loadtest.bench.figures import Figure, Outcome, Target, percentile
from loadtest.command import run_rounds
from loadtest.servers.nodes import free_port
from loadtest.servers.processes import beside, running
from wheelq.embedded import HOST

AT_ONCE = 50
PATIENCE_S = 120
RECEIVER = """
import sys, time, uvicorn
seen = []
async def app(scope, receive, send):
    headers = dict(scope["headers"])
    await receive()
    body = b""
    if scope["path"] == "/seen":
        body, seen[:] = "\\n".join(seen).encode(), []
    elif b"wheelq-job" in headers:
        late = time.time() * 1000 - int(headers[b"wheelq-due"])
        seen.append(f"{headers[b'wheelq-job'].decode()} {late:.1f} {time.time():.4f}")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False,
            log_level="warning")
"""


class Bench:
    """Makes jobs through the delay service; a separate process calls the receivers."""

    def __init__(self, http: httpx.AsyncClient, receiver: str) -> None:
        self._http = http
        self._receiver = receiver
        self.made = 0
        self.missing = 0

    async def make(self, service: str, delays: list[float]) -> None:
        """Make jobs that are due after these delays."""
        for start in range(0, len(delays), 500):
            jobs = [
                {"delay": delay, "payload": {"id": 42, "user": "u-1024"}, "target": {"service": service, "path": "/in"}}
                for delay in delays[start : start + 500]
            ]
            answer = await self._http.post("/v1/topics/orders/bulk", json={"jobs": jobs})
            assert answer.json()["made"] == len(jobs), answer.text

    async def seen(self, count: int) -> list[tuple[float, float]]:
        """Wait for `count` callbacks, or until the time is up; returns how late each was, and when it came."""
        found: dict[str, tuple[float, float]] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            await asyncio.sleep(0.3)
            for line in (await self._http.get(f"{self._receiver}/seen")).text.splitlines():
                job, late, at = line.split(" ")
                found.setdefault(job, (float(late), float(at)))
        self.made += count
        self.missing += count - len(found)
        return sorted(found.values(), key=lambda one: one[1])

    async def throughput(self, count: int) -> float:
        """Returns callbacks a second, from the first to the last."""
        await self.make("shop", [3.0] * count)
        times = [at for _, at in await self.seen(count)]
        return (len(times) - 1) / (times[-1] - times[0])

    async def floor(self, count: int) -> float:
        """Returns the rate of the same requests in a plain httpx loop."""
        async with httpx.AsyncClient() as plain:
            left = iter(range(count))

            async def work() -> None:
                for _ in left:
                    await plain.post(f"{self._receiver}/plain", content=b'{"id": 42, "user": "u-1024"}')

            started = time.perf_counter()
            await asyncio.gather(*(work() for _ in range(AT_ONCE)))
            return count / (time.perf_counter() - started)

    async def p99_ms(self, count: int, rate: float, dead_beside: bool) -> float:
        """Returns the p99 of the lateness of callbacks that are due one after the other."""
        delays = [2.0 + n / rate for n in range(count)]
        if dead_beside:
            await self.make("hole", delays)
        await self.make("shop", delays)
        return percentile(sorted(late for late, _ in await self.seen(count)), 0.99)


@contextmanager
def blackhole() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server((HOST, 0), backlog=4_096) as silent:
        yield int(silent.getsockname()[1])


def register(receiver: int, hole: int) -> str:
    """Returns the register with both receivers."""
    terms = 'may_be_plain = true\nnetworks = ["127.0.0.0/8"]\nsecrets = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"]\n'
    services = ((("shop", receiver, AT_ONCE)), ("hole", hole, 20))
    return "".join(
        f'[services.{name}]\nurl = "http://{HOST}:{port}"\nconcurrency = {at_once}\ntimeout = 2\n{terms}'
        for name, port, at_once in services
    )


def measure(url: str, scale: float, rounds: int) -> Outcome:
    """Measure all figures on the server at `url`, which must be empty."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="wheelq-callbacks-")))
        port, receiver, hole = free_port(), free_port(), stack.enter_context(blackhole())
        (directory / "services.toml").write_text(register(receiver, hole))
        config = directory / "wheelq.toml"
        config.write_text(f'[server]\ncalls = false\nservices = "{directory / "services.toml"}"\n')
        stack.enter_context(running([sys.executable, "-c", RECEIVER, str(receiver)], receiver))
        rest = ["--url", url, "--config", str(config), "--log-level", "error"]
        serve = [sys.executable, "-m", "wheelq", "server", "--port", str(port), *rest]
        stack.enter_context(running(serve, port))
        for part in ("scheduler", "callbacks"):
            stack.enter_context(beside([sys.executable, "-m", "wheelq", part, *rest]))
        return asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_measure(port, receiver, scale, rounds))


async def _measure(port: int, receiver: int, scale: float, rounds: int) -> Outcome:
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=60) as http:
        bench = Bench(http, f"http://{HOST}:{receiver}")
        count = round(4_000 * scale)
        await bench.throughput(200)
        pairs = [(await bench.throughput(count), await bench.floor(count)) for _ in range(rounds)]
        called, floor = sorted(pairs, key=lambda pair: pair[0] / pair[1])[(len(pairs) - 1) // 2]
        alone = await bench.p99_ms(round(1_000 * scale), 200, dead_beside=False)
        beside = await bench.p99_ms(round(1_000 * scale), 200, dead_beside=True)
    figures = [
        Figure("callbacks of one process", called, "requests/s", Target(share=0.5), floor),
        Figure("p99 lateness, 200/s, alone", alone, "ms"),
        Figure("p99 lateness, 200/s, beside a dead one", beside, "ms", Target(at_most=100)),
    ]
    return Outcome("callbacks", figures, bench.made, {"missing": bench.missing})


if __name__ == "__main__":
    sys.exit(run_rounds("callbacks", __doc__, measure, quick=0.1))
