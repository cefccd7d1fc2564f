"""Every number a user may want to change: one frozen dataclass per component, checked when made.

Times are integer milliseconds. `load(path)` reads them from a TOML file; `config/wheelq.toml` documents each with its
default. The defaults hold the promises of README.md on one server, and cost four commands a second at rest.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from wheelq.errors import ConfigurationError

DAY_MS = 86_400_000

Durability = Literal["server", "replicated", "fsynced"]
"""What a schedule call waits for: see `protocol.durability`."""

Misfire = Literal["run", "skip", "bury"]
"""What becomes of a job that would start later than its grace: it runs, is dropped, or is put among the dead."""


class _Checked:
    """Refuses numbers that are not positive, naming the setting; subclasses add their own relations."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, item.name)
            lowest = item.metadata.get("lowest", 1)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not value >= lowest:
                raise ConfigurationError(f"{type(self).__name__}.{item.name} must be at least {lowest}, not {value}")

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise ConfigurationError(f"{type(self).__name__}: {message}")


@dataclass(frozen=True, slots=True)
class ConnectionSettings(_Checked):
    """How wheelq talks to the server."""

    connect_timeout_ms: int = 2_000
    """How long to wait for a connection before calling the server unavailable."""
    reply_timeout_ms: int = 10_000
    """How long to wait for a reply before calling the outcome unknown. Above the server's own 5 s script limit."""
    max_connections: int = 50
    """Connections per client object; callers beyond that wait their turn."""


@dataclass(frozen=True, slots=True)
class BreakerSettings(_Checked):
    """When something that keeps failing is left alone, and for how long."""

    failures: int = 5
    """Calls in a row that must fail, with no success between them."""
    failing_ms: int = 500
    """The time over which they must fail: a hiccup is not an outage."""
    open_ms: int = 1_000
    """How long nothing is asked then; doubled each time that the one call made after it fails too."""
    open_max_ms: int = 10_000
    """The longest it grows to: this late at most is it noticed that all is well again."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        self._require(self.open_ms <= self.open_max_ms, "open_ms must be at most open_max_ms")


@dataclass(frozen=True, slots=True)
class OutboxSettings(_Checked):
    """Where producers keep jobs while the server is away."""

    path: str = ""
    """An SQLite file on a local disk; several processes may share it. Empty: there is no outbox, and calls fail."""
    max_jobs: int = 1_000_000
    """Jobs that it holds at most; further ones are refused."""
    max_bytes: int = 1_073_741_824
    """Their packed payloads, all together, at most."""
    retry_ms: int = 500
    """How often delivery is tried while the server is away, and how soon another process's jobs are seen."""


@dataclass(frozen=True, slots=True)
class ClientSettings(_Checked):
    """Limits and habits of producers."""

    payload_max_bytes: int = 64 * 1024
    """Largest packed payload. Redis keeps every waiting payload in memory; store big data elsewhere."""
    max_delay_ms: int = 3_660 * DAY_MS
    """Furthest due time, about ten years: a due time beyond it is nearly always a unit mistaken."""
    topics_ttl_ms: int = 10_000
    """How long a client trusts what it knows of a topic (number of shards)."""
    repeats: int = field(default=1, metadata={"lowest": 0})
    """How often a schedule call whose reply was lost is repeated with the same job id before giving up."""
    durability: Durability = "server"
    """When a schedule call returns: when the server has answered, when replicas have the jobs, or when a disk has."""
    replicas: int = 1
    """With "replicated": how many replicas must have the jobs."""
    fsynced_replicas: int = field(default=0, metadata={"lowest": 0})
    """With "fsynced": on how many replicas' disks the jobs must be, besides the server's own."""
    replicated_timeout_ms: int = 2_000
    """How long to wait for that. A disk that is written every second may take two."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        known = get_args(Durability)
        self._require(self.durability in known, f"durability must be one of {', '.join(known)}, not {self.durability}")


@dataclass(frozen=True, slots=True)
class TopicSettings(_Checked):
    """What a topic is made with; kept in Redis, and changed there with `configure`. A limit of 0 is none."""

    shards: int = 1
    """Partitions: each has its own sorted set, stream and leader. One serves tens of thousands of jobs a second."""
    retention_ms: int = field(default=0, metadata={"lowest": 0})
    """How long consumed entries stay in the stream; 0 removes them as soon as every group has acked."""
    dead_retention_ms: int = field(default=90 * DAY_MS, metadata={"lowest": 0})
    """How long a dead job is kept, to be looked at and called back; 0: until it is purged."""
    dead_max: int = field(default=100_000, metadata={"lowest": 0})
    """Most dead jobs kept in each shard; beyond that the oldest go. 0: as many as there are."""
    max_rate: float = field(default=0.0, metadata={"lowest": 0})
    """Most jobs promoted in a second, smoothly, all shards together; each has an even share."""
    max_pending: int = field(default=0, metadata={"lowest": 0})
    """Most jobs that wait for their due time, all shards together; each has an even share, and refuses what is more."""
    max_ready: int = field(default=0, metadata={"lowest": 0})
    """Most promoted jobs that no worker has read yet, all shards together; what is more waits in the sorted set."""
    misfire: Misfire = "run"
    """What becomes of a job that would start later than `grace_ms` after its due time."""
    grace_ms: int = field(default=0, metadata={"lowest": 0})
    """How late a job may start before that counts as a misfire. At least 1 unless `misfire` is "run"."""
    keep_done_ms: int = field(default=0, metadata={"lowest": 0})
    """How long finished jobs can be looked up and waited for; 0 forgets them at once, and costs nothing."""
    result_max_bytes: int = 4_096
    """Largest packed result of a handler that is kept with a finished job; a larger one is left out, with a warning."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        known = get_args(Misfire)
        self._require(self.misfire in known, f"misfire must be one of {', '.join(known)}, not {self.misfire!r}")
        self._require(self.misfire == "run" or self.grace_ms > 0, f'misfire="{self.misfire}" needs a grace_ms')
        self._require(self.max_rate < float("inf"), "max_rate must be finite; 0 means no limit")


@dataclass(frozen=True, slots=True)
class SchedulerSettings(_Checked):
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
        _Checked.__post_init__(self)
        self._require(self.lease_margin_ms * 3 <= self.lease_ms, "lease_margin_ms must be at most a third of lease_ms")
        self._require(self.batch <= 500, "batch must be at most 500: a script call must stay short")
        self._require(self.recurring_ahead_ms > 1_000, "recurring_ahead_ms must be more than 1,000")
        self._require(self.window_ids <= 3_500, "window_ids must be at most 3,500")

    @property
    def renew_ms(self) -> int:
        """The lease is renewed three times in its life, so that two lost renewals do no harm."""
        return self.lease_ms // 3


@dataclass(frozen=True, slots=True)
class WorkerSettings(_Checked):
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
        _Checked.__post_init__(self)
        self._require(self.abandoned_ms >= 2 * self.renew_ms, "abandoned_ms must be at least twice renew_ms")
        self._require(self.ack_batch <= 500, "ack_batch must be at most 500: a script call must stay short")


Access = Literal["auto", "keys", "open"]
"""Who may use the HTTP server: see `ServerSettings.access`."""


@dataclass(frozen=True, slots=True)
class ServerSettings(_Checked):
    """How the HTTP server listens, whom it lets in, and when it says "enough"."""

    host: str = "127.0.0.1"
    """Where to listen."""
    port: int = 7380
    """And at which port."""
    access: Access = "auto"
    """With "keys" every request needs an API key, with "open" none does; "auto": open on loopback, else keys."""
    classic_key: str = ""
    """Id of the API key whose scopes a classic call has that brings none: its callers may not be able to send one."""
    keys_ms: int = 2_000
    """How often API keys are read again: a key that was revoked elsewhere works for so long at most."""
    rate: int = field(default=0, metadata={"lowest": 0})
    """Requests a second for each caller (API key, else address), at most twice as many at once; 0: no limit."""
    body_max_bytes: int = 8 * 1024 * 1024
    """Largest request body."""
    max_in_flight: int = 1_000
    """Requests worked on at once; those beyond are answered 503 with Retry-After."""
    max_waiting: int = 1_000
    """Leases that wait for a job at once (long polls); those beyond are answered at once."""
    max_wait_ms: int = 20_000
    """Longest that a lease waits for a job, whatever it asks for: less than what stands in front gives an answer."""
    drain_ms: int = 10_000
    """How long requests under way may take at a stop."""
    idempotency_ms: int = DAY_MS
    """How long the answer to a request with an Idempotency-Key is kept."""
    max_deliveries: int = 10
    """A job that was leased this often without an answer is buried."""
    services: str = ""
    """The register of receivers (TOML): with it jobs may have a target, which is called when they are due."""
    calls: bool = True
    """Whether this server makes those calls itself; else `wheelq callbacks` does, in processes of its own."""
    classic_kept_ms: int = 3 * DAY_MS
    """How long the content of a task that was pulled can be looked up."""
    audit: str = "changes"
    """What the log `wheelq.audit` tells: "changes", "all" (scheduling and consuming too) or "off"."""
    cors_origins: str = ""
    """Web sites whose pages may call this server, separated by spaces; none by default."""
    tls_cert: str = ""
    """Certificate file (PEM), with `tls_key`: the server then speaks HTTPS only."""
    tls_key: str = ""
    """Its private key (PEM)."""
    tls_client_ca: str = ""
    """Certificate authority (PEM) that must have signed every client's certificate."""

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        self._require(self.access in get_args(Access), f"access must be one of {', '.join(get_args(Access))}")
        self._require(self.audit in ("changes", "all", "off"), "audit must be one of changes, all, off")
        self._require(bool(self.tls_cert) == bool(self.tls_key), "tls_cert and tls_key belong together")
        self._require(not self.tls_client_ca or bool(self.tls_cert), "tls_client_ca needs tls_cert and tls_key")


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them together, as read from a file."""

    url: str | None = None
    """Where the server is; WHEELQ_URL and --url come before it."""
    prefix: str = "wheelq"
    """First part of every key: several wheelqs can share a server."""
    connection: ConnectionSettings = ConnectionSettings()
    client: ClientSettings = ClientSettings()
    breaker: BreakerSettings = BreakerSettings()
    outbox: OutboxSettings = OutboxSettings()
    topic: TopicSettings = TopicSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    worker: WorkerSettings = WorkerSettings()
    server: ServerSettings = ServerSettings()
    callbacks: BreakerSettings = BreakerSettings(open_ms=2_000, open_max_ms=60_000)

    def __post_init__(self) -> None:
        if not self.prefix or any(c in self.prefix for c in "{}: \n"):
            raise ConfigurationError(f"prefix {self.prefix!r} must be non-empty, without braces, colons and spaces")
        if self.client.replicated_timeout_ms >= self.connection.reply_timeout_ms:
            raise ConfigurationError("client.replicated_timeout_ms must be less than connection.reply_timeout_ms")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The settings in a TOML file; what it does not name has its default. Raises: ConfigurationError."""
        try:
            table = tomllib.loads(Path(path).read_text())
        except OSError as error:
            raise ConfigurationError(f"cannot read the settings file {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} is not valid TOML: {error}") from error
        return cls(**{name: _value(str(path), cls, name, value) for name, value in table.items()})


def _value(where: str, owner: Any, name: str, value: Any) -> Any:
    known = {item.name: item for item in fields(owner)}
    if name not in known:
        raise ConfigurationError(f"{where}: unknown setting {name!r}; known here: {', '.join(sorted(known))}")
    default = known[name].default
    if isinstance(default, _Checked):
        if not isinstance(value, dict):
            raise ConfigurationError(f"{where}: {name} must be a table ([{name}])")
        section = type(default)
        given = {key: _value(f"{where} [{name}]", section, key, item) for key, item in value.items()}
        kept = {item.name: getattr(default, item.name) for item in fields(default)}  # type: ignore[arg-type]
        return section(**(kept | given))
    wanted = str if default is None else type(default)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ConfigurationError(f"{where}: {name} must be {wanted.__name__}, not {value!r}")
    return value


def resolve_url(url: str | None, settings: Settings | None = None) -> str:
    """The server's URL: the one given, else WHEELQ_URL, else the settings file's. Raises: ConfigurationError."""
    found = url or os.environ.get("WHEELQ_URL") or (settings.url if settings else None)
    if not found:
        raise ConfigurationError("no server named: give a URL (redis://localhost:6379), --url, or set WHEELQ_URL")
    return found
