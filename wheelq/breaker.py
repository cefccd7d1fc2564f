"""`Breaker`: stops asking what has failed again and again, and says when it will ask next.

    CLOSED ──failures in a row──▶ OPEN ──its time is over──▶ HALF_OPEN ──one call succeeds──▶ CLOSED
      calls pass                   calls fail at once          one call at a time passes
                                     ▲                                 │ it fails: open for twice as long
                                     └─────────────────────────────────┘

A failure is what the caller calls one. Failures count as long as no success lies between them, and open the breaker
only when they also span `failing_ms`: where many places are asked through one breaker and one of them is away, the
successes of the others keep it closed, and a single hiccup of many calls at once does not open it.

The pattern is Nygard's (*Release It!*, 2007). Pure but for the clock that it is given; safe to share between threads.
"""

from __future__ import annotations

import threading
from enum import StrEnum

from wheelq.clock import Clock
from wheelq.settings import BreakerSettings


class BreakerState(StrEnum):
    """Whether calls pass."""

    CLOSED = "closed"
    """All pass."""
    OPEN = "open"
    """None passes."""
    HALF_OPEN = "half_open"
    """One at a time passes, to find out whether things are well again."""


class Breaker:
    """Guards one place: ask `refuse_for` before a call, tell `succeeded` or `failed` after it."""

    def __init__(self, settings: BreakerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._failing_since = 0.0
        self._open_ms = 0
        self._open_until: float | None = None
        self._probe_until = 0.0

    @property
    def state(self) -> BreakerState:
        """Where it stands now."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock.monotonic() < self._open_until else BreakerState.HALF_OPEN

    def refuse_for(self) -> float:
        """0: the call may pass. Else it must not, and this many seconds are left until one may."""
        if self._open_until is None:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            blocked_until = max(self._open_until or 0.0, self._probe_until)
            if now < blocked_until:
                return blocked_until - now
            # Whoever probes and never comes back (it was cancelled) holds the others up for this long only.
            self._probe_until = now + self._open_ms / 1000
            return 0.0

    def succeeded(self) -> None:
        """A call went well."""
        if self._failures:
            with self._lock:
                self._failures, self._open_until, self._probe_until, self._open_ms = 0, None, 0.0, 0

    def failed(self) -> None:
        """A call failed."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._failures:
                self._failing_since = now
            self._failures += 1
            if self._open_until is not None:
                if now >= self._open_until:  # the probe; calls that were under way when it opened tell nothing new
                    self._open(now, self._open_ms * 2)
            elif (
                self._failures >= self._settings.failures
                and (now - self._failing_since) * 1000 >= self._settings.failing_ms
            ):
                self._open(now, self._settings.open_ms)

    def _open(self, now: float, open_ms: int) -> None:
        self._open_ms = min(open_ms, self._settings.open_max_ms)
        self._open_until = now + self._open_ms / 1000
        self._probe_until = 0.0
