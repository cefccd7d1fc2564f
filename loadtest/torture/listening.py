"""`Listening`: a transport that records what a client sends, which callers cannot see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from wheelq.protocol.call import Call
from wheelq.transport import Address, Transport

T = TypeVar("T")
FIRST_ID = 7
"""The index of the first job's id among the arguments of a schedule call; the next ids are three apart."""


class Listening(Transport):
    """A transport that records which jobs were sent."""

    def __init__(self, address: Address, *, confirms: bool) -> None:
        """`confirms`: whether its client waits for replicas."""
        super().__init__(address)
        self._confirms = confirms
        self.is_confirmed = True
        """Whether a replica has confirmed the last change, if the client waits for that."""
        self.sent: Counter[str] = Counter()
        """The jobs sent since `begin`: how often, by id."""

    def begin(self) -> None:
        self.sent, self.is_confirmed = Counter(), True

    def was_not_confirmed(self) -> None:
        """Record that the last change was not confirmed."""
        self.is_confirmed = not self._confirms

    def send(self, call: Call[T]) -> T:
        self._note(call)
        return super().send(call)

    def stream(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None = None) -> Iterator[T]:
        def noted() -> Iterator[Call[T]]:
            for call in calls:
                self._note(call)
                yield call

        yield from super().stream(noted(), refused)

    def _note(self, call: Call[Any]) -> None:
        for part in call.parts:
            if part.name == "schedule":
                self.sent.update(map(str, part.args[FIRST_ID::3]))
