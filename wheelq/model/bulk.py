"""Changes of all jobs in a range of due times: how far one has come."""

from __future__ import annotations

from typing import NamedTuple


class BulkProgress(NamedTuple):
    """How far `cancel_due` or `reschedule_due` has come."""

    jobs: int
    """Jobs changed so far; calls with the same name add up."""
    is_done: bool
    """Whether the end of the range was reached."""
    name: str
    """Repeat the call with this name to continue it."""
