"""`Listening`: a transport that records what a client sends, which callers cannot see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from wheelq.errors import ServerError
from wheelq.protocol.call import Call, command, together
from wheelq.transport import Address, Transport

T = TypeVar("T")
FIRST_ID = 7
"""The index of the first job's id among the arguments of a schedule call; the next ids are three apart."""
CHANGES = ("cancel", "reschedule", "run_now")
"""Calls whose replication a client does not wait for."""


class Listening(Transport):
    """A transport that records which jobs were sent.

    With `confirm_ms`, it also waits up to this long until a replica has the changes that the client does not wait for.
    """

    def __init__(self, address: Address, confirm_ms: int) -> None:
        super().__init__(address)
        self._confirm_ms = confirm_ms
        self.is_confirmed = True
        """Whether a replica has confirmed the last change, if it was asked."""
        self.sent: Counter[str] = Counter()
        """The jobs sent since `begin`: how often, by id."""

    def begin(self) -> None:
        self.sent, self.is_confirmed = Counter(), True

    def was_not_confirmed(self) -> None:
        """Record that the last change was not confirmed."""
        self.is_confirmed = not self._confirm_ms

    def send(self, call: Call[T]) -> T:
        self._note(call)
        return super().send(self._confirmed(call) if call.name in CHANGES and self._confirm_ms else call)

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

    def _confirmed(self, call: Call[T]) -> Call[T]:
        def read(replies: Sequence[Any]) -> T:
            reply, confirmed = replies
            if isinstance(reply, ServerError):
                raise reply
            self.is_confirmed = isinstance(confirmed, int) and confirmed > 0
            return call.read(reply)

        wait = command("WAIT", 1, self._confirm_ms, read=int, wait_ms=self._confirm_ms)
        return together([call, wait], read)
