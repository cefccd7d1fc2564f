"""Guides one call to the server that serves it, in a cluster or behind sentinels. Pure: time is an argument.

A refused call did nothing, so it is tried again until it succeeds or its time is up. A call that was sent and not
answered is never sent again: it may have been done, and the caller must know that (`OutcomeUnknown`).

| answer                                  | next step                                                                  |
|-----------------------------------------|----------------------------------------------------------------------------|
| MOVED: another node serves the slot     | read the map, go to that node                                              |
| ASK: the key has moved, its slot not yet| go to that node once, with ASKING in front; the map stays                  |
| TRYAGAIN: some of the keys have moved   | pause, start again: a script names all keys of its shard, so it must wait  |
|                                         | until the whole slot has moved: milliseconds, seconds with big keys        |
| CLUSTERDOWN, LOADING                    | pause, read the map, start again                                           |
| READONLY: it has become a replica       | the same                                                                   |
| one of these, and parts were done       | only the same node can do the rest; if another serves the key by then, the |
|                                         | outcome is unknown                                                         |
| no connection                           | the same: another node is about to be promoted                             |
| any other refusal                       | raise it                                                                   |
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

from wheelq.errors import NotPrimary, OutcomeUnknown, ServerBusy, ServerError, Unavailable
from wheelq.protocol.call import Call
from wheelq.transport.failures import Redirected
from wheelq.transport.slots import Node, SlotMap
from wheelq.transport.together import Chain

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1
"""Seconds between attempts; doubling from the first to the longest."""
MOST_HOPS = 5
"""The most redirections in a row; more mean that nodes disagree for a moment."""


class Stop(NamedTuple):
    """Where to send the call next."""

    node: Node
    is_asking: bool
    """Whether to send ASKING first."""


class Detour(NamedTuple):
    """What to do before the next attempt."""

    pause: float
    """Seconds."""
    reads_map: bool


class Redirects:
    """Decides where one call is sent next."""

    def __init__(self, call: Call[Any], deadline: float) -> None:
        self.call = call
        """The call to send; of several calls together, only those not done yet."""
        self.reply: Any = None
        self.is_over = False
        """Whether `reply` is final."""
        self._chain = Chain(call) if call.is_chain else None
        self._deadline = deadline
        self._at: Node | None = None
        self._partly_done_at: Node | None = None
        """The node that has done some of several calls together, and not the rest."""
        self._sent_to: Stop | None = None
        self._hops = 0
        self._pause = FIRST_PAUSE

    def stop(self, slots: SlotMap) -> Stop:
        """Returns the next stop. Raises: ServerBusy if no known node serves the key; OutcomeUnknown, see `together`."""
        found, self._sent_to = self._sent_to, None
        if found is None:
            # A call that any node can answer goes to another node when the first is gone.
            node = slots.another(self._at) if self.call.key is None and self._at else slots.owner(self.call.key)
            if node is None:
                raise ServerBusy("no node of the cluster serves this slot at the moment")
            found = Stop(node, is_asking=False)
        if self._partly_done_at not in (None, found.node):
            raise OutcomeUnknown(
                f"{self.call.name}: {self._partly_done_at} did part of this call, and then {found.node} took its place."
                " It is unknown whether that part was kept; repeating the call is safe"
            )
        self._at = found.node
        return found

    def came(self, reply: Any) -> ServerError | None:
        """Take a reply. Returns the failure if some of several calls together were not done."""
        if self._chain is None:
            self.reply, self.is_over = reply, True
            return None
        self._chain.take(reply)
        failure = self._chain.strayed()
        if failure is not None and self._chain.is_partly_done:
            self._partly_done_at = self._at
        self.call, self.reply, self.is_over = self._chain.rest, self._chain.replies, failure is None
        return failure

    def failed(self, error: ServerError, now: float) -> Detour:
        """Returns the detour after a failure. Raises `error` if it is final and no part of the call was answered."""
        if not isinstance(error, (NotPrimary, ServerBusy, Unavailable)) or now >= self._deadline:
            if self.reply is None:
                raise error
            self.is_over = True
            return Detour(0.0, reads_map=False)
        if self._follows(error):
            self._hops += 1
            host = error.node.host or (self._at.host if self._at else "")
            self._sent_to = Stop(Node(host, error.node.port), error.is_ask)
            return Detour(0.0, reads_map=not error.is_ask)
        self._hops = 0
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        return Detour(pause, reads_map=True)

    def _follows(self, error: ServerError) -> TypeGuard[Redirected]:
        # Several calls together wait until the whole slot has moved: some might belong there, others not yet.
        is_followed = isinstance(error, Redirected) and not (error.is_ask and self.call.is_chain)
        return is_followed and self._hops < MOST_HOPS
