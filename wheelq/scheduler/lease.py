"""How long a leader can trust its lease. Pure: times are monotonic seconds, given as arguments.

**The authority** is the token in the `lease` key. Every script that only a leader may run compares it first, so a node
that wrongly believes it leads does no harm: its calls answer "not the leader" and change nothing. A token is
`node:epoch:server run id:client id`; the epoch grows with every acquisition, so no two tokens are ever the same.

**Local time** serves only to renew in time, and to send no useless calls. At the server the lease ends `lease_ms` after
the server set or renewed it, and that happened after the request was sent. So the moment of sending plus `lease_ms`,
less a margin, is a bound that this node can trust, whatever its wall clock says.

| event                                 | consequence                                                                 |
|---------------------------------------|-----------------------------------------------------------------------------|
| reply of acquire lost                 | asked again: the script finds this node's own token and replaces it         |
| reply of renew lost                   | trusted until the older bound; the next call shows whether it still holds   |
| node frozen past the lease, then woken| the bound has passed: it must acquire again; a call on its way is refused   |
| lease lost in a failover              | the next call is refused; the node acquires it again, with a greater epoch  |
| node dies                             | its connection closes; a node that sees this may replace the token at once  |
"""

from __future__ import annotations

import re

from wheelq.settings import SchedulerSettings

SAME_MS = 20.0
"""How many milliseconds two readings of the end of the same lease may differ if it was not renewed in between."""
_NUMBER = re.compile("[0-9]{1,18}")


class OwnLease:
    """The lease of one shard, for its holder."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._lease = settings.lease_ms / 1000
        self._margin = settings.lease_margin_ms / 1000
        self._renew = settings.renew_ms / 1000
        self._asked_at = float("-inf")
        self.token = ""

    def granted(self, token: str, asked_at: float) -> None:
        """Record that a request sent at `asked_at` acquired the lease."""
        self.token = token
        self._asked_at = asked_at

    def prolonged(self, asked_at: float) -> None:
        """Record that a leader's request sent at `asked_at` succeeded, which renews a lease that is not lost."""
        if not self.is_lost:
            self._asked_at = max(self._asked_at, asked_at)

    def lost(self) -> None:
        """Record that the lease is no longer this node's."""
        self._asked_at = float("-inf")

    @property
    def is_lost(self) -> bool:
        """Whether it was never granted, or lost since then."""
        return self._asked_at == float("-inf")

    def is_held(self, now: float) -> bool:
        """Whether the lease can be trusted."""
        return now < self.trusted_until

    @property
    def trusted_until(self) -> float:
        """Until when the lease can be trusted."""
        return self._asked_at + self._lease - self._margin

    def is_half_over(self, now: float) -> bool:
        """Whether half of the time until it is renewed has passed."""
        return now >= self._asked_at + self._renew / 2

    @property
    def renew_at(self) -> float:
        """When it is time to renew."""
        return self._asked_at + self._renew


class WatchedLease:
    """The lease of another node, for a node that waits for its end.

    The server ends a lease by a clock that may be stepped back, which would prolong the lease by the step. So a lease
    also counts as over if its holder has not renewed it for its whole duration, by this node's monotonic clock.
    """

    def __init__(self, lease_ms: int) -> None:
        self._life = lease_ms / 1000
        self._token = ""
        self._ends_ms = 0.0
        self._since = 0.0

    def is_over(self, now: float, token: str, ends_ms: float) -> bool:
        """Whether the lease is over; `ends_ms` is its end as the server reported it at `now` (monotonic seconds)."""
        if token != self._token or abs(ends_ms - self._ends_ms) > SAME_MS:
            self._token, self._ends_ms, self._since = token, ends_ms, now
        return bool(token) and now - self._since > self._life


def holder_connection(token: str) -> tuple[str, int] | None:
    """Server run id and client id of the token's holder; None if wheelq did not make the token."""
    parts = token.split(":")
    return (parts[2], int(parts[3])) if len(parts) == 4 and _NUMBER.fullmatch(parts[3]) else None


def holder_node(token: str) -> str:
    """The node that holds the token."""
    return token.partition(":")[0]
