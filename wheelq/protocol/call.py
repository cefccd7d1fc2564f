"""`Call[T]`: one round trip to Redis, described as a value.

A call says what to send (a script with its keys, or a plain command), and how to read the reply. Pure functions under
`calls/` make them, `transport` sends them; so the blocking and the asyncio client cannot say different things, and a
test can lose, refuse or repeat any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wheelq.protocol.scripts import Script, script

T = TypeVar("T")
Argument = str | bytes | int


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """What to send and how to read the answer."""

    what: Script | str
    keys: Sequence[str]
    args: Sequence[Argument]
    read: Callable[[Any], T]
    wait_ms: int = 0
    """How long the server itself may wait before it answers (a blocking read)."""

    @property
    def name(self) -> str:
        """The operation's name, for errors, tests and metrics."""
        return self.what if isinstance(self.what, str) else self.what.name

    def words(self) -> list[Argument]:
        """The command as sent."""
        if isinstance(self.what, str):
            return [*self.what.split(), *self.keys, *self.args]
        return ["EVALSHA", self.what.sha, len(self.keys), *self.keys, *self.args]


def scripted(name: str, keys: Sequence[str], args: Sequence[Argument], read: Callable[[Any], T]) -> Call[T]:
    """A call of the script `lua/{name}.lua`."""
    return Call(script(name), keys, args, read)


def command(name: str, *args: Argument, read: Callable[[Any], T], wait_ms: int = 0) -> Call[T]:
    """A call of a plain command."""
    return Call(name, (), args, read, wait_ms)


def text(reply: bytes) -> str:
    """A reply that is text."""
    return reply.decode()
