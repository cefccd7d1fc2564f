"""Settings of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from wheelq.settings.checked import DAY_MS, Checked

Access = Literal["auto", "keys", "open"]
"""Who may use the HTTP server: see `ServerSettings.access`."""


@dataclass(frozen=True, slots=True)
class ServerSettings(Checked):
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
        Checked.__post_init__(self)
        self._require(self.port <= 65_535, "port", f"must be at most 65,535, not {self.port}")
        self._require(self.access in get_args(Access), "access", f"must be one of {', '.join(get_args(Access))}")
        self._require(self.audit in ("changes", "all", "off"), "audit", "must be one of changes, all, off")
        self._require(
            bool(self.tls_cert) == bool(self.tls_key), "tls_key", "belongs with tls_cert: give both or neither"
        )
        self._require(not self.tls_client_ca or bool(self.tls_cert), "tls_client_ca", "needs tls_cert and tls_key")
