"""The steps of an operation, as values, and the words to write them with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from wheelq.errors import OutcomeUnknown, ServerError
from wheelq.protocol.call import Call

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Many:
    """Calls that go out together; answered by the list of their answers, in order."""

    calls: Iterable[Call[Any]]


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this time pass; answered by None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Do:
    """Call this, which on asyncio is awaited: what the twins do each in its own way. Answered by what it returns."""

    act: Callable[[], Any]


Step = Call[Any] | Many | Wait | Do
Operation = Generator[Step, Any, T]
"""Yields steps, is sent their answers or thrown their errors (`ServerError`), and returns the outcome."""


def ask(call: Call[T]) -> Operation[T]:
    """The answer to one call."""
    answer: T = yield call
    return answer


def ask_until_known(call: Call[T], was_lost: bool = False) -> Operation[T]:
    """The answer to a call that may be done twice: when its reply is lost it is sent once more.

    `was_lost` says that the outcome was in doubt before. An error then leaves it so. Raises: OutcomeUnknown.
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
    """The answers to many calls that go out together, in order."""
    answers: list[T] = yield Many(calls)
    return answers


def wait(seconds: float) -> Operation[None]:
    """Let this time pass."""
    yield Wait(seconds)
