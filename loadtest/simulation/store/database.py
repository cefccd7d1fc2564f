"""`Database`: keys and their values, expiry, and the log of writes that persistence and replicas follow.

Every write is appended to the log, with the server's time. Replaying the log, or its beginning, gives the same data
again: so a server comes back without its last second, and a replica has the writes that had been replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

Kind = TypeVar("Kind")
Words = Sequence[bytes]


class Refusal(Exception):
    """An error reply; its text begins with the kind, such as ERR."""


class Status(bytes):
    """A status reply, such as OK."""


OK = Status(b"OK")
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@dataclass(frozen=True, slots=True)
class Command:
    """The properties of a command."""

    name: bytes
    run: Callable[[Database, Words], Any]
    writes: bool
    needs_memory: bool
    """Whether a server without memory refuses it."""


class Logged(NamedTuple):
    """One write."""

    us: int
    words: tuple[bytes, ...]


class Database:
    """One database; its clock is set before each command."""

    def __init__(self) -> None:
        self.values: dict[bytes, Any] = {}
        self.expires_ms: dict[bytes, int] = {}
        self.now_us = 0
        self.now_ms = 0
        self.log: list[Logged] = []
        self.touched: list[bytes] = []
        """Streams that got an entry since the server last looked."""
        self.published: list[tuple[bytes, bytes]] = []
        """Messages that were published since the server last looked."""
        self.listeners: Callable[[bytes], int] = lambda channel: 0

    def set_time(self, us: int) -> None:
        """Set the clock."""
        self.now_us, self.now_ms = us, us // 1000

    def get(self, key: bytes, kind: type[Kind]) -> Kind | None:
        """Returns the value, or None. Raises: Refusal, if it is of another kind."""
        if self.expires_ms and key in self.expires_ms:
            self._expire(key)
        value: Kind | None = self.values.get(key)
        if value is not None and type(value) is not kind:
            raise Refusal(WRONG_TYPE)
        return value

    def make(self, key: bytes, kind: type) -> Any:
        """Returns the value, and makes it if there is none."""
        value = self.get(key, kind)
        if value is None:
            value = self.values[key] = kind()
        return value

    def remove(self, key: bytes) -> bool:
        """Remove a key. Returns whether it was there."""
        self._expire(key)
        self.expires_ms.pop(key, None)
        return self.values.pop(key, None) is not None

    def exists(self, key: bytes) -> bool:
        """Whether there is such a key."""
        self._expire(key)
        return key in self.values

    def remove_if_empty(self, key: bytes, value: Any) -> None:
        """Remove a hash, set or sorted set without members; empty streams stay."""
        if not value:
            self.values.pop(key, None)
            self.expires_ms.pop(key, None)

    def all_keys(self) -> list[bytes]:
        """Returns every key."""
        for key in list(self.expires_ms):
            self._expire(key)
        return sorted(self.values)

    def replayed(self, entries: Sequence[Logged], commands: dict[bytes, Command]) -> Database:
        """Returns a new database with these writes."""
        other = Database()
        other.listeners = self.listeners
        for entry in entries:
            other.set_time(entry.us)
            commands[entry.words[0]].run(other, entry.words)
        other.touched.clear()
        other.published.clear()
        other.log = list(entries)
        return other

    def _expire(self, key: bytes) -> None:
        ends = self.expires_ms.get(key)
        if ends is not None and ends <= self.now_ms:
            self.values.pop(key, None)
            del self.expires_ms[key]
