"""What a leader may believe of its lease. Pure: times are monotonic seconds, given as arguments.

**What is authoritative.** The token in the `lease` key. Every script that only a leader may run compares it first, so
a node that wrongly believes to lead can do no harm: its calls answer "not the leader" and change nothing. A token is
`node:epoch:server run id:client id`; the epoch grows with every acquisition, so no two tokens are ever the same.

**What local time is for.** To stop asking when asking is useless, and to renew in time. The lease ends at the server
`lease_ms` after it was set or prolonged there, which was not before the request left. So the moment before the request
plus `lease_ms`, less a margin, is a bound this node can trust, whatever its wall clock says.

| what happens                          | what follows                                                                |
|---------------------------------------|-----------------------------------------------------------------------------|
| reply of acquire lost                 | asked again: the script finds this node's own token and replaces it         |
| reply of renew lost                   | trusted until the older bound; the next call tells                          |
| node frozen past the lease, then woken| the bound has passed: it acquires anew; a call already on its way is refused|
| lease lost in a failover              | the next call is refused; the node acquires anew, with a greater epoch      |
| node dies                             | its connection closes; whoever sees that may replace the token at once      |
"""

from __future__ import annotations

from wheelq.settings import SchedulerSettings


class Lease:
    """One shard's lease, as its holder sees it."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._lease = settings.lease_ms / 1000
        self._margin = settings.lease_margin_ms / 1000
        self._renew = settings.renew_ms / 1000
        self._asked_at = float("-inf")
        self.token = ""

    def granted(self, token: str, asked_at: float) -> None:
        """The lease was acquired with a request that left at `asked_at`."""
        self.token = token
        self._asked_at = asked_at

    def prolonged(self, asked_at: float) -> None:
        """A request that left at `asked_at` was answered as a leader's; each of them prolongs the lease."""
        self._asked_at = max(self._asked_at, asked_at)

    def lost(self) -> None:
        """The server said that the lease is not this node's."""
        self._asked_at = float("-inf")

    def is_held(self, now: float) -> bool:
        """Whether the lease can be trusted."""
        return now < self.trusted_until

    @property
    def trusted_until(self) -> float:
        """The last moment at which the lease can be trusted."""
        return self._asked_at + self._lease - self._margin

    @property
    def renew_at(self) -> float:
        """When it is time to renew."""
        return self._asked_at + self._renew


def holder_connection(token: str) -> tuple[str, int] | None:
    """Server run id and client id of the token's holder; None when the token was not made by wheelq."""
    parts = token.split(":")
    return (parts[2], int(parts[3])) if len(parts) == 4 and parts[3].isdigit() else None


def holder_node(token: str) -> str:
    """The node that holds the token."""
    return token.partition(":")[0]
