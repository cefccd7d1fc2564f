"""Suggests which URL to write instead of one that does not work. Pure; no suggestion shows a password."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from enum import Enum, auto
from urllib.parse import urlsplit

from redis import exceptions as redis_errors

from wheelq import errors
from wheelq.transport.address import Address

LOGIN = "WHEELQ_USERNAME and WHEELQ_PASSWORD"
_CLOSED = (redis_errors.ConnectionError, ConnectionResetError, BrokenPipeError, EOFError)


class Doubt(Enum):
    """What may be wrong with the URL when no connection could be made."""

    TLS_URL = auto()
    """The URL asks for TLS, and the port may speak none."""
    PLAIN_URL = auto()
    """The URL asks for no TLS, and the port may want it."""


def instead(kind: type[errors.Refused], words: str, place: Address) -> str | None:
    """Returns what to write so that the server does not refuse with `words`; None, if the URL is not the cause."""
    if kind is errors.AuthenticationFailed:
        return _login(words, place)
    if kind is errors.WrongDatabase:
        first = f"{place.written}?db=0" if place.written.startswith("unix:") else _url(place, path="/0")
        return f"check the number at the end of the URL: write {first}; a cluster has database 0 only"
    if kind is errors.WrongServerKind:
        return _other_kind(words, place)
    return None


def _other_kind(words: str, place: Address) -> str:
    server = place.shown.rpartition("@")[2].rpartition("://")[2].partition("/")[0]
    parts = urlsplit(place.written)
    scheme, login = parts.scheme.partition("+")[0], "".join(parts.netloc.rpartition("@")[:2])
    if "is a sentinel" in words or ("unknown command" in words and not place.is_sentinel):
        there = f"{scheme}+sentinel://{login}{server}/SERVICE"
        return f"{server} is a sentinel: write {there}, where SERVICE is the name of the service it watches"
    what = "not a sentinel" if place.is_sentinel else "not part of a cluster"
    return f"{server} is {what}: for a single server write {scheme}://{login}{server}/0"


def doubt_of(error: BaseException, place: Address) -> Doubt | None:
    """Returns why this connection may have failed: one side speaks TLS and the other does not."""
    scheme = urlsplit(place.written).scheme
    if scheme.startswith("rediss"):
        explained = (FileNotFoundError, ssl.SSLCertVerificationError, ConnectionRefusedError, socket.gaierror)
        return None if any(cause_of(error, kind) for kind in explained) else Doubt.TLS_URL
    is_plain = scheme.startswith("redis") and isinstance(error, _CLOSED) and _was_closed(error)
    return Doubt.PLAIN_URL if is_plain else None


def tls_mismatch(place: Address, speaks_tls: bool) -> str:
    """Returns what is wrong and which URL works, once the port has shown whether it speaks TLS."""
    return f"{place.shown} speaks {'TLS' if speaks_tls else 'no TLS'}: write {_other_side(place)}"


def about_connecting(error: BaseException, place: Address) -> str:
    """Returns what to write after a connection failed and the port has not shown whether it speaks TLS."""
    if urlsplit(place.written).scheme.startswith("rediss"):
        if cause_of(error, FileNotFoundError):
            return "; a file that the URL names (ssl_ca_certs, ssl_certfile, ssl_keyfile) does not exist"
        if cause_of(error, ssl.SSLCertVerificationError):
            return f"; write {place.written}?ssl_ca_certs=/path/ca.pem with the authority of the server's certificate"
    match doubt_of(error, place):
        case Doubt.TLS_URL:
            return f"; if the server speaks no TLS there, write {_other_side(place)}"
        case Doubt.PLAIN_URL:
            return f"; if the server speaks TLS there, write {_other_side(place)}"
    return ""


def _other_side(place: Address) -> str:
    """The URL with TLS if it has none, and without if it has."""
    scheme = urlsplit(place.written).scheme
    return _url(place, scheme=f"redis{scheme[6:]}" if scheme.startswith("rediss") else f"rediss{scheme[5:]}")


def cause_of(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Returns the error, or the first of its causes, that is of this kind; None if none is."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _was_closed(error: BaseException) -> bool:
    kinds = (ConnectionResetError, EOFError)
    return "closed by server" in str(error) or any(cause_of(error, kind) for kind in kinds)


def _login(words: str, place: Address) -> str:
    if place.is_sentinel:
        return (
            f"the sentinel {place.shown} wants a password of its own: {place.written}?sentinel_password=PASSWORD; "
            f"if it is the server itself, write redis://:PASSWORD@{place.shown}/0"
        )
    if "without any password configured" in words:
        return f"the server has no password: write {_url(place, login='')}"
    if not place.has_password:
        return f"the server wants a password: write {_with_password(place)}, or set WHEELQ_PASSWORD"
    return f"check user and password in the URL, {_with_password(place)}, or {LOGIN}"


def _with_password(place: Address) -> str:
    user = urlsplit(place.written).username or ""
    return _url(place, login=f"{user}:PASSWORD@")


def _url(place: Address, *, scheme: str | None = None, login: str | None = None, path: str | None = None) -> str:
    """Returns the URL with some of its parts replaced."""
    parts = urlsplit(place.written)
    host = parts.netloc.rpartition("@")[2]
    changes: Mapping[str, str | None] = {
        "scheme": scheme,
        "netloc": None if login is None else f"{login}{host}",
        "path": path,
    }
    return parts._replace(**{name: value for name, value in changes.items() if value is not None}).geturl()
