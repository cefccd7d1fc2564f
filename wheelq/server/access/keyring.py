"""The API keys in force, read from Redis, and the callers that they stand for."""

from __future__ import annotations

import logging

from wheelq.base.clock import Clock
from wheelq.errors import AWAY
from wheelq.protocol.calls import access as calls
from wheelq.protocol.keys import Keys
from wheelq.server.access.caller import Caller
from wheelq.server.access.keys import ApiKey, parse_token
from wheelq.transport import AsyncTransport

logger = logging.getLogger("wheelq.server")

NOBODY = ApiKey("", "", ((bytes(32), 0),), (), 0)
"""Compared with if no key has the id, so that the answer takes the same time."""
MOST_SHOWN = 10
AGAIN_S = 1.0
"""The least time between two look-ups of unknown keys in Redis, so that guessing cannot load the server."""


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
        self._read_at = float("-inf")

    @property
    def problems(self) -> list[str]:
        """The problems of the keys, for people; empty while Redis is only away."""
        found = [_problem(id, why) for id, why in sorted(self._unreadable.items())[:MOST_SHOWN]]
        return [*found, self._failure] if self._failure else found

    async def read(self) -> int:
        """Read the keys again; returns how many there are. Raises: ServerError."""
        self._read_at = self._clock.monotonic()
        found = await self._transport.send(calls.api_keys(self._keys))
        self._known = {id: ApiKey.read(id, what) for id, what in found.stored.items()}
        for id, why in found.unreadable.items():
            if self._unreadable.get(id) != why:
                logger.error("%s", _problem(id, why))
        self._unreadable = found.unreadable
        return len(self._known)

    async def run(self) -> None:
        """Read the keys again and again until cancelled; while Redis is away, the keys read last remain valid."""
        said = ""
        while True:
            await self._clock.sleep(self._pause)
            try:
                await self.read()
            except AWAY as error:
                trouble, level = f"API keys stay as they were until the server is back: {error}", logging.WARNING
            except Exception as error:  # noqa: BLE001  # it must go on: revoked keys would stay good for ever
                trouble, level = f"API keys stay as they were and cannot be read: {error!r}", logging.ERROR
            else:
                trouble, level = "", logging.INFO
            if trouble != said:
                logger.log(level, "%s", trouble or "API keys are up to date again")
            said, self._failure = trouble, trouble if level == logging.ERROR else ""

    async def caller(self, token: str) -> Caller | None:
        """Returns the caller of a token; None if no key has it. Raises: ServerError, if keys were never read."""
        id, secret = parse_token(token) or ("", "")
        key = await self.find(id)
        return Caller(key.id, key.scopes) if key.is_opened_by(secret, self._clock.wall_ms()) else None

    async def find(self, id: str) -> ApiKey:
        """Returns the key with this id, or `NOBODY`. Raises: ServerError, if keys were never read."""
        if id and id not in self._known and self._clock.monotonic() - self._read_at > AGAIN_S:
            await self.read()
        return self._known.get(id, NOBODY)

    def named(self, id: str) -> Caller | None:
        """Returns the caller of a key by its id alone, for calls that cannot send a secret."""
        key = self._known.get(id)
        if key is None or (key.expires_ms and self._clock.wall_ms() >= key.expires_ms):
            return None
        return Caller(key.id, key.scopes)


def _problem(id: str, why: str) -> str:
    return f"API key {id} cannot be read, and opens nothing: {why}"
