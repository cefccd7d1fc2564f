"""`Peers`: which other workers of a group are alive, by their heartbeats. Pure.

    changed heartbeat within `abandoned_ms`            alive: nothing is taken from it, however idle it looks
    unchanged, or says that the worker has left        gone: all it holds is taken over, however busy it looks
    no heartbeat                                       unknown: a consumer in another language; see its deliveries

Times are this worker's monotonic seconds: see `liveness`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from wheelq.base.liveness import Watch
from wheelq.protocol.calls.heartbeats import LEFT
from wheelq.settings import WorkerSettings

NEARLY = 0.001
"""How many seconds too early a look may come."""


class Standing(Enum):
    """The state of a consumer."""

    LIVING = auto()
    """Its deliveries are left alone."""
    GONE = auto()
    """Its deliveries are taken over."""
    UNKNOWN = auto()
    """It has no heartbeat: only its deliveries that are not renewed are taken over."""


class Peers:
    """The heartbeats of all workers, evaluated."""

    def __init__(self, worker: str, group: str, settings: WorkerSettings) -> None:
        self._worker = worker
        self._group = group
        self._renew = settings.renew_ms / 1000
        self._abandoned = settings.abandoned_ms / 1000
        self._block = settings.block_ms / 1000
        self._beats: Mapping[str, str] = {}  # of this group
        self._watch = Watch(self._renew, self._abandoned / 2)
        self._gone: frozenset[str] = frozenset()
        self._has_heard = False

    def heard(self, now: float, beats: Mapping[str, str]) -> bool:
        """Take the heartbeats read just now; returns whether there may be new deliveries to take over."""
        mine = {worker: beat for worker, beat in beats.items() if beat.partition(" ")[2] == self._group}
        mine.pop(self._worker, None)
        self._beats = mine
        self._watch.looked(now, mine)
        gone = frozenset(name for name in mine if self.standing(name) is Standing.GONE)
        is_news = bool(gone - self._gone) or not self._has_heard or any(map(self._may_receive, gone))
        self._has_heard = True
        self._gone = gone
        return is_news

    def _may_receive(self, gone: str) -> bool:
        """Whether its last read may wait in the server still, which gives it new entries then: it may be frozen."""
        has_left = self._beats[gone].partition(" ")[0] == LEFT
        return not has_left and self._watch.silent(gone) < self._abandoned + self._block + self._renew

    def standing(self, consumer: str) -> Standing:
        """Returns the state of a consumer of the group."""
        if consumer == self._worker or not self._has_heard:
            return Standing.LIVING
        if consumer in self._beats:
            has_left = self._beats[consumer].partition(" ")[0] == LEFT
            is_silent = self._watch.silent(consumer) >= self._abandoned - NEARLY
            return Standing.GONE if has_left or is_silent else Standing.LIVING
        return Standing.UNKNOWN

    def still_silent(self, gone: Sequence[str], beats: Mapping[str, str]) -> list[str]:
        """Returns the workers, of those found gone, whose heartbeats are still the same; `beats` were read just now."""
        return [name for name in gone if beats.get(name) in (None, self._beats.get(name))]

    @property
    def is_alone(self) -> bool:
        """Whether no other worker of the group is known, alive or gone."""
        return not self._beats

    def next_look(self, *, is_at_rest: bool) -> float:
        """Seconds until the next look: fewer than usual if a worker may count as dead by then.

        Twice as many as usual while this worker is alone and at rest: nobody watches it, and it watches nobody.
        """
        if is_at_rest and self.is_alone:
            return min(2 * self._renew, self._abandoned - self._renew / 2)
        lefts = (self._abandoned - self._watch.silent(name) for name in self._beats if self._watch.silent(name) > 0)
        return min([self._renew, *(left for left in lefts if left > 0)])


class OtherHolders:
    """Whether another worker's hold on an ordered shard is over: it was not renewed for `abandoned_ms`. Pure."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._renew = settings.renew_ms / 1000
        self._abandoned = settings.abandoned_ms / 1000
        self.forget()

    def forget(self) -> None:
        """Record that no other worker holds the shard."""
        self._watch = Watch(self._renew, self._abandoned / 2)
        self.over = ""
        """The hold that may be replaced."""

    def next_ask(self, now: float, held: str) -> float:
        """Take another worker's hold as just read. Returns the seconds until the next look at it."""
        self._watch.looked(now, {"held": held})
        silent = self._watch.silent("held")
        self.over = held if silent >= self._abandoned - NEARLY else ""
        if self.over:
            return 0.0
        return min(self._renew, self._abandoned - silent) if silent else self._renew
