"""Settings of a topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from wheelq.settings.checked import DAY_MS, Checked

Misfire = Literal["run", "skip", "bury"]
"""What happens to a job that would start later than its grace: it runs, is dropped, or is buried."""


@dataclass(frozen=True, slots=True)
class TopicSettings(Checked):
    """The settings of a new topic. Redis stores them, and `configure` changes them there. A limit of 0 means none."""

    shards: int = 1
    """Partitions: each has its own sorted set, stream and leader. One serves tens of thousands of jobs a second."""
    retention_ms: int = field(default=0, metadata={"lowest": 0})
    """How long consumed entries stay in the stream; 0 removes them as soon as every group has acked."""
    dead_retention_ms: int = field(default=90 * DAY_MS, metadata={"lowest": 0})
    """How long a dead job can be looked up and replayed; 0: until it is purged."""
    dead_max: int = field(default=100_000, metadata={"lowest": 0})
    """Most dead jobs kept in each shard; beyond that the oldest are removed. 0: no limit."""
    max_rate: float = field(default=0.0, metadata={"lowest": 0})
    """Most jobs promoted per second, evenly spaced, all shards together; each shard has an equal share."""
    max_pending: int = field(default=0, metadata={"lowest": 0})
    """Most jobs that wait for their due time, all shards together; each shard has an equal share and refuses more."""
    max_ready: int = field(default=0, metadata={"lowest": 0})
    """Most promoted jobs that no worker has read yet, all shards together; further jobs wait in the sorted set."""
    misfire: Misfire = "run"
    """What happens to a job that would start later than `grace_ms` after its due time."""
    grace_ms: int = field(default=0, metadata={"lowest": 0})
    """How late a job may start before that counts as a misfire. At least 1 unless `misfire` is "run"."""
    keep_done_ms: int = field(default=0, metadata={"lowest": 0})
    """How long finished jobs can be looked up and waited for; 0 forgets them at once, and costs nothing."""
    result_max_bytes: int = 4_096
    """Largest packed result that is kept with a finished job; a larger one is left out, with a warning."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        known = get_args(Misfire)
        self._require(self.misfire in known, "misfire", f"must be one of {', '.join(known)}, not {self.misfire!r}")
        has_grace = self.misfire == "run" or self.grace_ms > 0
        self._require(has_grace, "grace_ms", f"must be more than 0, for misfire is {self.misfire!r}")
        self._require(self.max_rate < float("inf"), "max_rate", "must be finite; 0 means no limit")
