"""`Listening`: a transport that knows what a client does with it, for those who must know better than its caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from wheelq.errors import OutcomeUnknown, ServerError
from wheelq.protocol.call import Call, command, together
from wheelq.transport import Address, Transport

T = TypeVar("T")
FIRST_ID = 3
"""Where the first job's id stands among the arguments of a schedule call; every third is another's."""
CHANGES = ("cancel", "reschedule", "run_now")
"""What a client does not wait for replicas to have."""


class Listening(Transport):
    """A transport that remembers which replies were lost and which jobs were sent, behind the client's back.

    With `confirm_ms` it also waits so long for a replica to have what the client itself does not wait for.
    """

    def __init__(self, address: Address, confirm_ms: int) -> None:
        super().__init__(address)
        self._confirm_ms = confirm_ms
        self.is_confirmed = True
        """Whether a replica, if one was asked, had what was changed last."""
        self.lost = 0
        """Schedule calls whose reply was lost since `begin`."""
        self.sent: Counter[str] = Counter()
        """The jobs sent since `begin`: how often, by id."""

    def begin(self) -> None:
        self.lost, self.sent, self.is_confirmed = 0, Counter(), True

    def was_not_confirmed(self) -> None:
        """The client said so, or not that it was."""
        self.is_confirmed = not self._confirm_ms

    def send(self, call: Call[T]) -> T:
        self._note(call)
        try:
            return super().send(self._confirmed(call) if call.name in CHANGES and self._confirm_ms else call)
        except OutcomeUnknown:
            self.lost += call.name == "schedule"
            raise

    def stream(self, calls: Iterable[Call[T]]) -> Iterator[T]:
        def noted() -> Iterator[Call[T]]:
            for call in calls:
                self._note(call)
                yield call

        try:
            yield from super().stream(noted())
        except OutcomeUnknown:
            self.lost += 1
            raise

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
