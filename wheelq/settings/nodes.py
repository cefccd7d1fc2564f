"""Settings of what brings jobs to their handlers: scheduler nodes and workers."""

from __future__ import annotations

from dataclasses import dataclass

from wheelq.settings.checked import Checked


@dataclass(frozen=True, slots=True)
class SchedulerSettings(Checked):
    """How a scheduler node leads."""

    lease_ms: int = 9_000
    """Life of a shard's lease. Safety does not depend on it; a dead *host* costs this much lateness."""
    lease_margin_ms: int = 500
    """The lease is trusted only until this long before its end."""
    window_ms: int = 2_000
    """How far ahead jobs are loaded into the wheel."""
    window_ids: int = 2_000
    """Ids read in one call; a denser window is read in parts. 2,000 keep the server busy for about 1 ms."""
    wheel_ids: int = 50_000
    """Most ids held in one shard's wheel (about 250 bytes each); what is beyond is promoted by sweeping."""
    batch: int = 250
    """Jobs promoted in one call, at most 500. In a herd other topics wait for that long: about half a millisecond on a
    free processor, and five where it is shared by many; larger batches promote no faster."""
    sweep_ms: int = 500
    """Beat of the sweep while anything is near: the most a lost hint can cost."""
    hedge_ms: int = 100
    """How long a job may be overdue before the standby promotes it in the leader's place."""
    idle_ms: int = 60_000
    """Longest sleep of a shard with nothing near; also the most a lost hint can cost an idle shard's next look."""
    topics_ms: int = 1_000
    """How often a node asks for the topics' version number, in case a notice of a new topic was lost."""
    recurring_ahead_ms: int = 10_000
    """How long before its due time an occurrence of a recurring job is made, as an ordinary job."""
    heartbeat_ms: int = 5_000
    """How often a node says that it lives; three missed beats and its shards are shared out anew. Until then, and
    within `hedge_ms`, standbys do its work."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        self._require(
            self.lease_margin_ms * 3 <= self.lease_ms, "lease_margin_ms", "must be at most a third of lease_ms"
        )
        self._require(self.batch <= 500, "batch", "must be at most 500: a script call must stay short")
        self._require(self.recurring_ahead_ms > 1_000, "recurring_ahead_ms", "must be more than 1,000")
        self._require(self.window_ids <= 3_500, "window_ids", "must be at most 3,500")

    @property
    def renew_ms(self) -> int:
        """The lease is renewed three times in its life, so that two lost renewals do no harm."""
        return self.lease_ms // 3


@dataclass(frozen=True, slots=True)
class WorkerSettings(Checked):
    """How a worker reads, acks and recovers."""

    concurrency: int = 100
    """Handlers running at the same time."""
    threads: int = 32
    """Of these, how many plain (not async) handlers run at the same time."""
    block_ms: int = 5_000
    """How long one read waits for the next job; only the cost at rest depends on it."""
    ack_batch: int = 500
    """Most acks sent in one call."""
    ack_ms: int = 5
    """How long an ack may wait for others."""
    renew_ms: int = 1_300
    """How often running deliveries are renewed, and abandoned ones looked for."""
    abandoned_ms: int = 3_500
    """A delivery not renewed for this long belongs to a dead worker and is run again. At least 2 × renew_ms."""
    max_deliveries: int = 10
    """A job that was delivered this often without an answer (it kills its workers) is buried."""
    grace_ms: int = 10_000
    """How long running handlers may finish at a stop; the rest is handed back at once."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        self._require(self.abandoned_ms >= 2 * self.renew_ms, "abandoned_ms", "must be at least twice renew_ms")
        self._require(self.ack_batch <= 500, "ack_batch", "must be at most 500: a script call must stay short")
