"""`Breaker`: a circuit breaker, which stops calls to a place that keeps failing and says when the next may pass.

    CLOSED ──failures in a row──▶ OPEN ──its time is over──▶ HALF_OPEN ──one call succeeds──▶ CLOSED
      calls pass                   calls fail at once          one call at a time passes
                                     ▲                                 │ it fails: open for twice as long
                                     └─────────────────────────────────┘

The caller decides which calls failed. Only failures without a success between them count, and they open the breaker
only if they also span `failing_ms`. So if one of several places behind a breaker is away, the successes of the others
keep the breaker closed, and many simultaneous calls that fail at one moment do not open it.

The pattern is Nygard's (*Release It!*, 2007). Pure except for the given clock; safe to share between threads.
"""

from __future__ import annotations

import threading
from enum import StrEnum

from wheelq.base.clock import Clock
from wheelq.settings import BreakerSettings


class BreakerState(StrEnum):
    """Whether calls pass."""

    CLOSED = "closed"
    """All pass."""
    OPEN = "open"
    """None passes."""
    HALF_OPEN = "half_open"
    """One call at a time passes, as a probe."""


class Breaker:
    """Guards one place: ask `refuse_for` before a call, and report `succeeded` or `failed` after it."""

    def __init__(self, settings: BreakerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self.failures = 0
        """Failures in a row. While it is 0, callers may skip `refuse_for` and `succeeded`."""
        self._failing_since = 0.0
        self._open_ms = 0
        self._open_until: float | None = None
        self._probe_until = 0.0

    @property
    def state(self) -> BreakerState:
        """The current state."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock.monotonic() < self._open_until else BreakerState.HALF_OPEN

    def refuse_for(self) -> float:
        """Returns 0 if the call may pass, else the seconds until a call may."""
        if self._open_until is None:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            blocked_until = max(self._open_until or 0.0, self._probe_until)
            if now < blocked_until:
                return blocked_until - now
            # A probe that never ends (its caller was cancelled) blocks other calls only for this long.
            self._probe_until = now + self._open_ms / 1000
            return 0.0

    def succeeded(self) -> None:
        """Record a success."""
        if self.failures:
            with self._lock:
                self.failures, self._open_until, self._probe_until, self._open_ms = 0, None, 0.0, 0

    def failed(self) -> None:
        """Record a failure."""
        with self._lock:
            now = self._clock.monotonic()
            if not self.failures:
                self._failing_since = now
            self.failures += 1
            if self._open_until is not None:
                if now >= self._open_until:  # the probe; calls that were in flight when it opened do not count
                    self._open(now, self._open_ms * 2)
            elif (
                self.failures >= self._settings.failures
                and (now - self._failing_since) * 1000 >= self._settings.failing_ms
            ):
                self._open(now, self._settings.open_ms)

    def _open(self, now: float, open_ms: int) -> None:
        self._open_ms = min(open_ms, self._settings.open_max_ms)
        self._open_until = now + self._open_ms / 1000
        self._probe_until = 0.0
