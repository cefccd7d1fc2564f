"""Settings of the HTTP server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from wheelq.settings.checked import DAY_MS, Checked

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
