"""Scores of members in `delayed`: due times in ms, with a fraction for a priority; see `lua/lib/due.lua`."""

from __future__ import annotations

from wheelq.protocol.codec import LAST_MS

HELD = 2**45
"""Added to the score of a job that is held back because its key is at its limit. Due times are lower."""


def due_ms(score: bytes) -> int:
    """Returns the due time in a member's score, which has a fraction for priorities other than normal.

    A job that is held back has `HELD` added to it. Another program may have stored any score, even infinity, so the
    result is limited to 0 to 2^53.
    """
    due = int(score) if score.isdigit() and len(score) < 16 else round(min(max(float(score), 0.0), LAST_MS))
    return due - HELD if HELD <= due < 2 * HELD else due


def is_held_back(score: bytes) -> bool:
    """Whether a member's score says that the job is held back because its key is at its limit."""
    return HELD <= float(score) < 2 * HELD


def unheld(score: float) -> float:
    """Returns the score that a job would have if it were not held back."""
    return round(score - HELD, 2) if HELD <= score < 2 * HELD else score
