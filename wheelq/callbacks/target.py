"""The receiver that a job names, and its address. Pure.

A target travels with its job in one header, as JSON: {"service": "billing", "path": "/paid"} or {"url": "https://…"}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote

from wheelq.callbacks.addresses import URL_CHARS, parse_url
from wheelq.callbacks.services import DEFAULT_PORTS, Services, Terms
from wheelq.errors import InvalidInput
from wheelq.protocol.calls.worker import TARGET

HEADER = TARGET
_PATH = re.compile(r"/[!-~]*\Z")


@dataclass(frozen=True, slots=True)
class Place:
    """The URL to send to, and the terms."""

    destination: str
    """The name of the receiver: all targets of one service, or of one host, share it."""
    url: str
    terms: Terms

    @property
    def shown(self) -> str:
        """The URL for logs: without its query, which may hold credentials."""
        return self.url.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Target:
    """A receiver, as a job names it: a service and a path, or a URL."""

    service: str = ""
    path: str = ""
    url: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Target | None:
        """Returns the target in a job's headers; None if it has none. Raises: InvalidInput."""
        written = headers.get(HEADER)
        if written is None:
            return None
        try:
            return cls.read(json.loads(written))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(HEADER, f"is not readable: {error}") from error

    @classmethod
    def read(cls, what: Any) -> Target:
        """Parses a target as callers write it. Raises: InvalidInput."""
        if isinstance(what, dict) and all(isinstance(value, str) for value in what.values()):
            if set(what) == {"url"}:
                return cls(url=what["url"])
            if "service" in what and set(what) <= {"service", "path"}:
                return cls(service=what["service"], path=what.get("path", ""))
        raise InvalidInput("target", 'must be {"service": NAME, "path": "/…"} or {"url": "https://…"}')

    def header(self) -> str:
        return json.dumps({"url": self.url} if self.url else {"service": self.service, "path": self.path})

    def place(self, services: Services) -> Place:
        """Returns the URL and the terms of this target. Raises: InvalidInput, if it may not be called."""
        if self.url:
            return self._url(services)
        service = services.by_name.get(self.service)
        if service is None:
            known = ", ".join(sorted(services.by_name)) or "none"
            raise InvalidInput("target.service", f"{self.service!r} is not registered; there are: {known}")
        url = service.url + (check_path(self.path) if self.path else "")
        before, after = parse_url(service.url, "target"), parse_url(url, "target.path")
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            raise InvalidInput("target.path", "must not lead to another host")
        return Place(service.name, url, service.terms)

    def _url(self, services: Services) -> Place:
        parts = parse_url(self.url, "target.url")
        if not services.allows(self.url):
            raise InvalidInput("target.url", f"{parts.scheme}://{parts.netloc} is not among the URLs that are allowed")
        if parts.scheme == "http" and not services.url_terms.may_be_plain:
            raise InvalidInput("target.url", "must begin with https://")
        check_path(parts.path or "/")
        return Place(_host(parts), self.url, services.url_terms)


def _host(parts: SplitResult) -> str:
    """Returns one name for all ways to write a host: without the port that its scheme has anyway."""
    host = (parts.hostname or "").removesuffix(".")
    shown = f"[{host}]" if ":" in host else host
    return shown if parts.port in (None, DEFAULT_PORTS[parts.scheme]) else f"{shown}:{parts.port}"


def check_path(path: str) -> str:
    """Returns the path if it stays below its base however a receiver reads it. Raises: InvalidInput."""
    if not _PATH.match(path) or len(path) > URL_CHARS:
        raise InvalidInput("target.path", "must begin with / and be printable ASCII without spaces")
    if "#" in path or "\\" in path:
        raise InvalidInput("target.path", "must not contain # or a backslash")
    read, before = path.partition("?")[0], ""
    while read != before:  # proxies and receivers may decode it one after the other
        read, before = unquote(read), read
    # Some receivers cut parameters off (`..;a=b`) before they read the path.
    parts = [part.partition(";")[0] for part in read.split("/")]
    if read.startswith("//") or "\\" in read or any(part in (".", "..") for part in parts):
        raise InvalidInput("target.path", "must not contain //, . or .. as a part of it")
    return path
