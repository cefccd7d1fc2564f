"""One call's way to the server that serves it, in a cluster or behind sentinels. Pure: time is an argument.

A refusal is no end here, because nothing was done: the call goes on until it gets through or its time is up. What was
sent and not answered is never sent again: that it may have happened is the caller's to know (`OutcomeUnknown`).

| what comes back                         | what follows                                                               |
|-----------------------------------------|----------------------------------------------------------------------------|
| MOVED: the slot is another node's       | read the map, go there                                                     |
| ASK: the key has moved, its slot not yet| go there this once, with ASKING in front; the map stays                    |
| TRYAGAIN: some of the keys have moved   | pause, start again: a script names all keys of its shard, so it must wait  |
|                                         | until the slot has moved as a whole: milliseconds, seconds with big keys   |
| CLUSTERDOWN, LOADING                    | pause, read the map, start again                                           |
| READONLY: it has become a replica       | the same                                                                   |
| no connection                           | the same: another node is about to be promoted                             |
| any other refusal                       | the caller's                                                               |
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

from wheelq.errors import NotPrimary, ServerBusy, ServerError, Unavailable
from wheelq.protocol.call import Call
from wheelq.transport.chain import Chain
from wheelq.transport.failures import Redirected
from wheelq.transport.slots import Node, SlotMap

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1
"""Seconds between attempts; doubling from the first to the longest."""
MOST_HOPS = 5
"""Redirections in a row; more are nodes that disagree for a moment."""


class Stop(NamedTuple):
    """Where to send the call next."""

    node: Node
    is_asking: bool
    """Whether ASKING goes in front."""


class Detour(NamedTuple):
    """What to do before that."""

    pause: float
    """Seconds."""
    reads_map: bool


class Journey:
    """Where one call is to be sent."""

    def __init__(self, call: Call[Any], deadline: float) -> None:
        self.call = call
        """What is to be sent: of several calls together in the end only those that were not done yet."""
        self.reply: Any = None
        self.is_over = False
        """Whether `reply` is what came of it."""
        self._chain = Chain(call) if call.is_chain else None
        self._deadline = deadline
        self._at: Node | None = None
        self._sent_to: Stop | None = None
        self._hops = 0
        self._pause = FIRST_PAUSE

    def stop(self, slots: SlotMap) -> Stop:
        """The next stop. Raises: ServerBusy when nobody serves the key, as far as is known."""
        found, self._sent_to = self._sent_to, None
        if found is None:
            # What any node can answer is asked of another one when the first is gone.
            node = slots.another(self._at) if self.call.key is None and self._at else slots.owner(self.call.key)
            if node is None:
                raise ServerBusy("no node of the cluster serves this slot at the moment")
            found = Stop(node, is_asking=False)
        self._at = found.node
        return found

    def came(self, reply: Any) -> ServerError | None:
        """Take a reply; the failure, if it is that of several calls together of which some were not done."""
        if self._chain is None:
            self.reply, self.is_over = reply, True
            return None
        self._chain.take(reply)
        failure = self._chain.strayed()
        self.call, self.reply, self.is_over = self._chain.rest, self._chain.replies, failure is None
        return failure

    def failed(self, error: ServerError, now: float) -> Detour:
        """What follows from a failure. Raises `error` when it is the call's end, and no part of it was answered."""
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
        # Of several calls together some may have to go there, others not yet: they wait until the slot has moved.
        is_followed = isinstance(error, Redirected) and not (error.is_ask and self.call.is_chain)
        return is_followed and self._hops < MOST_HOPS
