"""The programs of the guide go on where their surroundings fail: a server that is away, payloads that are odd."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from loadtest.servers.nodes import free_port
from tests.waiting import PATIENCE, eventually
from wheelq import guide
from wheelq.callbacks.caller import body_of
from wheelq.model.job import Job

Answers = Callable[[str, Any], tuple[int, Any]]


def written(directory: Path, page: str, name: str, port: str, own: int) -> Path:
    """Returns the program of a page, as a file that uses another port."""
    found = re.search(rf"<!-- file: {re.escape(name)} -->\n```\w+\n(.*?)```", guide.source(page), re.DOTALL)
    assert found is not None
    path = directory / name
    path.write_text(found[1].replace(port, str(own)))
    return path


@contextmanager
def running(directory: Path, *command: str | Path) -> Iterator[Callable[[], str]]:
    """Runs a program, which must not end by itself; yields what tells its output so far."""
    log = directory / "log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield log.read_text
            assert process.poll() is None, log.read_text()
        finally:
            process.kill()


@contextmanager
def answering(answers: Answers) -> Iterator[int]:
    """Answers POSTs at a port: `answers(what, body)` returns status and body; status 0 breaks the connection off."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, answer = answers(self.path.rpartition("/")[2], body)
            if status:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_consumer_for_node_outlives_a_server_that_is_away(tmp_path: Path) -> None:
    """A done job whose acknowledgement is lost is not reported as failed; it comes again."""
    ada, odd = {"handle": "1", "payload": {"to": "ada"}}, {"handle": "2", "payload": None}
    script = {
        "lease": [(503, {}), (0, {}), (200, {"jobs": [ada]}), (200, {"jobs": [ada, odd]})],
        "ack": [(504, {}), (200, {})],
        "fail": [(200, {})],
    }
    asked: list[tuple[str, list[str]]] = []

    def answers(what: str, body: Any) -> tuple[int, Any]:
        asked.append((what, body.get("handles")))
        return script[what].pop(0) if script[what] else (503, {})

    with answering(answers) as port:
        program = written(tmp_path, "http", "consumer.mjs", "7380", port)
        with running(tmp_path, "node", program) as said:
            assert eventually(lambda: asked.count(("lease", None)) > 5), said()
    assert [each for each in asked if each[0] != "lease"] == [("ack", ["1"]), ("ack", ["1"]), ("fail", ["2"])]


NODE = pytest.param(
    "node",
    "receiver.mjs",
    ("<Buffer ff 00>", "<Buffer d7 6d f8>", "null"),
    marks=pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
)


@pytest.mark.parametrize(
    ("interpreter", "name", "shown"),
    [(sys.executable, "receiver.py", (r"b'\xff\x00'", r"b'\xd7m\xf8'", "None")), NODE],
    ids=["python", "node"],
)
def test_the_receiver_takes_signed_json_and_bytes_and_nothing_else(
    tmp_path: Path, interpreter: str, name: str, shown: tuple[str, ...]
) -> None:
    port = free_port()
    program = written(tmp_path, "callbacks", name, "7381", port)
    secret = re.findall(r"whsec_\w+=*", program.read_text())[0]

    def posted(payload: Any, body: bytes | None = None) -> int | None:
        content_type, sent = body_of(Job("k", "invoices", payload, 0, 1, "0-1", 0.0, {}, False))
        now = datetime.now(UTC)
        headers = {
            "content-type": content_type,
            "webhook-id": "msg_1",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(secret).sign("msg_1", now, sent.decode()),
        }
        try:
            return httpx.post(
                f"http://127.0.0.1:{port}/due", content=body or sent, headers=headers, timeout=PATIENCE
            ).status_code
        except httpx.TransportError:
            return None

    with running(tmp_path, interpreter, program) as said:
        assert eventually(lambda: posted({"id": 42}) == 204), said()
        for payload, one in zip((b"\xff\x00", b"\xd7m\xf8", None), shown, strict=True):
            assert posted(payload) == 204, payload
            assert eventually(lambda one=one: f"/due msg_1 {one}" in said()), said()  # type: ignore[misc]
        assert posted({"id": 42}, b'{"id": 43}') == 401, "another body than was signed"
        assert posted({"id": 42}, b"\xff\xfe") == 401, "no text at all"
