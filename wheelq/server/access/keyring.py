"""The API keys that are in force, as Redis holds them; and the callers they stand for."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from wheelq.clock import Clock
from wheelq.errors import ServerError
from wheelq.protocol.calls import access as calls
from wheelq.protocol.keys import Keys
from wheelq.server.access.keys import ApiKey, Verb, allows, parse_token
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.server")

NOBODY = ApiKey("", "", ((bytes(32), 0),), (), 0)
"""Compared with when no key has the id, so that an answer takes as long as for one that has."""
AGAIN_S = 1.0
"""An unknown key is looked for in Redis at most this often: guessing is not to load the server."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request."""

    id: str
    """Of the API key; empty where none is needed."""
    scopes: tuple[str, ...]

    def may(self, verb: Verb, topic: str | None) -> bool:
        """Whether it may do this with the topic; None: with any topic at all."""
        return allows(self.scopes, verb, topic)


ANYONE = Caller("", ("*:*",))
"""Whoever calls a server that is open."""


class Keyring:
    """Knows who a token belongs to. `run` keeps it up to date."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock, keys_ms: int) -> None:
        self._transport = transport
        self._keys = keys
        self._clock = clock
        self._pause = keys_ms / 1000
        self._known: dict[str, ApiKey] = {}
        self._read_at = float("-inf")

    async def read(self) -> int:
        """Read the keys again; how many there are. Raises: ServerError."""
        self._read_at = self._clock.monotonic()
        stored = await self._transport.send(calls.api_keys(self._keys))
        self._known = {id: ApiKey.read(id, what) for id, what in stored.items()}
        return len(self._known)

    async def run(self) -> None:
        """Read the keys again and again until cancelled; while Redis is away those read last hold."""
        while True:
            await self._clock.sleep(self._pause)
            try:
                await self.read()
            except ServerError as error:
                logger.warning("API keys are as they were until the server is back: %s", error)

    async def caller(self, token: str) -> Caller | None:
        """Whom a token belongs to; None: nobody. Raises: ServerError, when no keys could be read yet."""
        id, secret = parse_token(token) or ("", "")
        if id and id not in self._known and self._clock.monotonic() - self._read_at > AGAIN_S:
            await self.read()
        key = self._known.get(id, NOBODY)
        return Caller(key.id, key.scopes) if key.is_opened_by(secret, self._clock.wall_ms()) else None

    def named(self, id: str) -> Caller | None:
        """The caller that a key stands for, without its secret: for calls that cannot bring one."""
        key = self._known.get(id)
        if key is None or (key.expires_ms and self._clock.wall_ms() >= key.expires_ms):
            return None
        return Caller(key.id, key.scopes)
