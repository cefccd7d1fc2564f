"""A receiver of callbacks, as a process of its own: verifies each, notes it, and answers as it is told by its path.

/ok            200
/fail/N        500 to the first N attempts at a message, then 200
/status/S      S
/gate          200, once there is a file `open` beside the log
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvicorn
from standardwebhooks import Webhook

PORT, SECRET = int(sys.argv[1]), sys.argv[3]
LOG = open(sys.argv[2], "a", buffering=1)  # noqa: SIM115  # a line reaches the file before its answer the caller
GATE = Path(sys.argv[2]).with_name("open")
seen: Counter[str] = Counter()


async def receive(scope: dict[str, Any], read: Any, send: Any) -> None:
    """The ASGI application."""
    if scope["type"] != "http":
        return
    message = await read()
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    payload = Webhook(SECRET).verify(message["body"], headers)
    id = headers["webhook-id"]
    seen[id] += 1
    status = _status(scope["path"], seen[id])
    line = {
        "id": id,
        "job": headers["wheelq-job"],
        "attempt": int(headers["wheelq-attempt"]),
        "due_ms": int(headers["wheelq-due"]),
        "at_ms": time.time() * 1000,
        "payload": payload,
        "status": status,
    }
    LOG.write(json.dumps(line) + "\n")
    while scope["path"] == "/gate" and not GATE.exists():  # noqa: ASYNC110  # another process opens it
        await asyncio.sleep(0.02)
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _status(path: str, times: int) -> int:
    match path.split("/")[1:]:
        case ["fail", failures]:
            return 500 if times <= int(failures) else 200
        case ["status", status]:
            return int(status)
    return 200


class Server(uvicorn.Server):
    """Says when it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print("listening", flush=True)


if __name__ == "__main__":
    Server(uvicorn.Config(receive, host="127.0.0.1", port=PORT, log_level="error", lifespan="off")).run()
