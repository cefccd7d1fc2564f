"""Settings of clients (connection, limits, circuit breaker and outbox) and of a new topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from wheelq.settings.checked import DAY_MS, Checked

Durability = Literal["server", "replicated", "fsynced"]
"""The confirmation that a schedule call waits for: see `producer.confirmation`."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings(Checked):
    """Settings of the connections to the server."""

    connect_timeout_ms: int = 2_000
    """How long to wait for a connection before calling the server unavailable."""
    reply_timeout_ms: int = 10_000
    """How long to wait for a reply before calling the outcome unknown. Above the server's own 5 s script limit."""
    max_connections: int = 50
    """Connections per client object; callers beyond that wait their turn."""


@dataclass(frozen=True, slots=True)
class BreakerSettings(Checked):
    """When the circuit opens after repeated failures, and for how long."""

    failures: int = 5
    """Calls in a row that must fail, with no success between them."""
    failing_ms: int = 500
    """The time over which they must fail: a hiccup is not an outage."""
    open_ms: int = 1_000
    """How long calls then fail at once; doubled each time that the next trial call fails too."""
    open_max_ms: int = 10_000
    """The longest such pause, and so the longest time until a recovery is noticed."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        self._require(self.open_ms <= self.open_max_ms, "open_ms", "must be at most open_max_ms")


@dataclass(frozen=True, slots=True)
class OutboxSettings(Checked):
    """Where producers keep jobs while the server is away."""

    path: str = ""
    """An SQLite file on a local disk; several processes may share it. Empty: no outbox, and calls fail."""
    max_jobs: int = 1_000_000
    """Most jobs in the outbox; further ones are refused."""
    max_bytes: int = 1_073_741_824
    """Most bytes of all packed payloads together."""
    retry_ms: int = 500
    """How often delivery is tried while the server is away, and how soon another process's jobs are noticed."""


@dataclass(frozen=True, slots=True)
class ClientSettings(Checked):
    """Settings of producers: limits, retries and durability."""

    payload_max_bytes: int = 64 * 1024
    """Largest packed payload. Redis keeps every waiting payload in memory; store big data elsewhere."""
    max_delay_ms: int = 3_660 * DAY_MS
    """Furthest due time, about ten years: a later one is nearly always a wrong unit."""
    topics_ttl_ms: int = 10_000
    """How long a client trusts what it knows of a topic (number of shards)."""
    repeats: int = field(default=1, metadata={"lowest": 0})
    """How often a schedule call whose reply was lost is repeated with the same job id before giving up."""
    durability: Durability = "server"
    """When a schedule call returns: once the server has answered, once replicas have the jobs, or once they are on
    disk. Changes of topics wait for the same."""
    replicas: int = 1
    """With "replicated": how many replicas must have the jobs. If there are more, a failover may promote another."""
    fsynced_replicas: int = field(default=0, metadata={"lowest": 0})
    """With "fsynced": on how many replicas' disks the jobs must be, besides the server's own."""
    replicated_timeout_ms: int = 2_000
    """How long to wait for these confirmations. A disk that is synced every second may take two."""
    trace_jobs: bool = False
    """Whether `schedule_many` makes a span `create {topic}` for each job, besides its own; the run of a job is then
    linked to that span."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        known = get_args(Durability)
        problem = f"must be one of {', '.join(known)}, not {self.durability}"
        self._require(self.durability in known, "durability", problem)


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
