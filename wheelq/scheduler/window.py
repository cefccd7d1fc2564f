"""Which jobs of a shard are loaded, and when to load more. Pure: times are the server's milliseconds, as arguments.

        now                 loaded_to (the horizon, as set in Redis)
    ─────┼───────────────────────┼──────────────────────────────▶ due times
         │  in the wheel, or     │  only in the sorted set
         │  rings when scheduled │

While jobs are near, the horizon is `window_ms` ahead, and is moved on when half of that has passed. With nothing near
it lies just before the next due time, or `idle_ms` ahead: then nothing is asked until half a window before that.

A window that holds more jobs than one call reads is read in parts. If even one due time has more jobs than that (a
herd), no call can get past it: then the horizon waits before that time, and the herd is promoted by sweeping.
"""

from __future__ import annotations

from wheelq.protocol.calls.leader import Opened
from wheelq.settings import SchedulerSettings


class Window:
    """The loaded part of one shard."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._window_ms = settings.window_ms
        self._room = settings.wheel_ids
        self.loaded_to: int | None = None
        """The horizon; None when nothing is known to be loaded."""
        self.open_at = 0.0
        """When more is to be loaded."""

    def forget(self) -> None:
        """Hints may have been lost, or another node may have led: load everything near again, now."""
        self.loaded_to = None
        self.open_at = 0.0

    def opened(self, answer: Opened, held: int) -> None:
        """Take the answer to `open_window`; the wheel now holds `held` ids."""
        now_ms = answer.server_us / 1000
        before = self.loaded_to
        self.loaded_to = answer.horizon_ms
        if not answer.is_partial:
            self.open_at = answer.horizon_ms - self._window_ms / 2
        elif held < self._room and (before is None or answer.horizon_ms > before):
            self.open_at = now_ms
        else:  # full, or in front of a herd: go on when what is loaded is due, for what is behind does not ring
            self.open_at = answer.horizon_ms + 1.0

    def takes(self, due_ms: int, now_ms: float) -> bool:
        """Whether a job that rang belongs into the wheel.

        One that is due later than a window from now rang because the horizon is far on an idle shard. The window is
        opened anew instead, which brings the horizon back to before that job, so that those behind it do not ring.
        """
        if due_ms <= now_ms + self._window_ms:
            return True
        self.open_at = now_ms
        return False

    def covers(self, due_ms: int) -> bool:
        """Whether a job due then will not be read by a later opening, and so must be kept in the wheel."""
        return self.loaded_to is not None and due_ms <= self.loaded_to
