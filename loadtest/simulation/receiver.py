"""`Receiver`: the receiver of callbacks, a listener in the simulated network that speaks a little HTTP/1.1.

The body of a request is a job's payload: it says how long the answer takes, how often the receiver fails, and how.
"""

from __future__ import annotations

import json
from urllib.parse import unquote

from loadtest.simulation.ledger import Ledger, Run
from loadtest.simulation.network import Link

HOST, PORT = "10.0.0.9", 80
ADDRESS = f"{HOST}:{PORT}"
NAME = "receiver"


class Receiver:
    """Accepts connections."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.is_away = False

    def accept(self, link: Link) -> Conversation | None:
        """Returns a new conversation; None while the receiver is away."""
        return None if self.is_away else Conversation(self, link)


class Conversation:
    """One connection with its requests, one after another."""

    def __init__(self, receiver: Receiver, link: Link) -> None:
        self._receiver, self._link = receiver, link
        self._data = b""

    def receive(self, data: bytes) -> None:
        """Take data from the network."""
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        lines = (line.partition(":") for line in head.decode().split("\r\n")[1:])
        headers = {name.lower(): value.strip() for name, _, value in lines}
        length = int(headers.get("content-length", "0"))
        if end and len(body) >= length:
            self._data = body[length:]
            self._answer(headers, body[:length])

    def gone(self) -> None:
        """The connection has ended; requests in progress are still finished."""

    def _answer(self, headers: dict[str, str], body: bytes) -> None:
        ledger = self._receiver.ledger
        takes, fails, how = json.loads(body)
        id, attempt = unquote(headers["wheelq-job"]), int(headers["wheelq-attempt"])
        due_ms, server_us = int(headers["wheelq-due"]), ledger.server.clock_us()
        run = Run("callbacks", headers["wheelq-topic"], id, "", attempt, NAME, ledger.world.now, server_us, due_ms, id)
        ledger.runs.append(run)

        def finish() -> None:
            status, run.outcome = (200, "done")
            if attempt <= fails:
                status, run.outcome = (400, "Bury") if how == "bury" else (503, "ValueError")
            run.ended = ledger.world.now
            self._link.to_process(b"HTTP/1.1 %d Told\r\ncontent-length: 2\r\n\r\nok" % status)

        ledger.world.after(takes, finish)
