"""Several calls sent as one (`protocol.call.together`), of which some were not done. Pure.

    schedule  mark  WAIT        the server has the first script but not the second, or the slot moves in between
       ✓       ✗     ✓          done calls stay done; the others are sent again, with a WAIT for them at the end
               └─────┴──▶ mark  WAIT

A call that was done must not be sent again: its job may have run and been forgotten by then, and would run twice. Only
the server that did it may do the rest. After a failover the new primary may not have the job, and would confirm only
the mark. The caller then learns that the outcome is unknown, and repeats all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wheelq.errors import NotPrimary, ServerBusy, ServerError
from wheelq.protocol.call import Call, as_it_is, together
from wheelq.transport.failures import ScriptUnknown


class Chain:
    """A call of several parts, and the replies so far, with errors in place of missing replies."""

    def __init__(self, call: Call[Any]) -> None:
        self._parts = call.parts
        self._named = [place for place, part in enumerate(self._parts) if part.key is not None]
        """The places of the parts that have a key: the others, like WAIT, concern the parts before them."""
        self._places = list(range(len(self._parts)))
        self.replies: list[Any] = []

    @property
    def rest(self) -> Call[Any]:
        """Returns the parts that are still to be sent, as one call."""
        return together([self._parts[place] for place in self._places], as_it_is)

    def take(self, replies: Sequence[Any]) -> None:
        """Take the replies to `rest`."""
        if not self.replies:
            self.replies = list(replies)
        else:
            for place, reply in zip(self._places, replies, strict=True):
                self.replies[place] = reply

    def lacks_scripts(self) -> bool:
        """Whether parts were not done because the server lacks their scripts; `rest` then returns them."""
        return self._again(lambda reply: isinstance(reply, ScriptUnknown)) is not None

    @property
    def is_partly_done(self) -> bool:
        """Whether a part that changes something was done, and another was not."""
        done = [not isinstance(reply, ServerError) for place, reply in enumerate(self.replies) if place in self._named]
        return any(done) and not all(done)

    def strayed(self) -> ServerError | None:
        """Returns the error of parts that must go elsewhere or later; `rest` then returns them."""
        return self._again(lambda reply: isinstance(reply, (NotPrimary, ServerBusy)))

    def _again(self, is_undone: Callable[[Any], bool]) -> ServerError | None:
        undone = [place for place in self._named if is_undone(self.replies[place])]
        if not undone:
            return None
        behind = set(range(undone[0], len(self._parts))).difference(self._named)
        self._places = sorted(behind.union(undone))
        error: ServerError = self.replies[undone[0]]
        return error
