"""Several calls that go as one (`protocol.call.together`), when some of them were not done. Pure.

    schedule  mark  WAIT        the server knows the first script and not the second, or the slot moves in between
       ✓       ✗     ✓          what was done stays done; what was not goes again, and what waits for it behind it
               └─────┴──▶ mark  WAIT

What was done must not go again: its job may have run and been forgotten by then, and would run a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wheelq.errors import NotPrimary, ServerBusy, ServerError
from wheelq.protocol.call import Call, together
from wheelq.transport.failures import ScriptUnknown


class Chain:
    """A call of several parts, and the replies so far; errors stand in the places of replies."""

    def __init__(self, call: Call[Any]) -> None:
        self._parts = call.parts
        self._places = list(range(len(self._parts)))
        self.replies: list[Any] = []

    @property
    def rest(self) -> Call[Any]:
        """What is to be sent now, as one."""
        return together([self._parts[place] for place in self._places], _as_it_came)

    def take(self, replies: Sequence[Any]) -> None:
        """The replies to `rest`."""
        if not self.replies:
            self.replies = list(replies)
        else:
            for place, reply in zip(self._places, replies, strict=True):
                self.replies[place] = reply

    def lacks_scripts(self) -> bool:
        """Whether parts were not done because the server does not know their scripts; they are the `rest` then."""
        return self._again(lambda reply: isinstance(reply, ScriptUnknown)) is not None

    def strayed(self) -> ServerError | None:
        """Why parts were not done that name a key, if they have to go elsewhere or later; they are the `rest` then."""
        return self._again(lambda reply: isinstance(reply, (NotPrimary, ServerBusy)))

    def _again(self, is_undone: Callable[[Any], bool]) -> ServerError | None:
        named = {place for place, part in enumerate(self._parts) if part.key is not None}
        undone = [place for place in sorted(named) if is_undone(self.replies[place])]
        if not undone:
            return None
        behind = set(range(undone[0], len(self._parts))) - named
        self._places = sorted(behind.union(undone))
        error: ServerError = self.replies[undone[0]]
        return error


def _as_it_came(replies: Any) -> Any:
    return replies
