"""Transports that fail on purpose: real ones to real servers, with a fault between the call and its answer.

    client = Client(BlockingWith(url, ReplyLost("schedule")))       the first `schedule` is done, its reply is lost

| fault          | the server …          | the caller …            |
|----------------|-----------------------|-------------------------|
| `ReplyLost`    | does it               | gets OutcomeUnknown     |
| `Refusing`     | does nothing          | gets Refused            |
| `Unreachable`  | does nothing          | gets Unavailable        |
| `Repeating`    | does it twice         | gets the second answer  |
| `Forgetful`    | forgets its scripts   | gets the answer         |

A fault affects calls of one name (without a name, of any): the first `after` calls pass, the next `times` fail.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from wheelq.errors import OutcomeUnknown, Refused, ServerError, Unavailable
from wheelq.protocol.call import Call, command
from wheelq.transport import Address, AsyncTransport, Transport

T = TypeVar("T")
ALWAYS = 10**9


class Fault(ABC):
    """The kind of a fault, the calls that it affects, and how often."""

    def __init__(self, name: str = "", *, after: int = 0, times: int = 1) -> None:
        self._name, self._after, self._times = name, after, times
        self.met = 0
        """Calls of that name so far."""
        self.struck = 0
        """How many of them it affected."""

    def calls(self, call: Call[Any]) -> list[Call[Any]]:
        """Returns the calls to send in place of `call`; the caller gets the last answer. Raises the fault's error."""
        if call.name != (self._name or call.name):
            return [call]
        self.met += 1
        if not self._after < self.met <= self._after + self._times:
            return [call]
        self.struck += 1
        return self.strike(call)

    @abstractmethod
    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        """Returns the calls to send in place of an affected call."""


class ReplyLost(Fault):
    """The server does the call, and the reply never comes."""

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        def lose(reply: object) -> None:
            raise OutcomeUnknown(f"the reply to {call.name} was lost")

        return [replace(call, read=lose)]


class Refusing(Fault):
    """The server answers with an error."""

    error: ServerError = Refused("not today")

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        raise self.error


class Unreachable(Refusing):
    """No connection can be made."""

    error = Unavailable("nobody answers")


class Repeating(Fault):
    """The request arrives twice, as from a client that repeats calls by itself."""

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        return [call, call]


class Forgetful(Fault):
    """The server has lost its scripts, as after a restart."""

    def strike(self, call: Call[Any]) -> list[Call[Any]]:
        return [command("SCRIPT FLUSH", read=bool), call]


class BlockingWith(Transport):
    """A `Transport` with faults."""

    def __init__(self, url: str, *faults: Fault) -> None:
        super().__init__(Address(url))
        self._faults = faults

    def send(self, call: Call[T]) -> T:
        *before, last = _through(self._faults, call)
        for other in before:
            super().send(other)
        return super().send(last)

    def stream(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None = None) -> Iterator[T]:
        return super().stream(self._through(calls), refused)

    def _through(self, calls: Iterable[Call[T]]) -> Iterator[Call[T]]:
        for call in calls:
            *before, last = _through(self._faults, call)
            for other in before:
                super().send(other)
            yield last


class AsyncWith(AsyncTransport):
    """An `AsyncTransport` with faults; its spares share them."""

    def __init__(self, url: str, *faults: Fault) -> None:
        super().__init__(Address(url))
        self._url, self._faults = url, faults

    def spare(self) -> AsyncTransport:
        return AsyncWith(self._url, *self._faults)

    async def send(self, call: Call[T]) -> T:
        *before, last = _through(self._faults, call)
        for other in before:
            await super().send(other)
        return await super().send(last)


def _through(faults: Iterable[Fault], call: Call[Any]) -> list[Call[Any]]:
    calls = [call]
    for fault in faults:
        *before, last = calls
        calls = [*before, *fault.calls(last)]
    return calls
