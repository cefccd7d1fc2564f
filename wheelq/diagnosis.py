"""What a server's own words mean for the jobs kept in it: from facts to findings, in plain language.

    Inspector.facts() ──▶ Facts ──diagnose──▶ [Finding, …] ──▶ wheelq doctor

Pure: nothing is asked here, so every finding can be tested with facts made by hand. A *problem* means that jobs can
be lost, or do not run, in normal operation: it must be mended. A *warning* is a choice that the operator should have
made on purpose. *ok* tells what was looked at.

The claims about what can be lost are measured ones: a killed server process with AOF `everysec` lost 0 of 15,000
acknowledged writes, because they were in the kernel's hands already; only the machine's own end costs the last second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

OLDEST_REDIS = (6, 2, 2)
NEARLY_FULL = 0.8
CLIENTS_NEARLY_FULL = 0.9
NOT_FOR_ALL = {
    "XAUTOCLAIM": "Workers need it, to run the jobs of one that died; a user that only looks or schedules does not.",
    "CLIENT LIST ID": "Schedulers use it, to see that a leader is gone; without it they wait for its lease to end, and "
    "jobs are promoted by the standby meanwhile, 100 ms late. Nobody else needs it.",
}
"""Operations that not every user must be allowed, and who needs them."""
OVERDUE_MS = 2_000  # a few beats of the sweep: whoever is later than this is not just busy


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """As it should be."""
    WARNING = "warning"
    """A choice with a price, or something that could not be seen."""
    PROBLEM = "problem"
    """Jobs can be lost or do not run: mend it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    title: str
    explanation: str
    """What follows from it and, unless it is ok, what to do."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself."""

    info: Mapping[str, str]
    """`INFO`, flat."""
    config: Mapping[str, str] | None
    """`CONFIG GET` of what matters here; None when the server does not let us see it."""
    missing: tuple[str, ...] = ()
    """Commands that wheelq needs and the server does not know."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Operations that the server refused to this user, and its words."""
    clock_skew_ms: float = 0.0
    """This machine's clock minus the server's."""
    clock_error_ms: float = 0.0
    """How far off that figure may be: half a round trip."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is kept there, and who looks after it."""

    waiting: int = 0
    schedulers: int = 0
    overdue_ms: Mapping[str, int] = field(default_factory=dict)
    """Topic → how long its first waiting job has been due."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Topic → ready entries, where none are kept on purpose (retention 0)."""
    served: frozenset[str] = frozenset()
    """Topics that some live worker has a handler for."""


def diagnose(server: ServerFacts, jobs: JobFacts) -> list[Finding]:
    """Every finding, in the order a person should read them."""
    return [*diagnose_server(server), *_schedulers(jobs), *_workers(jobs)]


def diagnose_server(facts: ServerFacts) -> list[Finding]:
    """What concerns the server alone, whoever uses it."""
    return [
        *_version(facts),
        *_rights(facts),
        *_role(facts),
        *_eviction(facts),
        *_durability(facts),
        *_replicas(facts),
        *_memory(facts),
        *_clients(facts),
        _clock(facts),
    ]


def _ok(title: str, explanation: str = "") -> Finding:
    return Finding(Level.OK, title, explanation)


def _warning(title: str, explanation: str) -> Finding:
    return Finding(Level.WARNING, title, explanation)


def _problem(title: str, explanation: str) -> Finding:
    return Finding(Level.PROBLEM, title, explanation)


def _number(values: Mapping[str, str], name: str) -> int:
    text = values.get(name, "0")
    return int(text) if text.isdecimal() else 0


# --- the server itself --------------------------------------------------------------------------------------------


def _version(facts: ServerFacts) -> Iterator[Finding]:
    valkey = facts.info.get("valkey_version")
    shown = f"Valkey {valkey}" if valkey else f"Redis {facts.info.get('redis_version', 'of unknown version')}"
    if facts.missing:
        yield _problem(
            f"{shown} lacks {', '.join(facts.missing)}",
            "wheelq cannot work without. Use Redis 6.2.2 or newer, or any Valkey.",
        )
    elif not valkey and _version_number(facts.info.get("redis_version", "")) < OLDEST_REDIS:
        yield _problem(
            f"{shown} is too old",
            "Before 6.2.2 the recovery of a dead worker's jobs miscounts deliveries. Use Redis 6.2.2 or newer, or any "
            "Valkey.",
        )
    else:
        yield _ok(shown, "Knows every command that wheelq needs.")


def _version_number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())


def _rights(facts: ServerFacts) -> Iterator[Finding]:
    for operation, words in facts.refused.items():
        if operation in NOT_FOR_ALL:
            yield _warning(f"{operation} was refused to this user", f"{NOT_FOR_ALL[operation]} ({words})")
        else:
            yield _problem(f"{operation} was refused", f"{words}. Without it jobs do not run: mend the user's ACL.")
    if facts.config is None:
        yield _warning(
            "The server's configuration cannot be read",
            "CONFIG GET is denied, as on most managed servers. What follows rests on INFO alone: look up in the "
            "provider's console that persistence is on and how often it reaches the disk (appendfsync).",
        )


def _role(facts: ServerFacts) -> Iterator[Finding]:
    if facts.info.get("role") == "slave":
        primary = f"{facts.info.get('master_host', '?')}:{facts.info.get('master_port', '?')}"
        yield _problem("This server is a replica", f"It takes no writes. Connect to its primary, {primary}.")
    if "cluster" in (facts.info.get("redis_mode"), facts.info.get("server_mode")):
        yield _problem(
            "This server is one node of a cluster",
            "This release of wheelq talks to one server and does not follow the cluster's redirections: use a server "
            "that is not in cluster mode.",
        )


def _eviction(facts: ServerFacts) -> Iterator[Finding]:
    policy = (facts.config or {}).get("maxmemory-policy") or facts.info.get("maxmemory_policy")
    if policy is None:
        yield _warning("The eviction policy cannot be seen", "Make sure that maxmemory-policy is noeviction.")
    elif policy != "noeviction":
        yield _problem(
            f"maxmemory-policy is {policy}",
            "When memory runs short the server throws keys away, and with them waiting jobs, without an error to "
            "anyone. Set it: CONFIG SET maxmemory-policy noeviction (and in the server's configuration file).",
        )
    else:
        yield _ok(
            "Nothing is evicted", "When memory runs short new jobs are refused with an error; due jobs still run."
        )


def _durability(facts: ServerFacts) -> Iterator[Finding]:
    config, info = facts.config or {}, facts.info
    if info.get("aof_last_write_status", "ok") != "ok":
        yield _problem(
            "The append-only file cannot be written",
            "The server refuses writes until it can. See its log: a full or broken disk, most likely.",
        )
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield _problem(
            "The last snapshot failed",
            "By default the server refuses writes until one succeeds. See its log: a full disk, or no memory to fork "
            "(vm.overcommit_memory = 1).",
        )
    if info.get("aof_enabled") == "1":
        yield _append_only(config.get("appendfsync"))
    elif config.get("save") == "" and _number(info, "connected_slaves"):
        yield _problem(
            "Nothing is written to disk, and replicas copy that",
            "If the server's process ends and is started again before a replica is promoted, it comes back empty, and "
            "the replicas empty themselves: every waiting job is lost everywhere. CONFIG SET appendonly yes, and the "
            "same in the configuration file.",
        )
    elif config.get("save") == "":
        yield _warning(
            "Nothing is written to disk",
            "If the server's process ends, every waiting job is lost. Unless that is meant (tests): CONFIG SET "
            "appendonly yes, and the same in the configuration file.",
        )
    else:
        points = f" (save {config['save']})" if config.get("save") else ""
        yield _warning(
            f"Only snapshots are written to disk{points}",
            "If the server's process ends, everything since the last snapshot is lost: minutes of scheduled jobs. Jobs "
            "that ran since then run again. Better: CONFIG SET appendonly yes, and the same in the configuration file.",
        )


def _append_only(fsync: str | None) -> Finding:
    if fsync == "always":
        return _ok(
            "Every job is on disk before its call returns (appendfsync always)",
            "Neither a crash nor a power cut loses anything accepted; only the loss of the disk does.",
        )
    if fsync == "no":
        return _warning(
            "The operating system decides when jobs reach the disk (appendfsync no)",
            "A crash of the server's process loses nothing; a power cut may cost half a minute. Better: CONFIG SET "
            "appendfsync everysec.",
        )
    if fsync is None:
        return _ok(
            "An append-only file is written", "How often it reaches the disk cannot be seen; usually each second."
        )
    return _ok(
        "Jobs reach the disk every second (appendfsync everysec)",
        "A crash of the server's process loses nothing. A power cut may cost the last one or two seconds: jobs "
        "scheduled then are gone, jobs that started then run again. To lose nothing: CONFIG SET appendfsync always "
        "(costs little with schedule_many, much for single calls), or durability='fsynced' for the calls that matter.",
    )


def _replicas(facts: ServerFacts) -> Iterator[Finding]:
    if facts.info.get("role") == "slave":
        return
    replicas = _number(facts.info, "connected_slaves")
    needed = _number(facts.config or {}, "min-replicas-to-write")
    in_step = sum("state=online" in facts.info.get(f"slave{place}", "") for place in range(replicas))
    if needed > in_step:
        yield _problem(
            f"min-replicas-to-write is {needed}, and {in_step} replica{' is' if in_step == 1 else 's are'} in step",
            "The server refuses every write: jobs can neither be scheduled nor promoted. Bring the replicas back, or "
            f"CONFIG SET min-replicas-to-write {in_step}.",
        )
    elif needed:
        yield _ok(
            f"Writes are refused while fewer than {needed} replica{'s' if needed > 1 else ''} answer "
            "(min-replicas-to-write)",
            "So a primary that is cut off from its replicas stops accepting jobs. It does not bound what a failover "
            "loses: it counts replicas that answer, not what they have already got.",
        )
    if replicas:
        yield _warning(
            f"{replicas} replica{'s follow' if replicas > 1 else ' follows'}, and calls wait for "
            f"{'them' if replicas > 1 else 'it'} only if they ask to",
            "By default a failover loses what replication had not carried yet, usually milliseconds: such jobs are "
            "gone, or run again. Where it matters, schedule with durability='replicated' ([client] durability makes "
            "it the default): the call returns once a replica has the job, and says so if none has it in time.",
        )
    if in_step < replicas:
        yield _warning(
            f"{replicas - in_step} of {replicas} replicas {'is' if replicas - in_step == 1 else 'are'} not in step yet",
            "A replica that copies the data for the first time or after a long break confirms nothing, and must not be "
            "promoted, until it is done.",
        )


def _memory(facts: ServerFacts) -> Iterator[Finding]:
    limit, used = _number(facts.info, "maxmemory"), _number(facts.info, "used_memory")
    if not limit:
        yield _ok("No memory limit", f"{_megabytes(used)} used; the machine's memory is the limit.")
        return
    share = f"{used / limit:.0%} of maxmemory is used ({_megabytes(used)} of {_megabytes(limit)})"
    if used >= limit:
        yield _problem(share, "New jobs are refused until some have run. Raise maxmemory.")
    elif used >= NEARLY_FULL * limit:
        yield _warning(share, "At the limit new jobs are refused; due jobs still run. Raise maxmemory in time.")
    else:
        yield _ok(share)


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"


def _clients(facts: ServerFacts) -> Iterator[Finding]:
    limit, connected = _number(facts.info, "maxclients"), _number(facts.info, "connected_clients")
    if limit and connected >= CLIENTS_NEARLY_FULL * limit:
        yield _warning(
            f"{connected} of {limit} connections are in use",
            "At the limit new producers and workers are turned away. Raise maxclients, or use fewer connections.",
        )


def _clock(facts: ServerFacts) -> Finding:
    ahead = "ahead of" if facts.clock_skew_ms >= 0 else "behind"
    return _ok(
        f"This machine's clock is {abs(facts.clock_skew_ms):,.0f} ms {ahead} the server's "
        f"(± {facts.clock_error_ms:.1f} ms)",
        "Harmless whatever it is: only the server's clock decides what is due. (A program that computes `at` from a "
        "wrong clock of its own asks for a wrong time, though: `delay` is free of that.)",
    )


# --- who looks after the jobs -------------------------------------------------------------------------------------


def _schedulers(jobs: JobFacts) -> Iterator[Finding]:
    late = {topic: ms for topic, ms in jobs.overdue_ms.items() if ms > OVERDUE_MS}
    shown = ", ".join(f"{topic} for {ms / 1000:,.0f} s" for topic, ms in sorted(late.items()))
    if jobs.schedulers and late:
        yield _problem(
            f"Jobs are overdue: {shown}",
            "A scheduler runs and does not keep up or cannot reach this server: see its log.",
        )
    elif jobs.schedulers:
        yield _ok(f"{jobs.schedulers} scheduler{'s run' if jobs.schedulers > 1 else ' runs'}, nothing is overdue")
    elif late:
        yield _problem(f"No scheduler runs, and jobs are overdue: {shown}", "Start one: wheelq scheduler.")
    else:
        waiting = f"Jobs ({jobs.waiting:,} wait now) will not start when they are due."
        yield _warning("No scheduler runs", f"{waiting} Start one: wheelq scheduler.")


def _workers(jobs: JobFacts) -> Iterator[Finding]:
    for topic, unread in sorted(jobs.unread.items()):
        if unread and topic not in jobs.served:
            yield _warning(
                f"{unread:,} jobs of {topic} are ready and no live worker handles that topic",
                "They are kept until one does. Start one: wheelq worker MODULE:NAME, with a handler for it.",
            )
    if jobs.served:
        yield _ok(f"Workers handle {', '.join(sorted(jobs.served))}")
