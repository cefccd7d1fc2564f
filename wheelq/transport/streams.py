"""`CallStream`: the calls of a stream, each made only when the one before it is on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from wheelq.errors import WheelqError
from wheelq.protocol.call import Call

T = TypeVar("T")


class CallStream(Iterator[Call[T]]):
    """Ends at a call that cannot be made, so that the pending replies are read; then `finish` raises its error."""

    def __init__(self, calls: Iterable[Call[T]]) -> None:
        self._calls = iter(calls)
        self._failure: WheelqError | None = None

    def __next__(self) -> Call[T]:
        try:
            return next(self._calls)
        except WheelqError as error:
            self._failure = error
            raise StopIteration from error

    def finish(self) -> None:
        """Raise the error of the call that could not be made, if there is one."""
        if self._failure is not None:
            raise self._failure
