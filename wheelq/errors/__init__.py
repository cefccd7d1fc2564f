"""Every error wheelq raises, one class per thing a caller would do differently.

    WheelqError
    ├── InvalidInput            the call is wrong: correct the named field; nothing was sent
    │   ├── PayloadTooLarge
    │   └── InvalidJob          one of many jobs is wrong; tells which were scheduled before it
    ├── PayloadMismatch         a payload or result does not fit its type: names the field; the worker buries the job
    ├── ConfigurationError      a setting, URL, binary or handler module is wrong: nothing was started
    │   └── InvalidSetting      tells which setting
    ├── DuplicateJob            a live job has this id, and the caller asked for an error
    ├── BatchFailed             raised *by* a batch handler: names the jobs that failed
    ├── JobNotFound             nothing is known of a job with this id
    ├── JobFailed               the awaited job was given up
    ├── NotFinished             the awaited job has not finished in time
    ├── TopicFull               as many jobs wait as the topic's max_pending allows; tells which were refused
    ├── TopicNotFound           no such topic has ever been used
    ├── TopicUnreadable         the topic's settings were written by a newer release, or by another program
    ├── RecurringUnreadable     the same of a recurring job's definition
    ├── InUse                   a group or topic was not removed, because it still has workers or jobs
    ├── NotLeader               another node leads the shard (schedulers only)
    └── ServerError
        ├── NotReplicated       the change is made, but too few replicas (or disks) confirmed it in time
        ├── Unavailable         could not connect: nothing was done; try again later
        │   ├── TlsFailed       the server's certificate is not trusted, or the two sides agree on no TLS
        │   ├── CircuitOpen     not even tried, because the server is away; tells when the next try is made
        │   └── OutboxFull      the server takes no jobs for now, and the outbox is full
        ├── OutcomeUnknown      sent, but no reply came: it may or may not have happened; repeating is safe
        │   └── PartlyScheduled many jobs: tells which are scheduled, and which may be
        └── Refused             the server answered with an error: nothing was done
            ├── AuthenticationFailed   user name or password is wrong
            │   └── NotPermitted       the user lacks a right: a command, a key or a channel
            ├── GroupNotFound   the server does not have the consumer group: it was removed, or lost with the data
            ├── WrongDatabase   the server has no database with the URL's number
            ├── WrongServerKind the URL names sentinels or a cluster, and there is a single server, or the reverse
            ├── ServerFull      out of memory: due jobs still run, new ones are refused
            ├── BeingRemoved    the topic or group is just being removed: try again shortly
            ├── ServerBusy      loading its data, or a long script runs: try again shortly
            ├── NotPrimary      the address leads to a replica, or a cluster slot lives elsewhere
            └── ServerTooOld    the server lacks a command that wheelq needs

*Refused* and *outcome unknown* are never the same class: after a refusal a caller may give up; after an unknown outcome
it must repeat the call (every wheelq call may be repeated with the same job id) or look the job up.

jobs     jobs and topics, and the input and the settings for them; the root of all errors
servers  the server is away, its answer did not come, or it has refused
"""

from __future__ import annotations

from wheelq.errors.jobs import (
    BatchFailed,
    ConfigurationError,
    DuplicateJob,
    InUse,
    InvalidInput,
    InvalidJob,
    InvalidSetting,
    JobFailed,
    JobNotFound,
    NotFinished,
    NotLeader,
    PayloadMismatch,
    PayloadTooLarge,
    RecurringUnreadable,
    TopicFull,
    TopicNotFound,
    TopicUnreadable,
    WheelqError,
)
from wheelq.errors.servers import (
    AWAY,
    AuthenticationFailed,
    BeingRemoved,
    CircuitOpen,
    GroupNotFound,
    NotPermitted,
    NotPrimary,
    NotReplicated,
    OutboxFull,
    OutcomeUnknown,
    PartlyScheduled,
    Refused,
    ServerBusy,
    ServerError,
    ServerFull,
    ServerTooOld,
    TlsFailed,
    Unavailable,
    WrongDatabase,
    WrongServerKind,
    is_away,
    is_wrong_setup,
)

__all__ = [
    "AWAY",
    "AuthenticationFailed",
    "BatchFailed",
    "BeingRemoved",
    "CircuitOpen",
    "ConfigurationError",
    "DuplicateJob",
    "GroupNotFound",
    "InUse",
    "InvalidInput",
    "InvalidJob",
    "InvalidSetting",
    "JobFailed",
    "JobNotFound",
    "NotFinished",
    "NotLeader",
    "NotPermitted",
    "NotPrimary",
    "NotReplicated",
    "OutboxFull",
    "OutcomeUnknown",
    "PartlyScheduled",
    "PayloadMismatch",
    "PayloadTooLarge",
    "RecurringUnreadable",
    "Refused",
    "ServerBusy",
    "ServerError",
    "ServerFull",
    "ServerTooOld",
    "TlsFailed",
    "TopicFull",
    "TopicNotFound",
    "TopicUnreadable",
    "Unavailable",
    "WheelqError",
    "WrongDatabase",
    "WrongServerKind",
    "is_away",
    "is_wrong_setup",
]

for _error in list(vars().values()):  # tracebacks, logs and spans show the name by which users import an error
    if isinstance(_error, type) and issubclass(_error, WheelqError):
        _error.__module__ = __name__
