"""`Call[T]`: one round trip to Redis, described as a value.

A call says what to send (a script with its keys, or a plain command), and how to read the reply. Pure functions under
`calls/` make them, `transport` sends them; so the blocking and the asyncio client cannot say different things, and a
test can lose, refuse or repeat any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wheelq.errors import ServerError
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
    key: str | None = None
    """Whose cluster node is to be asked; None: any node can answer."""
    behind: tuple[Call[Any], ...] | None = None
    """Calls that go right behind this one, over the same connection, for one list of replies: see `together`."""

    @property
    def name(self) -> str:
        """The operation's name, for errors, tests and metrics."""
        return self.what if isinstance(self.what, str) else self.what.name

    @property
    def parts(self) -> tuple[Call[Any], ...]:
        """This call, and what goes right behind it."""
        return (self, *(self.behind or ()))

    @property
    def is_chain(self) -> bool:
        """Whether it is made of several, and answered with a list."""
        return self.behind is not None

    def words(self) -> list[Argument]:
        """The command as sent."""
        if isinstance(self.what, str):
            return [*self.what.split(), *self.keys, *self.args]
        return ["EVALSHA", self.what.sha, len(self.keys), *self.keys, *self.args]


def scripted(name: str, keys: Sequence[str], args: Sequence[Argument], read: Callable[[Any], T]) -> Call[T]:
    """A call of the script `lua/{name}.lua`."""
    return Call(script(name), keys, args, read, key=keys[0])


def command(name: str, *args: Argument, read: Callable[[Any], T], wait_ms: int = 0, key: str | None = None) -> Call[T]:
    """A call of a plain command; `key` is that of its arguments which tells the cluster node, if it names any."""
    return Call(name, (), args, read, wait_ms, key)


def together(calls: Sequence[Call[Any]], read: Callable[[Sequence[Any | ServerError]], T]) -> Call[T]:
    """Several calls as one: over one connection, with nothing between. `read` gets each one's reply, or its error.

    The cluster node is that of the first. What was not done, because the server does not know its script or the slot is
    just moving, is sent again; what was done is not.
    """
    first, *behind = calls
    wait_ms = sum(call.wait_ms for call in calls)
    return Call(first.what, first.keys, first.args, read, wait_ms, first.key, tuple(behind))


def nothing(reply: object) -> None:
    """A reply that tells nothing."""
    return


def text(reply: bytes) -> str:
    """A reply that is text."""
    return reply.decode()
