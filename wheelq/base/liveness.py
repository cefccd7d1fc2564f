"""`Watch`: tells which processes are alive by their heartbeats, timed by the watcher's own monotonic clock.

A live process keeps changing a value in Redis: its heartbeat. A watcher keeps reading all values and adds up how long
each has stayed the same:

    looks      │    │    │    │         │    │
    value      4    4    5    5         5    5
    silent     0    1    0    1         2    3        seconds; the long gap counts as a usual one

Only the watcher's clock is used, so steps of the server's clock and differences between clocks do not matter. A gap
between two looks that is longer than `longest_gap` counts as a usual one: while the server was away or the watcher
frozen, no heartbeat could be seen. No process may be declared dead because of that, nor because it happened twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Seen:
    value: Hashable
    changed_at: float
    silent: float


class Watch:
    """Measures how long each of several values has not changed."""

    def __init__(self, usual_gap: float, longest_gap: float) -> None:
        self._usual_gap = usual_gap
        self._longest_gap = longest_gap
        self._seen: dict[str, _Seen] = {}
        self._looked_at: float | None = None

    def looked(self, now: float, values: Mapping[str, Hashable]) -> None:
        """Record the values, by name, that were read just now; a name that is missing is forgotten."""
        gap = 0.0 if self._looked_at is None else now - self._looked_at
        if gap > self._longest_gap:
            gap = self._usual_gap
        self._looked_at = now
        before, self._seen = self._seen, {}
        for name, value in values.items():
            last = before.get(name)
            if last is None or last.value != value:
                self._seen[name] = _Seen(value, now, 0.0)
            else:
                self._seen[name] = _Seen(value, last.changed_at, last.silent + gap)

    def __contains__(self, name: object) -> bool:
        return name in self._seen

    def silent(self, name: str) -> float:
        """For how many seconds the value has not changed; 0 if it is new or missing."""
        return self._seen[name].silent if name in self._seen else 0.0

    def changed_at(self, name: str) -> float:
        """The monotonic instant of the look that first saw this value; -inf if it is missing."""
        return self._seen[name].changed_at if name in self._seen else float("-inf")
