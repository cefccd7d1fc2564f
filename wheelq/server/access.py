"""Access control: API keys, what their scopes allow, the callers of requests, and how often they may call.

A key is `wq_ID_SECRET`. Redis stores the id, a digest of the secret, and the key's scopes. A scope is `VERB:TOPIC`,
both with `*` for any: `schedule:orders.*`, `consume:mail`, `*:*`. The digest is a plain SHA-256: the secret has 192
random bits, so it cannot be guessed, and a slow hash would add no protection. A rotated key has two digests for a
while; the old one has an end.

Keys are stored in Redis, not in a file: all server processes share them, a revoked key is gone everywhere within
seconds, and they are saved with the data. While Redis is away, the keys read last remain valid. All but `Keyring`,
which reads them, is pure; time is an argument.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from wheelq.base.clock import Clock
from wheelq.errors import AWAY, InvalidInput
from wheelq.model.checks import TOPIC_PATTERN
from wheelq.protocol.calls import access as calls
from wheelq.protocol.keys import Keys
from wheelq.server import problems
from wheelq.server.problems import Problem
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.server")

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
        return not self.expires_ms or now_ms < self.expires_ms

    def rotated(self, now_ms: int, kept_ms: int) -> tuple[ApiKey, str]:
        """Returns the key with a new secret, and its token; the present secret works for `kept_ms` more."""
        secret = _secret()
        former = tuple((digest, now_ms + kept_ms) for digest, until_ms in self.digests if not until_ms and kept_ms)
        return replace(self, digests=((_digest(secret), 0), *former)), _token(self.id, secret)

    def stored(self) -> dict[str, Any]:
        """Returns it in a form that msgpack can hold."""
        return {name: value for name, value in asdict(self).items() if name != "id"}

    @classmethod
    def read(cls, id: str, stored: dict[str, Any]) -> ApiKey:
        """Returns the key from its stored form, which `protocol.calls.access` has checked."""
        digests = tuple((bytes(digest), int(until_ms)) for digest, until_ms in stored["digests"])
        times = (stored.get("created_ms", 0), stored.get("expires_ms", 0))
        return cls(id, stored["name"], digests, tuple(stored["scopes"]), *times)


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


@lru_cache(maxsize=10_000)
def _allows(scopes: tuple[str, ...], verb: Verb, topic: str | None) -> bool:
    allowed = (scope.partition(":")[2] for scope in scopes if scope.startswith(("*:", f"{verb}:")))
    return any(topic is None or fnmatchcase(topic, pattern) for pattern in allowed)


def _secret() -> str:
    return secrets.token_urlsafe(24)


def _token(id: str, secret: str) -> str:
    return f"{MARK}_{id}_{secret}"


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


DEPTH_S = 2
CALLERS = 10_000
"""The most buckets kept: those of the callers that were quiet for longest are dropped first."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    id: str
    """The id of the API key; empty if none is needed."""
    scopes: tuple[str, ...]

    def may(self, verb: Verb, topic: str | None) -> bool:
        """Whether the caller may do this with the topic; None: with any topic."""
        return allows(self.scopes, verb, topic)

    def check_may(self, verb: Verb, topic: str | None, field: str | None = None, why: str = "") -> None:
        """Raises: Problem, unless the caller may do this with the topic, which `field` of the request names."""
        if not self.may(verb, topic):
            on = f"on topic {topic!r:.300}" if topic else "on any topic"
            raise Problem(problems.NOT_ALLOWED, f"The key has no scope for {verb} {on}{why}.", field)

    @property
    def reads_all(self) -> bool:
        """Whether the caller may read every topic, and so also what belongs to none, such as receivers."""
        return not {"*:*", f"{Verb.READ}:*"}.isdisjoint(self.scopes)


ANYONE = Caller("", ("*:*",))
"""The caller of a server that needs no keys."""


class Rates:
    """Limits the requests per second of each caller by a token bucket, two seconds deep."""

    def __init__(self, per_second: int) -> None:
        """0: no limit."""
        self._per_second = per_second
        self._buckets: dict[str, tuple[float, float]] = {}  # caller → tokens left, when

    def wait_s(self, caller: str, now: float) -> float:
        """Takes a token and returns 0; if there is none, returns the seconds until there is one."""
        if not self._per_second:
            return 0.0
        depth = float(self._per_second * DEPTH_S)
        left, since = self._buckets.pop(caller, (depth, now))
        left = min(depth, left + (now - since) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[caller] = (left if wait else left - 1, now)  # moved to the end: the first was quiet for longest
        if len(self._buckets) > CALLERS:
            del self._buckets[next(iter(self._buckets))]
        return wait


NOBODY = ApiKey("", "", ((bytes(32), 0),), (), 0)
"""Compared with if no key has the id, so that the answer takes the same time."""
NO_KEYS = (
    "no request is allowed before there is an API key: make one (wheelq keys create NAME --scope '*:*'), or open the "
    'server to all that can connect (access = "open" in [server], or WHEELQ_SERVER_ACCESS=open)'
)
MOST_SHOWN = 10
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


class Keyring:
    """Finds the caller of a token. `run` keeps the keys up to date."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock, keys_ms: int) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._pause = keys_ms / 1000
        self._known: dict[str, ApiKey] = {}
        self._unreadable: dict[str, str] = {}
        self._failure = ""

    @property
    def problems(self) -> list[str]:
        """The problems of the keys, for people; empty while Redis is only away."""
        found = [_problem(id, why) for id, why in sorted(self._unreadable.items())[:MOST_SHOWN]]
        return [*found, self._failure] if self._failure else found

    async def read(self) -> int:
        """Read the keys again; returns how many there are. Raises: ServerError."""
        found = await self._transport.send(calls.api_keys(self._keys))
        self._known = {id: ApiKey.read(id, what) for id, what in found.stored.items()}
        for id, why in found.unreadable.items():
            if self._unreadable.get(id) != why:
                logger.error("%s", _problem(id, why))
        self._unreadable = found.unreadable
        return len(self._known)

    async def run(self) -> None:
        """Read the keys, again and again until cancelled; while Redis is away, the keys read last remain valid."""
        said = ""
        while True:
            try:
                count = await self.read()
            except AWAY as error:
                trouble, level = f"API keys stay as they were until the server is back: {error}", logging.WARNING
            except Exception as error:  # noqa: BLE001  # it must go on: revoked keys would stay good for ever
                trouble, level = f"API keys stay as they were and cannot be read: {error!r}", logging.ERROR
            else:
                trouble, level = ("", logging.INFO) if count else (NO_KEYS, logging.WARNING)
            if trouble != said:
                logger.log(level, "%s", trouble or "API keys are up to date")
            said, self._failure = trouble, trouble if level == logging.ERROR or trouble is NO_KEYS else ""
            await self._clock.sleep(self._pause)

    async def caller(self, token: str) -> Caller | None:
        """Returns the caller of a token; None if no key has it. Raises: ServerError, if this is not known."""
        id, secret = parse_token(token) or ("", "")
        now_ms = self._clock.wall_ms()
        key = await self.find(id, lambda key: key.is_opened_by(secret, now_ms))
        return Caller(key.id, key.scopes) if key.is_opened_by(secret, now_ms) else None

    async def find(self, id: str, fits: Callable[[ApiKey], bool]) -> ApiKey:
        """Returns the key with this id, or `NOBODY`. Raises: ServerError.

        A key that does not fit is read again, because it may be new or have a new secret: a wrong token costs Redis
        one small command, much less than it costs this process.
        """
        key = self._known.get(id, NOBODY)
        if _ID.fullmatch(id) and not fits(key):
            found = (await self._transport.send(calls.api_key(self._keys, id))).stored
            self._known.pop(id, None)
            self._known |= {id: ApiKey.read(id, what) for id, what in found.items()}
        return self._known.get(id, NOBODY)

    async def named(self, id: str) -> Caller | None:
        """Returns the caller of a key by its id alone, for calls that cannot send a secret. Raises: ServerError."""
        now_ms = self._clock.wall_ms()
        key = await self.find(id, lambda key: key is not NOBODY and key.is_alive(now_ms))
        return Caller(key.id, key.scopes) if key is not NOBODY and key.is_alive(now_ms) else None


def _problem(id: str, why: str) -> str:
    return f"API key {id} cannot be read, and opens nothing: {why}"
