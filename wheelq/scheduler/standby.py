"""`Standby`: decides when to look after a leader, and what to do about it. Pure: times are server milliseconds.

A standby needs no copy of the window: it looks at the first waiting job, and comes back when that one should have been
promoted and was not (`hedge_ms` after it was due). While nothing is near it does not look at all; a job that rings
brings the next look forward.

    first job not due, or due just now      rest until `hedge_ms` after it
    overdue, and nobody leads               take the lease
    overdue, but the leader has just acted  it is working off a backlog: let it
    overdue, and the leader is quiet        suspect it: if its connection is closed take the lease, else promote in
                                            its place, and look again soon, until it acts or its lease ends
"""

from __future__ import annotations

from enum import Enum, auto

from wheelq.protocol.calls.leader import Looked
from wheelq.settings import SchedulerSettings


class Advice(Enum):
    """What a standby should do after a look."""

    REST = auto()
    """Nothing, until the next look."""
    TAKE = auto()
    """Take the lease: nobody has it."""
    SUSPECT = auto()
    """Find out whether the leader is gone; take the lease, or promote in its place."""


class Standby:
    """When to look next."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._hedge_ms = settings.hedge_ms
        self._lease_ms = settings.lease_ms
        self._idle_ms = settings.idle_ms
        self.look_at = 0.0
        """When to look, in server milliseconds."""

    def ring(self, jobs: list[tuple[str, int]]) -> None:
        """Jobs (member, due_ms) were scheduled before the horizon."""
        self.look_at = min(self.look_at, min(due_ms for _, due_ms in jobs) + self._hedge_ms)

    def looked(self, look: Looked) -> Advice:
        """What follows from a look."""
        now_ms = look.server_us / 1000
        idle_until = now_ms + self._idle_ms
        if look.first_due_ms is None or look.first_due_ms + self._hedge_ms > now_ms:
            due_by = idle_until if look.first_due_ms is None else look.first_due_ms + self._hedge_ms
            self.look_at = min(due_by, idle_until)
            return Advice.REST
        if not look.token:
            self.look_at = now_ms + self._hedge_ms  # should another be quicker
            return Advice.TAKE
        quiet_ms = self._lease_ms - look.left_ms
        if quiet_ms < self._hedge_ms:
            self.look_at = now_ms + self._hedge_ms
            return Advice.REST
        self.look_at = now_ms + self._hedge_ms / 4
        return Advice.SUSPECT
