"""The HTTP service through ASGI, with callers that schedule jobs, and lessees that pull jobs in long polls.

Callers and lessees live in the service's process; torture tests the sockets. A lessee works on a job for a while, then
acknowledges it, reports a failure, releases it, or forgets it. Some lessees leave before a long poll ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.simulation.ledger import Ledger, Run
from loadtest.simulation.parts import Actor, Part
from loadtest.simulation.process import Process
from loadtest.simulation.receiver import ADDRESS
from wheelq.server.app import make_app
from wheelq.server.service import Service
from wheelq.settings import OutboxSettings, ServerSettings, Settings

GROUP, LESSEES = "lessees", 2
STORED_GROUP = f"http.{GROUP}"
SERVICES = f"""
[services.shop]
url = "http://{ADDRESS}/hooks"
secrets = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="]
timeout = 6.0
retry = {{ delays = [0.3, 0.7, 1.5] }}
networks = ["10.0.0.0/8"]
may_be_plain = true
"""
UNEXPECTED = (400, 415, 422, 500)


@dataclass(slots=True)
class WebActor(Actor):
    """The service, as its callers use it."""

    app: Any

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        leaves_after: float = 0.0,
    ) -> tuple[int, Any]:
        """Send a request; returns the status and body. The caller leaves after this many seconds, or when answered."""
        data, parts = b"" if body is None else json.dumps(body).encode(), []
        path, _, query = path.partition("?")
        given = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": str(len(data)),
            **(headers or {}),
        }
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "client": ("127.0.0.1", 1), "server": ("localhost", 80),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        sends, status, left = [{"type": "http.request", "body": data}], 0, asyncio.Event()
        leaving = asyncio.get_running_loop().call_later(leaves_after, left.set) if leaves_after else None

        async def receive() -> Any:
            if not sends:
                await left.wait()
            return sends.pop() if sends else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    left.set()

        await self.app(scope, receive, send)
        if leaving is not None:
            leaving.cancel()
        answer = b"".join(parts)
        if status in UNEXPECTED:
            self.ledger.problems.append(f"died: {method} {path} was answered {status}: {answer[:200]!r}")
        return status, json.loads(answer) if answer[:1] in (b"{", b"[") else None


async def serve(url: str, settings: Settings, ledger: Ledger, part: Part, process: Process) -> None:
    """Run the process of the service."""
    _write_services()
    server = ServerSettings(access="open", services="services.toml", drain_ms=3_000)
    service = Service.connect(url, replace(settings, server=server, outbox=OutboxSettings(path="outbox-web.db")))
    done = asyncio.Event()
    part.stop = done.set
    async with service.running():
        part.actor = actor = WebActor(part.name, service.client, ledger, make_app(service))
        lessees = [asyncio.create_task(Lessee(actor, process).run(), name=f"lessee {n}") for n in range(LESSEES)]
        await done.wait()
        part.actor = None
        service.drain()
        for task in lessees:
            task.cancel()
        await asyncio.wait(lessees)


def _write_services() -> None:
    Path("services.toml").write_text(SERVICES)


class Lessee:
    """Leases jobs and settles them."""

    def __init__(self, actor: WebActor, process: Process) -> None:
        self._actor, self._process, self._random = actor, process, process.random
        self._path = f"/v1/topics/leased/groups/{GROUP}/"

    async def run(self) -> None:
        """Lease jobs until cancelled."""
        random = self._random
        while True:
            lease, sent = random.uniform(2, 6), self._actor.ledger.world.now
            asked = {"count": random.randint(1, 5), "lease": lease, "wait": random.choice((0, 2, 5))}
            leaves_after = random.uniform(0.1, 3) if random.random() < 0.15 else 0.0
            status, answer = await self._actor.ask("POST", f"{self._path}lease", asked, leaves_after=leaves_after)
            jobs = answer["jobs"] if status == 200 and answer else []
            for job in jobs:
                await self._handle(job, sent + lease)
            if not jobs:
                await asyncio.sleep(0.5)

    async def _handle(self, job: Any, until: float) -> None:
        random, world = self._random, self._actor.ledger.world
        takes, fails, _ = job["payload"]
        run = self._begin(job, until)
        if world.now > until - 0.5:  # the jobs before took too long: another lessee gets this one
            run.ended, run.outcome = world.now, "dropped"
            return
        if takes > 1.5 and await self._tell("extend", job, lease=8.0):
            run.leased_until = max(until, world.now + 7.0)
        await asyncio.sleep(takes)
        chance = random.random()
        if job["attempt"] <= fails:
            run.ended, run.outcome = world.now, "ValueError"
            is_told = await self._tell("fail", job, error="on purpose", pause=0.4, max_attempts=4)
        elif chance < 0.04:
            run.ended, run.outcome = world.now, "dropped"
            return
        elif chance < 0.1:
            run.ended, run.outcome = world.now, "released"
            is_told = await self._tell("release", job, pause=random.choice((0, 1.0)))
        else:
            run.ended, run.outcome = world.now, "done"
            is_told = await self._tell("ack", job)
        if is_told:
            run.leased_until = float("inf") if run.outcome == "done" else 0.0

    async def _tell(self, what: str, job: Any, **more: Any) -> bool:
        status, answer = await self._actor.ask("POST", f"{self._path}{what}", {"handles": [job["handle"]], **more})
        return status == 200 and answer["done"] == [True]

    def _begin(self, job: Any, until: float) -> Run:
        shard, entry, deliveries, _ = job["handle"].split(".")
        world, server_us = self._actor.ledger.world, self._actor.ledger.server.clock_us()
        who, id = f"lessee of {self._process.name}", job["id"]
        place, attempt, due_ms = f"{shard}.{entry}", int(deliveries), job["due_ms"]
        run = Run(STORED_GROUP, "leased", id, place, attempt, who, world.now, server_us, due_ms, id, leased_until=until)
        self._actor.ledger.runs.append(run)
        return run
