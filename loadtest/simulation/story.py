"""`Story`: the log of one run, and its digest, by which two runs are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class Story:
    """The lines of one run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.lines: list[str] = []
        self.is_over = False
        """Whether later lines are ignored."""
        self._now = now

    def tell(self, who: str, what: str) -> None:
        """Add a line."""
        if not self.is_over:
            self.lines.append(f"{self._now():10.6f}  {who:<12} {what}")

    @property
    def digest(self) -> str:
        """A digest of all lines."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]
