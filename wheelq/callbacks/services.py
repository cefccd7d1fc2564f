"""The register of receivers: `config/services.toml`. No other receiver is ever called.

    [services.billing]                      a job names the service and a path under its URL
    url = "https://billing.example.com/hooks"
    secrets = ["whsec_…"]                   the first signs, and so do the others while keys are rotated

    [urls]                                  a job names a whole URL, if it begins with one of these
    allow = ["https://*.partner.example", "https://hooks.example.net/in/"]

Raises `ConfigurationError`, which names the wrong entry, at the start and not at the first callback.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any, Self

from wheelq.callbacks.addresses import Network, networks, parse_url
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.job import Job
from wheelq.model.retry import Retry
from wheelq.settings.whole import read_toml

TIMEOUT_S = 10.0
DEFAULT_RETRY = Retry(max_attempts=24, base=5.0, cap=3_600.0)
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Terms:
    """How a receiver is called."""

    secrets: tuple[str, ...] = ()
    """Standard Webhooks secrets (whsec_ and base64). The newest first; a receiver accepts any that it knows."""
    timeout: float | None = None
    """Seconds for the whole request, from connecting to the last byte of the answer's head; None: `TIMEOUT_S`, or as
    the job says."""
    concurrency: int = 20
    """The most requests at the same time."""
    max_rate: float = 0.0
    """The most requests a second; 0: no limit."""
    retry: Retry = DEFAULT_RETRY
    """Attempts and pauses; the default gives up after about half a day, or as the job says."""
    allowed: tuple[Network, ...] = ()
    """Networks that may be connected to although they are not public."""
    may_be_plain: bool = False
    """Whether http:// is allowed."""

    def timeout_of(self, job: Job) -> float:
        """Returns the seconds for the request of a job: its own limit, but at most what is stated here."""
        if self.timeout is None:
            return TIMEOUT_S if job.timeout is None else job.timeout
        return self.timeout if job.timeout is None else min(self.timeout, job.timeout)

    def retry_of(self, job: Job) -> Retry:
        """Returns the attempts and pauses of a job: its own number of attempts, but at most what is stated here."""
        if self.retry is DEFAULT_RETRY and job.max_attempts is not None:
            return replace(self.retry, max_attempts=job.max_attempts)
        return self.retry.for_job(job.max_attempts)


@dataclass(frozen=True, slots=True)
class CallbackService:
    """A registered receiver."""

    name: str
    url: str
    terms: Terms


@dataclass(frozen=True, slots=True)
class Services:
    """All receivers that may be called."""

    by_name: Mapping[str, CallbackService] = field(default_factory=dict)
    url_patterns: tuple[str, ...] = ()
    url_terms: Terms = Terms()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads the register from a TOML file. Raises: ConfigurationError."""
        table = read_toml(path, "services")
        try:
            return cls.read(table)
        except InvalidInput as error:
            raise ConfigurationError(f"{path}: {error}") from error

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Reads the register from a parsed file. Raises: InvalidInput."""
        _only(table, ("services", "urls"), "the file")
        named = {name: _service(name, what) for name, what in _table(table, "services").items()}
        urls = dict(_table(table, "urls"))
        patterns = urls.pop("allow", [])
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise InvalidInput("urls.allow", 'must be a list of URLs: ["https://*.example.com"]')
        for pattern in patterns:
            _check_pattern(pattern)
        return cls(named, tuple(patterns), _terms(urls, "urls"))

    def allows(self, url: str) -> bool:
        """Whether the operator lets jobs name this URL."""
        return any(_fits(url, pattern) for pattern in self.url_patterns)


def _fits(url: str, pattern: str) -> bool:
    given, allowed = parse_url(url, "url"), parse_url(pattern.replace("*", "any"), "urls.allow")
    host = (allowed.hostname or "") if "*" not in pattern else (pattern.split("://")[1].split("/")[0].split(":")[0])
    below = f"{allowed.path.rstrip('/')}/"
    return (
        given.scheme == allowed.scheme
        and (given.port or DEFAULT_PORTS[given.scheme]) == (allowed.port or DEFAULT_PORTS[allowed.scheme])
        and fnmatchcase(given.hostname or "", host.lower())
        and (given.path == allowed.path or (given.path or "/").startswith(below))
    )


def _check_pattern(pattern: str) -> None:
    """Check that a * stands for part of a host name. Raises: InvalidInput."""
    parse_url(pattern.replace("*", "any"), "urls.allow")
    if "*" in pattern.partition("://")[2].partition("/")[2]:
        raise InvalidInput("urls.allow", f"{pattern!r} has a * in its path: all paths that begin like it are allowed")
    if "?" in pattern:
        raise InvalidInput("urls.allow", f"{pattern!r} must not have a query")


def _service(name: str, what: Any) -> CallbackService:
    place = f"services.{name}"
    if not isinstance(what, dict):
        raise InvalidInput(place, "must be a table")
    rest = dict(what)
    url = rest.pop("url", None)
    parts = parse_url(url, f"{place}.url") if url is not None else None
    if parts is None or parts.query:
        raise InvalidInput(f"{place}.url", "must be the URL under which this service has its paths, without a query")
    terms = _terms(rest, place)
    if parts.scheme == "http" and not terms.may_be_plain:
        raise InvalidInput(f"{place}.url", "must begin with https://, or set may_be_plain = true")
    return CallbackService(name, url.rstrip("/"), terms)


def _terms(table: Mapping[str, Any], place: str) -> Terms:
    known = {item.name for item in fields(Terms)} - {"allowed"}
    _only(table, (*known, "secrets_env", "networks"), place)
    rest = dict(table)
    secrets = [*rest.pop("secrets", []), *_from_environment(rest.pop("secrets_env", ""), place)]
    for secret in secrets:
        _check_secret(secret, f"{place}.secrets")
    found: dict[str, Any] = {"secrets": tuple(secrets), "allowed": networks(rest.pop("networks", []), place)}
    if "retry" in rest:
        try:
            found["retry"] = Retry(**rest.pop("retry"))
        except (TypeError, InvalidInput) as error:
            raise InvalidInput(f"{place}.retry", str(error)) from error
    for name, kind, lowest in (("timeout", float, 0.001), ("concurrency", int, 1), ("max_rate", float, 0.0)):
        if name in rest:
            value = rest.pop(name)
            if isinstance(value, bool) or not isinstance(value, (int, kind)) or not value >= lowest:
                raise InvalidInput(f"{place}.{name}", f"must be a number from {lowest}, not {value!r}")
            found[name] = kind(value)
    found |= rest
    if not isinstance(found.get("may_be_plain", False), bool):
        raise InvalidInput(f"{place}.may_be_plain", "must be true or false")
    return Terms(**found)


def _from_environment(name: str, place: str) -> list[str]:
    if not name:
        return []
    found = os.environ.get(name, "").split()
    if not found:
        raise InvalidInput(f"{place}.secrets_env", f"the environment has no {name}: secrets, separated by spaces")
    return found


def _check_secret(secret: Any, place: str) -> None:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (AttributeError, ValueError):
        key = b""
    if len(key) < 24:
        raise InvalidInput(place, "must be whsec_ and at least 24 bytes in base64 (wheelq secret makes one)")


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise InvalidInput(name, f"must be a table ([{name}])")
    return found


def _only(table: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    if unknown := sorted(set(table) - set(known)):
        raise InvalidInput(place, f"unknown {unknown[0]!r}; known here: {', '.join(sorted(known))}")
