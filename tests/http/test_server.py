"""`wheelq server` and `wheelq keys` as processes: the document holds, keys work, a stop is in good order."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running, stopped_at_the_end, wheelq
from tests.waiting import PATIENCE, eventually
from wheelq.embedded import EmbeddedServer

JOBS = "/v1/topics/orders/jobs"


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    yield from stopped_at_the_end([])


@pytest.fixture
def port() -> int:
    return free_port()


def serve(start: Callable[..., Running], directory: Path, url: str, port: int, *arguments: object) -> Running:
    running = start(directory, "server", "--port", port, *arguments, url=url)
    running.wait_for("Uvicorn running")
    return running


def test_the_address_is_printed_once_the_server_listens(
    start: Callable[..., Running], url: str, port: int, tmp_path: Path
) -> None:
    first = serve(start, tmp_path, url, port)
    first.wait_for(f"server listens on http://127.0.0.1:{port}; its manual is at")
    second = start(tmp_path, "server", "--port", port, url=url)
    assert second.end() != 0
    assert "address already in use" in second.said
    assert "listens" not in second.said


CASES = int(os.environ.get("WHEELQ_CASES", "30"))
"""How many examples of each route: 30 are above 2,000 requests in all."""


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_server_does_what_its_document_says(
    private_server: Callable[..., EmbeddedServer],
    start: Callable[..., Running],
    tmp_path: Path,
    port: int,
) -> None:
    """schemathesis, all its checks, by a key that may do everything: it finds nothing.

    Leases wait for a tenth of a second only here, or it would take a quarter of an hour.
    """
    url = private_server(appendonly=False).url
    token = wheelq("keys", "create", "tester", "--scope", "*:*", url=url).out.strip()
    (tmp_path / "wheelq.toml").write_text('[server]\naccess = "keys"\nmax_wait_ms = 100\n')
    serve(start, tmp_path, url, port, "--config", tmp_path / "wheelq.toml")
    config = Path(__file__).with_name("schemathesis.toml")
    command = [
        "schemathesis",
        "--config-file",
        str(config),
        "run",
        f"http://127.0.0.1:{port}/openapi.json",
        "--checks",
        "all",
    ]
    command += [
        "--max-examples",
        str(CASES),
        "--seed",
        "7",
        "--request-timeout",
        "60",
        "--max-response-time",
        "50",
        "-H",
        f"Authorization: Bearer {token}",
    ]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:]


@pytest.mark.parametrize("expires", ["-5", "0", "9999999d"])
def test_a_key_that_could_never_be_used_or_listed_is_not_made(expires: str) -> None:
    made = wheelq("keys", "create", "shop", "--scope", "*:*", "--expires", expires, url="redis://127.0.0.1:1")
    assert made.code == 2
    assert made.err.startswith(f"expires: '{expires}' does not end between now and the year 9999; leave it out")


def test_keys_are_made_listed_rotated_and_revoked(
    private_server: Callable[..., EmbeddedServer], start: Callable[..., Running], tmp_path: Path, port: int
) -> None:
    url = private_server(appendonly=False).url
    token = wheelq("keys", "create", "shop", "--scope", "schedule:orders", "--expires", "90d", url=url).out.strip()
    (listed,) = wheelq("keys", "list", "--json", url=url).json
    assert (listed["name"], listed["scopes"]) == ("shop", "schedule:orders")
    assert token.split("_", 2)[2] not in str(listed)
    (tmp_path / "wheelq.toml").write_text('[server]\naccess = "keys"\nkeys_ms = 20\n')
    serve(start, tmp_path, url, port, "--config", tmp_path / "wheelq.toml")

    def status(token: str) -> int:
        headers = {"authorization": f"Bearer {token}"}
        return httpx.post(
            f"http://127.0.0.1:{port}{JOBS}", json={"delay": 60}, headers=headers, timeout=PATIENCE
        ).status_code

    assert status(token) == 201
    rotated = wheelq("keys", "rotate", listed["id"], "--keep", "0", "--json", url=url).json
    assert rotated["id"] == listed["id"]
    newer = rotated["token"]
    assert eventually(lambda: (status(token), status(newer)) == (401, 201))
    assert wheelq("keys", "revoke", listed["id"], url=url).code == 0
    assert eventually(lambda: status(newer) == 401)
    assert wheelq("keys", "revoke", listed["id"], url=url).code == 3


def test_beyond_loopback_it_refuses_all_requests_until_there_is_a_key_and_redis_may_be_away_meanwhile(
    private_server: Callable[..., EmbeddedServer], start: Callable[..., Running], tmp_path: Path, port: int
) -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}"
    running = serve(start, tmp_path, nowhere, port, "--host", "0.0.0.0")
    base = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{base}/healthz", timeout=PATIENCE).status_code == 200
    headers = {"authorization": "Bearer wq_a_b"}
    assert httpx.get(f"{base}{JOBS}", headers=headers, timeout=PATIENCE).status_code == 503
    running.wait_for("until the server is back")
    running.signal(signal.SIGTERM)
    assert running.end() == 0


def test_sigterm_lets_requests_under_way_finish_and_answers_those_that_wait(
    private_server: Callable[..., EmbeddedServer], start: Callable[..., Running], tmp_path: Path, port: int
) -> None:
    running = serve(start, tmp_path, private_server(appendonly=False).url, port)
    base = f"http://127.0.0.1:{port}"
    httpx.post(f"{base}{JOBS}", json={"delay": 3600}, timeout=PATIENCE)
    answers: list[int] = []

    def wait() -> None:
        answer = httpx.post(f"{base}/v1/topics/orders/groups/g/lease", json={"wait": 20}, timeout=PATIENCE)
        answers.append(answer.status_code)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ready = f"{base}/readyz"
    assert eventually(lambda: httpx.get(ready, timeout=PATIENCE).json()["redis"])
    running.signal(signal.SIGTERM)
    waiting.join(PATIENCE)
    assert running.end() == 0
    assert answers == [200] or not answers  # empty: the signal came before the request did
    assert "server has stopped" in running.said


def test_it_speaks_https(
    private_server: Callable[..., EmbeddedServer], start: Callable[..., Running], tmp_path: Path, port: int
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    (tmp_path / "wheelq.toml").write_text('[server]\ntls_cert = "cert.pem"\ntls_key = "key.pem"\n')
    url = private_server(appendonly=False).url
    running = serve(start, tmp_path, url, port, "--config", tmp_path / "wheelq.toml")
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    for _ in range(20):  # each on a connection of its own, whose first bytes may be there before the handshake begins
        answer = httpx.get(f"https://127.0.0.1:{port}/healthz", verify=trusted, timeout=PATIENCE)
        assert (answer.status_code, "strict-transport-security" in answer.headers) == (200, True)
    assert re.search(rf"https://127\.0\.0\.1:{port}/docs", running.said)
