"""Settings of scheduler nodes and workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from wheelq.settings.checked import Checked

Trace = Literal["link", "parent"]
"""How a run's span stands to the one that scheduled its job."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings(Checked):
    """Settings of a scheduler node."""

    lease_ms: int = 9_000
    """Duration of a shard's lease. Safety does not depend on it; a dead *host* causes at most this much lateness."""
    lease_margin_ms: int = 500
    """The lease is trusted only until this long before its end."""
    window_ms: int = 2_000
    """How far ahead jobs are loaded into the wheel."""
    window_ids: int = 2_000
    """Ids read in one call; a denser window is read in parts. 2,000 keep the server busy for about 1 ms."""
    wheel_ids: int = 50_000
    """Most ids held in one shard's wheel (about 250 bytes each); further ids are promoted by sweeping."""
    batch: int = 250
    """Jobs promoted in one call, at most 500. In a herd other topics wait for that long: about half a millisecond on a
    free processor, and five where it is shared by many; larger batches promote no faster."""
    gather_ms: int = field(default=2, metadata={"lowest": 0})
    """How long a node waits after a promotion for further jobs, so that they share a call; at most a quarter of
    `hedge_ms`. It then waits for the next whole millisecond. A job that falls due after a quiet moment is promoted at
    once. 0: each on its own."""
    sweep_ms: int = 500
    """How often the sweep runs while a job is due soon: the most lateness that a lost hint can cause."""
    hedge_ms: int = 100
    """How long a job may be overdue before the standby promotes it in the leader's place."""
    idle_ms: int = 80_000
    """Longest time between two looks at a shard without a job that is due soon; a lost hint delays jobs by no more."""
    topics_ms: int = 5_000
    """How often a node asks for the topics' version number, in case a notice of a new topic was lost. It also asks with
    every heartbeat."""
    recurring_ahead_ms: int = 10_000
    """How long before its due time an occurrence of a recurring job is scheduled, as an ordinary job."""
    heartbeat_ms: int = 5_000
    """How often a node sends a heartbeat. After three missing ones its shards are assigned to other nodes; until then,
    standbys promote its jobs, within `hedge_ms`."""

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
        """How often a lease is renewed: three times in its life, so that two lost renewals do no harm."""
        return self.lease_ms // 3


@dataclass(frozen=True, slots=True)
class WorkerSettings(Checked):
    """Settings of a worker: reading, acking and recovery."""

    concurrency: int = 100
    """Handlers running at the same time."""
    threads: int = 32
    """How many of them may be plain (not async) handlers, each in a thread."""
    block_ms: int = 5_000
    """How long one read waits for the next job; only the cost at rest depends on it."""
    ack_batch: int = 500
    """Most acks sent in one call."""
    ack_ms: int = 10
    """How long an ack may wait for others, after an ack. After a quiet moment it goes at once."""
    renew_ms: int = 1_300
    """How often running deliveries are renewed, and abandoned ones recovered."""
    abandoned_ms: int = 3_500
    """A delivery not renewed for this long belongs to a dead worker and is run again. At least 2 × renew_ms."""
    max_deliveries: int = 10
    """A job that was delivered this often without an answer (it kills its workers) is buried."""
    grace_ms: int = 10_000
    """How long running handlers have to finish at a stop; unfinished jobs are then handed back at once."""
    trace: Trace = "link"
    """How the span of a run stands to the span that scheduled the job. "link": it begins a trace of its own, and is
    linked to that span. "parent": it continues that trace, which may be days old. Batches are always linked."""
    trace_settling: bool = False
    """Whether each call that acknowledges, retries or buries jobs has a span, which is linked to their runs."""
    log_jobs: bool = False
    """Whether there is a line in the log for every job that was run (logger wheelq.jobs); else only at level DEBUG."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        self._require(self.abandoned_ms >= 2 * self.renew_ms, "abandoned_ms", "must be at least twice renew_ms")
        self._require(self.trace in get_args(Trace), "trace", f"must be link or parent, not {self.trace!r}")
        self._require(self.ack_batch <= 500, "ack_batch", "must be at most 500: a script call must stay short")
