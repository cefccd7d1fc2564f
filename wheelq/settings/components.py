"""The settings of each component: connection, client, breaker, outbox, topic, scheduler, worker and HTTP server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from wheelq.settings.declaration import DAY_MS, Checked, setting

Durability = Literal["server", "replicated", "fsynced"]
"""The confirmation that a schedule call waits for: see `producer.confirmation`."""
Misfire = Literal["run", "skip", "bury"]
"""What happens to a job that would start later than its grace: it runs, is dropped, or is buried."""
OnMismatch = Literal["retry", "bury"]
"""What happens to a job whose payload does not fit its handler: it waits for another worker, or is buried."""
Trace = Literal["link", "parent"]
"""How a run's span stands to the one that scheduled its job."""
Access = Literal["auto", "keys", "open"]
"""Access to the HTTP server: see `ServerSettings.access`."""

BASE_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, slots=True)
class ConnectionSettings(Checked):
    """Settings of the connections to the server."""

    connect_timeout_ms: int = setting(2_000, "How long to wait for a connection before calling the server unavailable.")
    reply_timeout_ms: int = setting(
        10_000,
        "How long to wait for a reply before calling the outcome unknown. It is above the server's own 5 s limit for "
        "scripts, so that a busy server is not taken for a lost one.",
    )
    max_connections: int = setting(
        50,
        "Most connections per client object; further threads wait for a free one. `wait` holds three quarters of them "
        "at most.",
    )


@dataclass(frozen=True, slots=True)
class BreakerSettings(Checked):
    """When the circuit opens after repeated failures, and for how long."""

    failures: int = setting(5, "How many calls in a row must fail before the circuit opens.")
    failing_ms: int = setting(500, "These failures must span at least this long: a hiccup is not an outage.")
    open_ms: int = setting(
        1_000,
        "How long the circuit stays open before the next trial call. Doubled each time that this call fails too.",
    )
    open_max_ms: int = setting(
        10_000, "Longest time that the circuit stays open, and so the longest time until a recovery is noticed."
    )

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        self._require(self.open_ms <= self.open_max_ms, "open_ms", "must be at most open_max_ms")


@dataclass(frozen=True, slots=True)
class OutboxSettings(Checked):
    """Settings of the outbox, which keeps jobs while the server is away."""

    path: str = setting(
        "", "An SQLite file on a local disk, which several processes may share. Empty: no outbox, and calls fail."
    )
    max_jobs: int = setting(1_000_000, "Most jobs in the outbox; further ones are refused.")
    max_bytes: int = setting(1_073_741_824, "Most bytes of their packed payloads together.")
    retry_ms: int = setting(
        500, "How often delivery is tried while the server is away, and how soon jobs of another process are seen."
    )


@dataclass(frozen=True, slots=True)
class ClientSettings(Checked):
    """Settings of producers: limits, retries and durability."""

    payload_max_bytes: int = setting(
        64 * 1024,
        "Largest packed payload. The server keeps each in memory: store big data elsewhere, schedule a reference.",
    )
    max_delay_ms: int = setting(
        3_660 * DAY_MS,
        "Furthest due time, about ten years: a later one is nearly always a wrong unit.",
        most=366_000 * DAY_MS,
    )
    topics_ttl_ms: int = setting(10_000, "How long a client trusts what it knows of a topic (its number of shards).")
    repeats: int = setting(
        1, "How often a schedule call whose reply was lost is repeated, with the same job ids.", zero="never"
    )
    durability: Durability = setting(
        "server",
        'When a schedule call returns. "server": once the server has answered; its persistence decides what a crash '
        'may lose. "replicated": once replicas have the jobs too. "fsynced": once they are on the server\'s disk. '
        "Changes of topics wait for the same.",
        one_of=get_args(Durability),
    )
    replicas: int = setting(
        1, 'With "replicated": how many replicas must have the jobs. If there are more, a failover may promote another.'
    )
    fsynced_replicas: int = setting(
        0, "With \"fsynced\": on how many replicas' disks they must be, besides the server's own.", lowest=0
    )
    replicated_timeout_ms: int = setting(
        2_000,
        "How long to wait for these confirmations; less than reply_timeout_ms. A disk that is synced every second may "
        "take two.",
    )
    trace_jobs: bool = setting(
        False, "Traces (OpenTelemetry): whether schedule_many makes a span for each job, linked to the job's run."
    )


ON_DEAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}|[^:\s]{1,100}:(?:/[!-~]{0,500})?")
"""A topic, or a service and a path."""
ON_DEAD_PROBLEM = 'must be a topic, or a service and a path, as in "billing:/dead-jobs"'


@dataclass(frozen=True, slots=True)
class TopicSettings(Checked):
    """The settings of a new topic. Redis stores them, and `configure` changes them there."""

    shards: int = setting(
        1, "Partitions, each with its own sorted set, stream and leader. One serves tens of thousands of jobs a second."
    )
    max_rate: float = setting(
        0.0, "Most jobs promoted per second. They are evenly spaced; each shard has an equal share.", zero="no limit"
    )
    max_pending: int = setting(
        0, "Most jobs that wait for their due time. Each shard has an equal share and refuses more.", zero="no limit"
    )
    max_ready: int = setting(
        0,
        "Most promoted jobs that no worker has read. Further jobs wait; each shard has an equal share.",
        zero="no limit",
    )
    key_concurrency: int = setting(
        0,
        "Most jobs of one partition key that are ready or running. Further jobs of the key are held back.",
        zero="no limit",
    )
    key_rate: float = setting(
        0.0, "Most jobs of one partition key promoted per second, evenly spaced. Others are held back.", zero="no limit"
    )
    misfire: Misfire = setting(
        "run",
        "What happens to a job that would start later than its grace. "
        '"run": it runs. "skip": it is dropped. "bury": it is kept as a dead job.',
        one_of=get_args(Misfire),
    )
    grace_ms: int = setting(
        0, 'How late a job may start before that counts as a misfire. At least 1 unless misfire is "run".', lowest=0
    )
    on_mismatch: OnMismatch = setting(
        "retry",
        "What happens to a job whose payload does not fit the types of its handler, which may state its own. "
        '"retry": it waits for a worker whose code knows the payload, which costs no attempt. "bury": it is buried.',
        one_of=get_args(OnMismatch),
    )
    mismatch_ms: int = setting(
        900_000, "How long a job whose payload does not fit may wait for a worker that it fits. Then it is buried."
    )
    retention_ms: int = setting(
        0, "How long consumed entries stay in the ready stream.", zero="until every group has acked them"
    )
    keep_done_ms: int = setting(
        0,
        "How long finished jobs can be looked up and waited for. Each takes about 300 bytes, its payload and result.",
        zero="not at all",
    )
    result_max_bytes: int = setting(
        4_096, "Largest packed result that is kept with a finished job. A larger one is left out, with a warning."
    )
    dead_retention_ms: int = setting(
        90 * DAY_MS, "How long a dead job can be looked up and replayed.", zero="until it is purged"
    )
    dead_max: int = setting(
        100_000, "Most dead jobs kept in each shard. Beyond that the oldest are removed.", zero="no limit"
    )
    on_dead: str = setting(
        "",
        "Where a job is made that tells of each dead job: a topic, or NAME:/path of a service in config/services.toml. "
        "Empty: nowhere.",
    )

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        has_grace = self.misfire == "run" or self.grace_ms > 0
        self._require(has_grace, "grace_ms", f"must be more than 0, because misfire is {self.misfire!r}")
        self._require(not self.on_dead or bool(ON_DEAD.fullmatch(self.on_dead)), "on_dead", ON_DEAD_PROBLEM)


@dataclass(frozen=True, slots=True)
class SchedulerSettings(Checked):
    """Settings of a scheduler node."""

    lease_ms: int = setting(
        9_000,
        "How long a shard's lease lasts, which is renewed three times in that time. Safety does not depend on it; if a "
        "leader's host dies, the standby promotes due jobs until the lease ends (see hedge_ms).",
    )
    lease_margin_ms: int = setting(
        500, "The lease is trusted only until this long before its end: clocks differ. At most a third of lease_ms."
    )
    window_ms: int = setting(
        2_000,
        "How far ahead jobs are loaded into the timing wheel. In a shard with few jobs it is up to eight times as far, "
        "so that loading costs less than the jobs.",
    )
    window_ids: int = setting(
        500,
        "Ids read in one call; a denser window is read in parts. 500 keep the server, and then the node, busy for up "
        "to 2 ms, in which no job is promoted.",
        most=3_500,
    )
    wheel_ids: int = setting(
        50_000, "Most ids in one shard's wheel, about 250 bytes each. Further ids are promoted by sweeping."
    )
    batch: int = setting(
        250,
        "Jobs promoted in one call. In a herd, other topics wait for that long: about half a millisecond on a free "
        "processor, and five on one that many processes share. Larger batches promote no faster.",
        most=500,
    )
    gather_ms: int = setting(
        2,
        "How long a node waits after a promotion for further jobs, so that they share a call; then it waits for the "
        "next whole millisecond. This saves half the processor time. A job that falls due after a quiet moment is "
        "promoted at once. At most a quarter of hedge_ms counts.",
        zero="the jobs of each millisecond have a call of their own",
    )
    sweep_ms: int = setting(
        500,
        "How often a leader looks for jobs that it does not know of, while a job is due soon: the most lateness that a "
        "lost hint can cause.",
    )
    hedge_ms: int = setting(
        100, "How long a job may be overdue before the standby promotes it: the lateness that a killed leader causes."
    )
    idle_ms: int = setting(80_000, "The longest time between two looks at a shard without a job that is due soon.")
    topics_ms: int = setting(
        5_000, "How often a node looks for new topics, besides every heartbeat, in case the notice of one was lost."
    )
    recurring_ahead_ms: int = setting(
        10_000,
        "How long before its due time an occurrence of a recurring job is made. A shorter outage of all schedulers "
        "misses none of a job whose interval is at least as long.",
        lowest=1_001,
    )
    heartbeat_ms: int = setting(
        5_000,
        "How often a node sends a heartbeat. After three missing ones its shards are assigned to other nodes; until "
        "then, standbys promote its jobs.",
    )

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        has_room = self.lease_margin_ms * 3 <= self.lease_ms
        self._require(has_room, "lease_margin_ms", "must be at most a third of lease_ms")

    @property
    def renew_ms(self) -> int:
        """How often a lease is renewed: three times in its life, so that two lost renewals do no harm."""
        return self.lease_ms // 3


@dataclass(frozen=True, slots=True)
class WorkerSettings(Checked):
    """Settings of a worker: reading, acking and recovery."""

    concurrency: int = setting(
        100,
        "Handlers of all topics running at the same time; batches have their own limits. "
        "Worker.connect(concurrency=…) overrides it.",
    )
    threads: int = setting(32, "How many of them may be plain (not async) handlers, each in a thread.")
    block_ms: int = setting(5_000, "How long one read waits for the next job. Only the cost at rest depends on it.")
    ack_batch: int = setting(500, "Most acks sent in one call.", most=500)
    ack_ms: int = setting(
        10,
        "How long an ack that follows another may wait for further ones; after a quiet moment, it goes at once. If a "
        "worker dies meanwhile, the finished jobs run again.",
    )
    renew_ms: int = setting(1_300, "How often running deliveries are renewed, and abandoned ones recovered.")
    abandoned_ms: int = setting(
        3_500,
        "A delivery not renewed for this long belongs to a dead worker and is run again. At least twice renew_ms: a "
        "worker whose event loop is blocked for longer loses its jobs.",
    )
    max_deliveries: int = setting(
        10, "A job that was delivered this often without being settled (because it kills its workers) is buried."
    )
    grace_ms: int = setting(
        10_000, "How long running handlers have to finish at a stop. Unfinished jobs are then handed back at once."
    )
    trace: Trace = setting(
        "link",
        'Traces (OpenTelemetry): how the span of a run relates to the span that scheduled the job. "link": a trace of '
        'its own, with a link. "parent": part of the same trace, which may be days old by then. Batches are always '
        "linked.",
        one_of=get_args(Trace),
    )
    trace_settling: bool = setting(
        False, "Traces: whether each call that acks, retries or buries jobs has a span, which is linked to their runs."
    )
    log_jobs: bool = setting(
        False, "Whether to log a line for every job that ran (logger wheelq.jobs). If not, only at level debug."
    )

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        self._require(self.abandoned_ms >= 2 * self.renew_ms, "abandoned_ms", "must be at least twice renew_ms")


@dataclass(frozen=True, slots=True)
class ServerSettings(Checked):
    """Settings of the HTTP server: address, access and limits."""

    host: str = setting("127.0.0.1", "The address to listen on.")
    port: int = setting(7380, "The port to listen on.", most=65_535)
    access: Access = setting(
        "auto",
        '"keys": every request needs an API key (wheelq keys create). "open": none does, under any Host, so a web page '
        'whose name resolves to this server can use it. "auto": open while it listens on loopback only, else keys.',
        one_of=get_args(Access),
    )
    classic_key: str = setting(
        "",
        "Id of the API key whose scopes apply to classic calls without a key: their callers may be unable to send one.",
    )
    keys_ms: int = setting(
        2_000, "How often API keys are read again: a key revoked elsewhere still works for at most this long."
    )
    rate: int = setting(
        0,
        "Most requests a second from each caller (API key; address, if none is needed) to each server process; bursts "
        "of twice as many. Requests without a valid key are not counted.",
        zero="no limit",
    )
    body_max_bytes: int = setting(
        8 * 1024 * 1024, "Largest request body. Only requests for many jobs may be larger than one job can be."
    )
    max_in_flight: int = setting(
        1_000, "Most requests in flight; further ones are answered 503 with Retry-After, and do not queue."
    )
    max_waiting: int = setting(
        1_000, "Most requests that wait for a job to lease, or for the end of a job; further ones are answered at once."
    )
    max_wait_ms: int = setting(
        20_000, "Longest that such a request waits, whatever it asks for; less than the timeout of proxies in front."
    )
    drain_ms: int = setting(10_000, "How long requests in flight have to finish at a stop.")
    idempotency_ms: int = setting(DAY_MS, "How long the answer to a request with an Idempotency-Key is kept.")
    max_deliveries: int = setting(
        10, "A job that was leased this often, and neither acknowledged nor failed, is buried."
    )
    services: str = setting(
        "",
        "The register of receivers (see config/services.toml). Jobs may then have a target, called when they are due.",
    )
    calls: bool = setting(
        True,
        'Whether this server calls the targets itself. If not, run "wheelq callbacks", in any number of processes.',
    )
    classic_kept_ms: int = setting(
        3 * DAY_MS, "How long the content of a task that was pulled by the classic API can be looked up."
    )
    audit: str = setting(
        "changes",
        'The events in the log "wheelq.audit": "changes", "all" (also scheduling, consuming, refusals) or "off".',
        one_of=("changes", "all", "off"),
    )
    base_path: str = setting(
        "", 'The path under which browsers reach this server behind a proxy ("/wheelq"). Requests may have it or not.'
    )
    environment: str = setting("", 'The name that the dashboard shows on every page, such as "production".')
    show_payloads: bool = setting(True, "Whether the dashboard shows the payloads, headers and results of jobs.")
    cors_origins: str = setting(
        "", 'Web sites whose pages may call this server, separated by spaces: "https://a.example https://b.example".'
    )
    tls_cert: str = setting("", "Certificate (PEM file); with it and tls_key the server speaks HTTPS only.")
    tls_key: str = setting("", "The private key of tls_cert (PEM file).")
    tls_client_ca: str = setting(
        "", "Certificate authority (PEM file) that must have signed every client's certificate."
    )

    @property
    def shown(self) -> str:
        """Where browsers reach this server, as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}{self.base_path}/"

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        is_path = not self.base_path or BASE_PATH.fullmatch(self.base_path) is not None
        self._require(is_path, "base_path", "must be empty or look like /wheelq, without a slash at the end, . or ..")
        has_both = bool(self.tls_cert) == bool(self.tls_key)
        self._require(has_both, "tls_key", "belongs with tls_cert: give both or neither")
        self._require(not self.tls_client_ca or bool(self.tls_cert), "tls_client_ca", "needs tls_cert and tls_key")
