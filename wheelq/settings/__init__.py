"""All settings: one frozen dataclass per component, checked when made.

Times are integer milliseconds. `settings_in_force()` reads them from the TOML file that WHEELQ_CONFIG names and from
environment variables; every `connect()` does so unless it is given settings. `config/wheelq.toml`, which is made from
the declarations, has each default. These hold the promises of README.md on one server, and cost four commands a second
at rest.

components   one dataclass each: connection, client, breaker, outbox, topic, scheduler, worker, server
whole        all of them together, read from a file
environment  the settings in force: environment variables over the file over the defaults
declaration  what a setting is: default, meaning and range; `Checked` holds values to it
"""

from wheelq.settings.components import (
    Access,
    BreakerSettings,
    ClientSettings,
    ConnectionSettings,
    Durability,
    Misfire,
    OnMismatch,
    OutboxSettings,
    SchedulerSettings,
    ServerSettings,
    TopicSettings,
    Trace,
    WorkerSettings,
)
from wheelq.settings.declaration import DAY_MS
from wheelq.settings.environment import settings_in_force
from wheelq.settings.whole import LOG_FORMATS, LOG_LEVELS, Settings, find_url, resolve_url

__all__ = [
    "DAY_MS",
    "LOG_FORMATS",
    "LOG_LEVELS",
    "Access",
    "BreakerSettings",
    "ClientSettings",
    "ConnectionSettings",
    "Durability",
    "Misfire",
    "OnMismatch",
    "OutboxSettings",
    "SchedulerSettings",
    "ServerSettings",
    "Settings",
    "TopicSettings",
    "Trace",
    "WorkerSettings",
    "find_url",
    "resolve_url",
    "settings_in_force",
]
