"""The settings of each component: connection, client, breaker, outbox, topic, scheduler, worker and HTTP server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from wheelq.settings.declaration import DAY_MS, Checked

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


Access = Literal["auto", "keys", "open"]
"""Access to the HTTP server: see `ServerSettings.access`."""

BASE_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, slots=True)
class ServerSettings(Checked):
    """Settings of the HTTP server: address, access and limits."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 7380
    """The port to listen on."""
    access: Access = "auto"
    """With "keys" all need an API key; with "open" nobody, under any Host; "auto": open on loopback, else keys."""
    classic_key: str = ""
    """Id of the API key whose scopes apply to classic calls without a key: their callers may be unable to send one."""
    keys_ms: int = 2_000
    """How often API keys are read again: a key revoked elsewhere still works for at most this long."""
    rate: int = field(default=0, metadata={"lowest": 0})
    """Requests a second for each caller (API key; address, if none is needed), twice as many at once; 0: no limit."""
    body_max_bytes: int = 8 * 1024 * 1024
    """Largest request body."""
    max_in_flight: int = 1_000
    """Most requests in flight; further ones are answered 503 with Retry-After."""
    max_waiting: int = 1_000
    """Most leases that wait for a job (long polls); further ones are answered at once."""
    max_wait_ms: int = 20_000
    """Longest that a lease waits for a job, whatever it asks for; keep it below the timeout of proxies in front."""
    drain_ms: int = 10_000
    """How long requests in flight have to finish at a stop."""
    idempotency_ms: int = DAY_MS
    """How long the answer to a request with an Idempotency-Key is kept."""
    max_deliveries: int = 10
    """A job that was leased this often without an answer is buried."""
    services: str = ""
    """The register of receivers (a TOML file). With it, jobs may have a target, which is called when they are due."""
    calls: bool = True
    """Whether this server calls the targets itself; otherwise `wheelq callbacks` does, in separate processes."""
    classic_kept_ms: int = 3 * DAY_MS
    """How long the content of a pulled task can be looked up."""
    audit: str = "changes"
    """The events in the log `wheelq.audit`: "changes", "all" (also scheduling, consuming and refusals) or "off"."""
    base_path: str = ""
    """The path under which browsers reach this server behind a proxy ("/wheelq"); requests may have it or not."""
    environment: str = ""
    """The name that the dashboard shows on every page, such as "production"."""
    show_payloads: bool = True
    """Whether the dashboard shows payloads, headers and results of jobs."""
    cors_origins: str = ""
    """Web sites whose pages may call this server, separated by spaces; none by default."""
    tls_cert: str = ""
    """Certificate file (PEM), with `tls_key`: the server then speaks HTTPS only."""
    tls_key: str = ""
    """The certificate's private key (PEM)."""
    tls_client_ca: str = ""
    """Certificate authority (PEM) that must have signed every client's certificate."""

    @property
    def shown(self) -> str:
        """Where browsers reach this server, as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}{self.base_path}/"

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        self._require(self.port <= 65_535, "port", f"must be at most 65,535, not {self.port}")
        self._require(self.access in get_args(Access), "access", f"must be one of {', '.join(get_args(Access))}")
        is_path = not self.base_path or BASE_PATH.fullmatch(self.base_path) is not None
        self._require(is_path, "base_path", "must be empty or look like /wheelq, without a slash at the end, . or ..")
        self._require(self.audit in ("changes", "all", "off"), "audit", "must be one of changes, all, off")
        self._require(
            bool(self.tls_cert) == bool(self.tls_key), "tls_key", "belongs with tls_cert: give both or neither"
        )
        self._require(not self.tls_client_ca or bool(self.tls_cert), "tls_client_ca", "needs tls_cert and tls_key")
