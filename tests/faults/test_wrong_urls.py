"""Every mistake at connecting says what it is, and the URL that would work; no password is shown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.servers.sentinel import Watched
from tests.faces import Face
from wheelq import AsyncClient, Client, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.errors import (
    AuthenticationFailed,
    ConfigurationError,
    NotPermitted,
    TlsFailed,
    Unavailable,
    WheelqError,
    WrongDatabase,
    WrongServerKind,
    is_wrong_setup,
)
from wheelq.protocol.call import command
from wheelq.settings import ClientSettings, ConnectionSettings
from wheelq.transport import Address, Transport

Start = Callable[..., EmbeddedServer]

PATIENT = Settings(connection=ConnectionSettings(connect_timeout_ms=30_000))
QUICK = Settings(
    connection=ConnectionSettings(connect_timeout_ms=2_000, reply_timeout_ms=2_000),
    client=ClientSettings(replicated_timeout_ms=1_000),
)
"""A plain server waits for the rest of what it takes for a long request, so that TLS ends by one of these timeouts."""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server may answer later than the client looks for."""
    monkeypatch.setattr("wheelq.transport.probing.LOOK_S", 30.0)


async def said(url: str, kind: type[WheelqError] | tuple[type[WheelqError], ...], settings: Settings = PATIENT) -> str:
    """What both clients say of this URL; it is the same, and of this kind or one of these."""
    told = []
    for face in Face:
        with pytest.raises(kind) as raised:
            async with face.connect(url, settings) as client:
                await client.topics()
        told.append((type(raised.value), str(raised.value)))
    [(known, words)] = set(told)
    assert known in (kind if isinstance(kind, tuple) else (kind,))
    assert "secret" not in words
    return words


@pytest.fixture
def locked(private_server: Start) -> str:
    """Host and port of a server whose password is "secret"."""
    return private_server(port=0, password="secret", appendonly=False).url.rpartition("@")[2].rstrip("/0")


@pytest.fixture
def open_to_all(private_server: Start) -> str:
    """Host and port of a server without a password."""
    return private_server(port=0, appendonly=False).url.rpartition("://")[2].rstrip("/0")


# Login


@pytest.mark.every_server
async def test_no_password(locked: str) -> None:
    words = await said(f"redis://{locked}/0", AuthenticationFailed)
    assert f"the server wants a password: write redis://:PASSWORD@{locked}/0, or set WHEELQ_PASSWORD" in words
    words = await said(f"redis://me@{locked}/0", AuthenticationFailed)
    assert f"write redis://me:PASSWORD@{locked}/0" in words


@pytest.mark.every_server
@pytest.mark.parametrize("user", ["", "nobody"])
async def test_a_wrong_user_or_password(locked: str, user: str) -> None:
    words = await said(f"redis://{user}:not-secret@{locked}/0", AuthenticationFailed)
    assert f"check user and password in the URL, redis://{user}:PASSWORD@{locked}/0, or WHEELQ_USERNAME" in words


@pytest.mark.every_server
async def test_a_wrong_password_of_the_environment_is_told_too(locked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = await said(f"redis://{locked}", AuthenticationFailed, Settings(password="not-secret"))
    assert f"check user and password in the URL, redis://:PASSWORD@{locked}, or WHEELQ_USERNAME and" in words


@pytest.mark.every_server
async def test_a_password_for_a_server_that_has_none(open_to_all: str) -> None:
    words = await said(f"redis://:secret@{open_to_all}/0", AuthenticationFailed)
    assert words.endswith(f"the server has no password: write redis://{open_to_all}/0")


# TLS


@pytest.mark.parametrize("login", ["", ":secret@"])
async def test_tls_to_a_plain_port(open_to_all: str, login: str) -> None:
    url = f"rediss://{login}{open_to_all}/0"
    shown = url.replace("secret", "***")
    words = await said(url, TlsFailed, QUICK)
    assert words == f"{shown} speaks no TLS: write {shown.replace('rediss', 'redis')}"


async def test_tls_to_a_plain_port_that_wants_a_password(locked: str) -> None:
    words = await said(f"rediss://:secret@{locked}/0", TlsFailed, QUICK)
    assert words == f"rediss://:***@{locked}/0 speaks no TLS: write redis://:***@{locked}/0"


@pytest.mark.every_server
@pytest.mark.parametrize("login", ["", ":secret@"])
async def test_plain_to_a_tls_port(tls_url: str, login: str) -> None:
    place = tls_url.rpartition("@")[2]
    shown = login.replace("secret", "***") + place
    words = await said(f"redis://{login}{place}/0", TlsFailed)
    assert words == f"redis://{shown}/0 speaks TLS: write rediss://{shown}/0"


@pytest.mark.every_server  # some are built without TLS
@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
async def test_plain_to_the_tls_port_of_a_cluster_or_sentinel(tls_url: str, kind: str) -> None:
    place = tls_url.rpartition("@")[2]
    service = "/mymaster" if kind == "sentinel" else ""
    words = await said(f"redis+{kind}://{place}{service}", TlsFailed)
    assert words.endswith(f"speaks TLS: write rediss+{kind}://{place}{service}")


@pytest.mark.parametrize(("url", "other", "what"), [("redis", "rediss", "TLS"), ("rediss", "redis", "no TLS")])
async def test_a_port_that_closes_every_connection_does_not_show_what_it_speaks(
    url: str, other: str, what: str
) -> None:
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as closing:
        place = f"127.0.0.1:{closing.sockets[0].getsockname()[1]}"
        advice = f"; if the server speaks {what} there, write {other}://{place}/0"
        for face in Face:
            async with face.connect(f"{url}://{place}/0") as client:
                with pytest.raises(Unavailable, match=re.escape(advice)):
                    await client.topics()


@pytest.mark.every_server  # some are built without TLS
async def test_tls_without_the_authority_of_the_server(tls_url: str) -> None:
    shown = f"rediss://:***@{tls_url.rpartition('@')[2]}"
    words = await said(tls_url, TlsFailed)
    assert words.endswith(f"write {shown}?ssl_ca_certs=/path/ca.pem with the authority of the server's certificate")


@pytest.mark.every_server  # some are built without TLS
async def test_a_certificate_file_that_is_not_there(tls_url: str, tmp_path: Path) -> None:
    words = await said(f"{tls_url}?ssl_ca_certs={tmp_path}/none.pem", Unavailable)
    assert words.endswith("a file that the URL names (ssl_ca_certs, ssl_certfile, ssl_keyfile) does not exist")


# Database, Sentinel, cluster


@pytest.mark.every_server
async def test_a_database_number_that_the_server_does_not_have(locked: str) -> None:
    words = await said(f"redis://:secret@{locked}/99", WrongDatabase)
    assert f"check the number at the end of the URL: write redis://:***@{locked}/0;" in words


async def test_the_url_of_sentinels_for_a_plain_server(open_to_all: str) -> None:
    words = await said(f"redis+sentinel://{open_to_all}/mymaster", WrongServerKind)
    assert words.endswith(f"{open_to_all} is not a sentinel: for a single server write redis://{open_to_all}/0")


async def test_the_url_of_sentinels_for_a_plain_server_with_a_password(locked: str) -> None:
    words = await said(f"redis+sentinel://:secret@{locked}/mymaster", (AuthenticationFailed, WrongServerKind))
    if "is not a sentinel" in words:  # some servers look at the command before they look at the login
        assert words.endswith(f"for a single server write redis://:***@{locked}/0")
        return
    assert f"redis+sentinel://:***@{locked}/mymaster?sentinel_password=PASSWORD" in words
    assert words.endswith(f"if it is the server itself, write redis://:PASSWORD@{locked}/0")


@pytest.mark.parametrize("url", ["redis://{}/0", "redis+cluster://{}"])
async def test_the_url_of_a_plain_server_or_a_cluster_for_a_sentinel(server_binary: Path, url: str) -> None:
    with Watched(server_binary) as watched:
        place = re.split("[/,]", watched.url.partition("://")[2])[0]
        told = await said(url.format(place), WrongServerKind)
    service = f"redis+sentinel://{place}/SERVICE, where SERVICE is the name of the service it watches"
    assert told.startswith(f"{place} is a sentinel: write {service}")


async def test_the_url_of_a_cluster_for_a_single_server(open_to_all: str) -> None:
    words = await said(f"redis+cluster://{open_to_all}", WrongServerKind)
    assert words.endswith(f"{open_to_all} is not part of a cluster: for a single server write redis://{open_to_all}/0")


def test_a_server_of_another_kind_is_a_wrong_setup() -> None:
    assert is_wrong_setup(WrongServerKind())


# Prefix and names


@pytest.mark.every_server
async def test_a_prefix_that_the_user_may_not_use(locked: str) -> None:
    transport = Transport(Address(f"redis://:secret@{locked}"))
    transport.send(command("ACL", "SETUSER", "shop", "on", ">secret", "+@all", "~shop:*", read=bool))
    transport.close()
    words = await said(f"redis://shop:secret@{locked}", NotPermitted)
    assert words.startswith(
        "HGETALL was not permitted: the user's ACL lacks the keys that begin with the prefix (~wheelq:*; "
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("reddis://host:1/0", "'reddis://host:1/0' is not a server URL: did you mean redis://host:1/0?"),
        ("rediss+sentinal://h/s", "'rediss+sentinal://h/s' is not a server URL: did you mean rediss+sentinel://h/s?"),
        ("host:6379", "'host:6379' is not a server URL: did you mean redis://host:6379?"),
        ("reddis://:secret@host", "'reddis://:***@host' is not a server URL: did you mean redis://:***@host?"),
        ("redis://host/orders", "'redis://host/orders' names the database 'orders': write its number, as in /0"),
        (
            "rediss://host?ssl_ca_cert=x",
            "the option ssl_ca_cert of 'rediss://host' does not exist: did you mean ssl_ca_certs or ssl_certfile?",
        ),
        ("redis://host?ssl_ca_certs=x", "the option ssl_ca_certs of 'redis://host' is for TLS: write rediss://"),
        ("redis://host:port", "'redis://host:port' is not a server URL (Port could not be cast"),
    ],
)
def test_a_url_with_a_typing_error(url: str, words: str) -> None:
    for connect in (Client.connect, AsyncClient.connect):
        with pytest.raises(ConfigurationError) as caught:
            connect(url)
        assert str(caught.value).startswith(words)
