"""The HTTP service through ASGI, with callers that schedule jobs, and lessees that pull jobs in long polls.

Callers and lessees live in the service's process; torture tests the sockets. In a seed with `callers` every request
needs an API key; a valid one must never be refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.simulation.ledger import Ledger
from loadtest.simulation.lessees import Asker, Latecomer, Lessee
from loadtest.simulation.parts import Actor, Part
from loadtest.simulation.process import Process
from loadtest.simulation.receiver import ADDRESS
from wheelq.errors import ServerError
from wheelq.protocol.calls.access import put_api_key
from wheelq.server.access import new_key
from wheelq.server.app import make_app
from wheelq.server.service import Service
from wheelq.settings import OutboxSettings, ServerSettings, Settings
from wheelq.settings.components import Access

LESSEES = 2
"""How many of each kind."""
SERVICES = f"""
[services.shop]
url = "http://{ADDRESS}/hooks"
secrets = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="]
timeout = 6.0
retry = {{ delays = [0.3, 0.7, 1.5] }}
networks = ["10.0.0.0/8"]
may_be_plain = true
"""
UNEXPECTED = (400, 401, 403, 415, 422, 500)
"""No request ends like this, unless that is what its caller wants to see."""


@dataclass(slots=True)
class WebActor(Actor):
    """The service, as its callers use it."""

    service: Service
    app: Any
    token: str = ""
    """The API key of its callers; "" if they need none."""

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        leaves_after: float = 0.0,
        token: str | None = None,
    ) -> tuple[int, Any]:
        """Send a request; returns the status and body. The caller leaves after this many seconds, or when answered.

        With a `token` of its own it may be refused.
        """
        data, parts = b"" if body is None else json.dumps(body).encode(), []
        path, _, query = path.partition("?")
        given = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": str(len(data)),
            **({"authorization": f"Bearer {token or self.token}"} if token or self.token else {}),
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
        if status in UNEXPECTED and not token:
            self.ledger.problems.append(f"died: {method} {path} was answered {status}: {answer[:200]!r}")
        return status, json.loads(answer) if answer[:1] in (b"{", b"[") else None


async def serve(
    url: str, settings: Settings, ledger: Ledger, part: Part, process: Process, traits: Collection[str]
) -> None:
    """Run the process of the service, in a seed with these traits."""
    _write_services()
    has_callers = "callers" in traits
    access: Access = "keys" if has_callers else "open"
    server = ServerSettings(access=access, services="services.toml", drain_ms=3_000)
    service = Service.connect(url, replace(settings, server=server, outbox=OutboxSettings(path="outbox-web.db")))
    done = asyncio.Event()
    part.stop = done.set
    async with service.running():
        actor = WebActor(part.name, service.client, ledger, service, make_app(service))
        if has_callers:
            actor.token = await _token_of(service, part)
        part.actor = actor
        kinds = (Lessee, *[Asker] * has_callers, *[Latecomer] * ("lent" in traits))
        lessees = [one(actor, process) for one in kinds for _ in range(LESSEES)]
        tasks = [asyncio.create_task(one.run(), name=f"lessee {n}") for n, one in enumerate(lessees)]
        await done.wait()
        part.actor = None
        service.drain()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _token_of(service: Service, part: Part) -> str:
    """Returns the token of the key for everything, which the first process of the service makes."""
    if part.former:
        return _written_token()
    key, token = new_key("everything", ("*:*",), service.clock.wall_ms())
    while True:
        try:
            await service.transport.send(put_api_key(service.keys, key.id, key.stored()))
        except ServerError:
            await asyncio.sleep(0.2)
        else:
            return _written_token(token)


def _written_token(token: str = "") -> str:
    """Writes the token to a file; without one, returns what is written there."""
    path = Path("token")
    if token:
        path.write_text(token)
    return path.read_text()


def _write_services() -> None:
    Path("services.toml").write_text(SERVICES)
