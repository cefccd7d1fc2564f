"""API keys: `wq_ID_SECRET`. Redis stores the id, a digest of the secret, and the key's scopes.

A scope is `VERB:TOPIC`, both with `*` for any: `schedule:orders.*`, `consume:mail`, `*:*`. The digest is a plain
SHA-256: the secret has 192 random bits, so it cannot be guessed, and a slow hash would add no protection.

Pure: time is an argument. A rotated key has two digests for a while; the old one has an end.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from wheelq.errors import InvalidInput
from wheelq.model.checks import TOPIC_PATTERN

MARK = "wq"
_SCOPE = re.compile(r"(?P<verb>\*|[a-z]+):(?P<topic>[A-Za-z0-9._*-]{1,100})")


class Verb(StrEnum):
    """What a key may be allowed to do."""

    READ = "read"
    """Look at jobs, topics and counts. What belongs to no topic (receivers, the outbox) needs `read:*`."""
    SCHEDULE = "schedule"
    """Make jobs."""
    CHANGE = "change"
    """Move, replace, cancel and run jobs that wait."""
    CONSUME = "consume"
    """Lease due jobs, and report their outcomes."""
    MANAGE = "manage"
    """Change topics; manage dead and recurring jobs."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key as it is stored."""

    id: str
    name: str
    """Its name, for people."""
    digests: tuple[tuple[bytes, int], ...]
    """The SHA-256 of each valid secret, and its end (ms); 0: as long as the key lives."""
    scopes: tuple[str, ...]
    created_ms: int
    expires_ms: int = 0
    """When it ends; 0: never."""

    def is_opened_by(self, secret: str, now_ms: int) -> bool:
        """Whether this secret opens it now. Takes the same time whatever is wrong with the secret."""
        digest = _digest(secret)
        opened = False
        for known, until_ms in self.digests:
            opened |= hmac.compare_digest(known, digest) and (not until_ms or now_ms < until_ms)
        return opened and self.is_alive(now_ms)

    def is_alive(self, now_ms: int) -> bool:
        """Whether the key has not expired."""
        return not self.expires_ms or now_ms < self.expires_ms

    def rotated(self, now_ms: int, kept_ms: int) -> tuple[ApiKey, str]:
        """Returns the key with a new secret, and its token; the present secret works for `kept_ms` more."""
        secret = _secret()
        former = tuple((digest, now_ms + kept_ms) for digest, until_ms in self.digests if not until_ms and kept_ms)
        return replace(self, digests=((_digest(secret), 0), *former)), _token(self.id, secret)

    def stored(self) -> dict[str, Any]:
        """Returns it in a form that msgpack can hold."""
        return {
            "name": self.name,
            "digests": [list(pair) for pair in self.digests],
            "scopes": list(self.scopes),
            "created_ms": self.created_ms,
            "expires_ms": self.expires_ms,
        }

    @classmethod
    def read(cls, id: str, stored: dict[str, Any]) -> ApiKey:
        """Returns the key from its stored form, which `protocol.calls.access` has checked."""
        digests = tuple((bytes(digest), int(until_ms)) for digest, until_ms in stored["digests"])
        return cls(
            id,
            stored["name"],
            digests,
            tuple(stored["scopes"]),
            stored.get("created_ms", 0),
            stored.get("expires_ms", 0),
        )


def new_key(name: str, scopes: tuple[str, ...], now_ms: int, expires_ms: int = 0) -> tuple[ApiKey, str]:
    """Returns a new key, and its token, which is shown once and stored nowhere. Raises: InvalidInput."""
    id, secret = secrets.token_hex(5), _secret()
    checked = tuple(check_scope(scope) for scope in scopes)
    if not checked:
        raise InvalidInput("scopes", "give at least one, such as schedule:orders.* or *:*")
    return ApiKey(id, name, ((_digest(secret), 0),), checked, now_ms, expires_ms), _token(id, secret)


def check_scope(scope: str) -> str:
    """Returns the scope if it is valid. Raises: InvalidInput."""
    found = _SCOPE.fullmatch(scope)
    if found is None or found["verb"] not in ("*", *Verb):
        raise InvalidInput("scope", f"{scope!r} must be VERB:TOPIC, the verb one of *, {', '.join(Verb)}")
    return scope


def parse_token(token: str) -> tuple[str, str] | None:
    """Returns key id and secret; None if it is not a token."""
    parts = token.split("_", 2)
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == MARK else None


def allows(scopes: tuple[str, ...], verb: Verb, topic: str | None) -> bool:
    """Whether these scopes permit this with the topic; None: with any topic."""
    if topic is not None and not TOPIC_PATTERN.fullmatch(topic):
        return _allows.__wrapped__(scopes, verb, topic)  # callers may send any text, and must not fill the cache
    return _allows(scopes, verb, topic)


def allows_all(scopes: tuple[str, ...], verb: Verb) -> bool:
    """Whether these scopes permit this with every topic."""
    return any(scope in ("*:*", f"{verb}:*") for scope in scopes)


@lru_cache(maxsize=10_000)
def _allows(scopes: tuple[str, ...], verb: Verb, topic: str | None) -> bool:
    for scope in scopes:
        allowed, _, pattern = scope.partition(":")
        if allowed in ("*", verb) and (topic is None or fnmatchcase(topic, pattern)):
            return True
    return False


def _secret() -> str:
    return secrets.token_urlsafe(24)


def _token(id: str, secret: str) -> str:
    return f"{MARK}_{id}_{secret}"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
