"""The steps of an operation, as values, and the functions that yield them.

| step          | what the driver does                                             | answer              |
|---------------|------------------------------------------------------------------|---------------------|
| `Call`        | sends it                                                         | the call's answer   |
| `Stream`      | sends many calls, and makes the next while the server works      | None; see `take`    |
| `Poll`        | sends a call that the server answers later, if it has a place    | the answer, or None |
| `Wait`        | lets time pass                                                   | None                |
| `Do`          | calls a function; on asyncio it awaits what the function returns | what is returned    |
| `Whereabouts` | looks up where the server is                                     | host and port       |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from wheelq.errors import OutcomeUnknown, ServerError
from wheelq.protocol.call import Call

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stream:
    """Calls that are made and sent one after another, without waiting for the answers in between."""

    calls: Iterable[Call[Any]]
    take: Callable[[Any], object]
    """Receives each answer as it arrives, in the order of the calls."""
    refused: Callable[[], object] | None = None
    """Called in place of the answer to a call that was refused. The error follows when all calls are answered."""
    holds_up: bool = False
    """Whether the calls block their connection, so that no other call should share it."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A call that keeps its connection until something happens; answered by None if it does not get a place in time.

    Three quarters of a client's connections are places for such calls, so that the others never wait for them.
    """

    make: Callable[[int], Call[Any]]
    """Makes the call, of the milliseconds that the server may wait."""
    seconds: float
    """The most that a place and the answer may take. The answer may come sooner without anything having happened."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this time pass; answered by None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Do:
    """A function to call; on asyncio it returns an awaitable. For steps that differ between the two clients."""

    act: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Ask for the host and the port of the server, as the URL names them; nothing is sent."""


Step = Call[Any] | Stream | Poll | Wait | Do | Whereabouts
Operation = Generator[Step, Any, T]
"""Yields steps, receives their answers or errors, and returns the outcome. It may handle a `ServerError`; any other
error ends it.
"""


def ask(call: Call[T]) -> Operation[T]:
    """Sends a call; returns its answer."""
    answer: T = yield call
    return answer


def ask_until_known(call: Call[T], was_lost: bool = False) -> Operation[T]:
    """Sends a call that may be done twice; sends it once more if its reply is lost. Returns its answer.

    `was_lost`: an earlier reply was lost, so after an error the outcome is still unknown. Raises: OutcomeUnknown.
    """
    try:
        return (yield from ask(call))
    except OutcomeUnknown:
        if was_lost:
            raise
        return (yield from ask_until_known(call, was_lost=True))
    except ServerError as error:
        if was_lost:
            raise OutcomeUnknown(f"the reply to {call.name} was lost, and then: {error}") from error
        raise


def ask_all(calls: Iterable[Call[T]]) -> Operation[list[T]]:
    """Sends many calls together; returns their answers, in order."""
    answers: list[T] = []
    yield Stream(calls, answers.append)
    return answers


def ask_all_until_known(calls: Sequence[Call[T]]) -> Operation[list[T]]:
    """Sends many calls together that may be done twice; sends all once more if a reply is lost."""
    try:
        return (yield from ask_all(calls))
    except OutcomeUnknown:
        return (yield from ask_all(calls))


def wait(seconds: float) -> Operation[None]:
    """Let this time pass."""
    yield Wait(seconds)
