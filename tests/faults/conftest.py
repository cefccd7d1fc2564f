"""Fixtures of the tests of faults."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis
import trustme

from loadtest.servers.nodes import free_port
from tests.running import running
from wheelq import AsyncClient, Client, Scheduler, Settings
from wheelq.base.clock import ManualClock
from wheelq.embedded import EmbeddedServer
from wheelq.errors import ConfigurationError
from wheelq.transport import Address, AsyncTransport


@pytest.fixture
def prefix() -> str:
    """A wheelq of its own, for tests that run schedulers and workers: they serve all topics of one."""
    return f"faults-{secrets.token_hex(6)}"


@pytest.fixture
def settings(prefix: str) -> Settings:
    return Settings(prefix=prefix)


@pytest.fixture
async def scheduler(url: str, settings: Settings) -> AsyncIterator[Scheduler]:
    """A scheduler that runs."""
    scheduler = Scheduler.connect(url, settings)
    async with running(scheduler):
        yield scheduler


@pytest.fixture
def client(url: str, settings: Settings) -> Iterator[Client]:
    with Client.connect(url, settings) as client:
        yield client


@pytest.fixture
async def aclient(url: str, settings: Settings) -> AsyncIterator[AsyncClient]:
    async with AsyncClient.connect(url, settings) as client:
        yield client


@pytest.fixture
async def transport(url: str) -> AsyncIterator[AsyncTransport]:
    transport = AsyncTransport(Address(url))
    yield transport
    await transport.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url, decode_responses=False) as connection:
        yield connection


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_url(private_server: Callable[..., EmbeddedServer], tmp_path: Path, authority: trustme.CA) -> str:
    """A server that speaks TLS on a port of 127.0.0.1, without the option that names the authority."""
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    port = free_port()
    options = {
        "tls-port": str(port),
        "tls-cert-file": str(tmp_path / "server.crt"),
        "tls-key-file": str(tmp_path / "server.key"),
        "tls-ca-cert-file": str(tmp_path / "ca.pem"),
        "tls-auth-clients": "no",
    }
    try:
        private_server(password="p@ss", port=0, options=options)
    except ConfigurationError as error:
        if "Bad directive" in str(error) or "TLS support" in str(error):
            pytest.skip("this server was built without TLS")
        raise
    return f"rediss://:p%40ss@127.0.0.1:{port}"
