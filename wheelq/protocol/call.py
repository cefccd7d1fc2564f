"""`Call[T]`: one round trip to Redis, described as a value.

A call says what to send (a script with its keys, or a plain command) and how to read the reply. Pure functions under
`calls/` make calls, and `transport` sends them. So the blocking and the asyncio client cannot differ, and a test can
lose, refuse or repeat any call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wheelq.errors import Refused, ServerError
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
    """The key whose cluster node must answer; None: any node can answer."""
    behind: tuple[Call[Any], ...] | None = None
    """Calls sent right after this one, over the same connection, answered by one list of replies: see `together`."""

    @property
    def name(self) -> str:
        """The operation's name, for errors, tests and metrics."""
        return self.what if isinstance(self.what, str) else self.what.name

    @property
    def parts(self) -> tuple[Call[Any], ...]:
        """This call and those sent right after it."""
        return (self, *(self.behind or ()))

    @property
    def is_chain(self) -> bool:
        """Whether this is several calls, answered with a list."""
        return self.behind is not None

    def words(self) -> list[Argument]:
        """The words of the command, as sent."""
        if isinstance(self.what, str):
            return [*self.what.split(), *self.keys, *self.args]
        return ["EVALSHA", self.what.sha, len(self.keys), *self.keys, *self.args]


def scripted(
    name: str,
    keys: Sequence[str],
    args: Sequence[Argument],
    read: Callable[[Any], T],
    without: tuple[str, ...] = (),
) -> Call[T]:
    """A call of the script `lua/{name}.lua`, which does not need the parts `without`."""
    return Call(script(name, without=without), keys, args, read, key=keys[0])


def for_many(calls: Sequence[Call[T]]) -> Call[list[T | Exception]]:
    """Combine calls of one script, with as many keys each, into one; in a cluster all must lie in one slot.

    The answer has for each call, in order, what it answers, or the error that it raises.
    """
    keys, args = list[str](), list[Argument]([len(calls)])
    for call in calls:
        keys += call.keys
        args += (len(call.args), *call.args)

    def read(replies: list[Any]) -> list[T | Exception]:
        return [_read_one(call, reply) for call, reply in zip(calls, replies, strict=True)]

    return Call(script(calls[0].name, for_many=True), keys, args, read, key=keys[0])


def _read_one(call: Call[Any], reply: Any) -> Any:
    if isinstance(reply, bytes):
        return Refused(reply.decode(errors="replace"))
    try:
        return call.read(reply)
    except Exception as error:  # noqa: BLE001  # the answer of one must not keep the others from theirs
        return error


def command(name: str, *args: Argument, read: Callable[[Any], T], wait_ms: int = 0, key: str | None = None) -> Call[T]:
    """A call of a plain command; `key` is the argument that selects the cluster node, if there is one."""
    return Call(name, (), args, read, wait_ms, key)


def together(calls: Sequence[Call[Any]], read: Callable[[Sequence[Any | ServerError]], T]) -> Call[T]:
    """Combine several calls into one, sent back to back over one connection. `read` gets the reply or error of each.

    All go to the cluster node of the first. A call is sent again only if it was not executed, because the server does
    not have its script or the slot is moving.
    """
    first, *behind = calls
    wait_ms = sum(call.wait_ms for call in calls)
    return Call(first.what, first.keys, first.args, read, wait_ms, first.key, tuple(behind))


def answers(calls: Sequence[Call[T]], replies: Sequence[Any | ServerError]) -> list[T]:
    """Returns the answers to calls that were sent together. Raises: the first error among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return [call.read(reply) for call, reply in zip(calls, replies, strict=True)]


def as_it_is(reply: Any) -> Any:
    """Returns the reply."""
    return reply


def nothing(reply: object) -> None:
    """Ignores the reply."""
    return


def text(reply: bytes) -> str:
    """Decodes a reply that is text."""
    return reply.decode()
