"""The caller of a request: what it may do, and how often. Pure; time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from wheelq.server.access.keys import Verb, allows, allows_all

DEPTH_S = 2
CALLERS = 10_000
"""The most buckets kept: those of the callers that were quiet for longest are dropped first."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    id: str
    """The id of the API key; empty if none is needed."""
    scopes: tuple[str, ...]

    def may(self, verb: Verb, topic: str | None) -> bool:
        """Whether the caller may do this with the topic; None: with any topic."""
        return allows(self.scopes, verb, topic)

    @property
    def reads_all(self) -> bool:
        """Whether the caller may read every topic, and so also what belongs to none, such as receivers."""
        return allows_all(self.scopes, Verb.READ)


ANYONE = Caller("", ("*:*",))
"""The caller of a server that needs no keys."""


class Rates:
    """Limits the requests per second of each caller by a token bucket, two seconds deep."""

    def __init__(self, per_second: int) -> None:
        """0: no limit."""
        self._per_second = per_second
        self._buckets: dict[str, tuple[float, float]] = {}  # caller → tokens left, when

    def wait_s(self, caller: str, now: float) -> float:
        """Takes a token and returns 0; if there is none, returns the seconds until there is one."""
        if not self._per_second:
            return 0.0
        depth = float(self._per_second * DEPTH_S)
        left, since = self._buckets.pop(caller, (depth, now))
        left = min(depth, left + (now - since) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[caller] = (left if wait else left - 1, now)  # moved to the end: the first was quiet for longest
        if len(self._buckets) > CALLERS:
            del self._buckets[next(iter(self._buckets))]
        return wait
