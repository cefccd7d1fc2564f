"""`CallStream`: the calls of a stream, each made only when the one before it is on its way.

A call that cannot be made, or that the server refuses, ends the stream. Calls under way are answered first, so that the
caller knows of each call whether it was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from wheelq.errors import Refused, WheelqError
from wheelq.protocol.call import Call

T = TypeVar("T")


class CallStream(Iterator[Call[T]]):
    """Ends at the first call that cannot be made or is refused; `finish` raises its error."""

    def __init__(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None) -> None:
        self._calls = iter(calls)
        self._refused = refused
        self._failure: WheelqError | None = None

    def __next__(self) -> Call[T]:
        if self._failure is not None:
            raise StopIteration
        try:
            return next(self._calls)
        except WheelqError as error:
            self._failure = error
            raise StopIteration from error

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Around the answer to a call: a refusal ends the stream."""
        try:
            yield
        except Refused as error:
            self._failure = self._failure or error
            if self._refused is not None:
                self._refused()

    def finish(self) -> None:
        """Raise the error that ended the stream, if there is one."""
        if self._failure is not None:
            raise self._failure
