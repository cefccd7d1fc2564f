"""Which jobs of a shard are loaded, and when to load more. Pure: times are the server's milliseconds, as arguments.

        now                 loaded_to (the horizon, as set in Redis)
    ─────┼───────────────────────┼──────────────────────────────▶ due times
         │  in the wheel, or     │  only in the sorted set
         │  hinted when scheduled│

While jobs are near, the horizon is `window_ms` ahead, and moves forward when half of that has passed. Without near jobs
it lies just before the next due time, or `idle_ms` ahead: then no call is made until half a window before that.

A window with more jobs than one call reads is read in parts. If a single due time has more jobs than that (a herd), no
call can get past it: then the horizon waits before that time, and sweeping promotes the herd.
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
        """The horizon; None if nothing is known to be loaded."""
        self.open_at = 0.0
        """When to load more, in server milliseconds."""
        self._is_opening = False
        self._is_forgotten = False  # whether it was forgotten while it was being opened
        self._was_hinted = False  # whether a hint named a later job while it was being opened

    def opening(self) -> None:
        """Record that more is being loaded. Events until the answer is taken may be missing in it."""
        self._is_opening = True
        self._is_forgotten = self._was_hinted = False

    def forget(self) -> None:
        """Hints may have been lost, or another node may have led: load everything near again, now."""
        self.loaded_to = None
        self.open_at = 0.0
        self._is_forgotten = self._is_opening

    def opened(self, answer: Opened, held: int) -> None:
        """Take the answer to `open_window`; the wheel now holds `held` ids."""
        self._is_opening = False
        if self._is_forgotten:  # the answer continues the window loaded before
            return
        now_ms = answer.server_us / 1000
        before = self.loaded_to
        self.loaded_to = answer.horizon_ms
        if not answer.is_partial:
            self.open_at = answer.horizon_ms - self._window_ms / 2
        elif held < self._room and (before is None or answer.horizon_ms > before):
            self.open_at = now_ms
        else:  # full, or before a herd: continue when the loaded jobs are due, because later ones send no hint
            self.open_at = answer.horizon_ms + 1.0
        if self._was_hinted:
            self.open_at = now_ms

    def takes(self, due_ms: int, now_ms: float) -> bool:
        """Whether a job that a hint named belongs in the wheel.

        If the job is due later than a window from now, the hint was sent because the horizon of an idle shard is far
        ahead. Then the window is opened again instead, which moves the horizon back to before that job, so that later
        jobs send no hints.
        """
        if due_ms <= now_ms + self._window_ms:
            return True
        self.open_at = now_ms
        self._was_hinted = self._is_opening
        return False

    def covers(self, due_ms: int) -> bool:
        """Whether a job due at this time must stay in the wheel, because no later opening will read it."""
        return self.loaded_to is not None and due_ms <= self.loaded_to
