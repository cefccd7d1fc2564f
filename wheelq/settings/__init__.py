"""Every number a user may want to change: one frozen dataclass per component, checked when made.

Times are integer milliseconds. `Settings.load(path)` reads them from a TOML file; `config/wheelq.toml` documents each
with its default. The defaults hold the promises of README.md on one server, and cost four commands a second at rest.

producers    connection, client, breaker, outbox
topic        what a topic is made with
nodes        schedulers and workers
server       the HTTP server
whole        all of them together, read from a file
checked      what they have in common
"""

from __future__ import annotations

from wheelq.settings.checked import DAY_MS
from wheelq.settings.nodes import SchedulerSettings, WorkerSettings
from wheelq.settings.producers import BreakerSettings, ClientSettings, ConnectionSettings, Durability, OutboxSettings
from wheelq.settings.server import Access, ServerSettings
from wheelq.settings.topic import Misfire, TopicSettings
from wheelq.settings.whole import Settings, resolve_url

__all__ = [
    "DAY_MS",
    "Access",
    "BreakerSettings",
    "ClientSettings",
    "ConnectionSettings",
    "Durability",
    "Misfire",
    "OutboxSettings",
    "SchedulerSettings",
    "ServerSettings",
    "Settings",
    "TopicSettings",
    "WorkerSettings",
    "resolve_url",
]
