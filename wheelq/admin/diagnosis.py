"""Turns facts about a server and its jobs into findings in plain language.

    Inspector.facts() ──▶ Facts ──diagnose──▶ [Finding, …] ──▶ wheelq doctor

Pure: nothing here talks to a server, so every finding can be tested with facts made by hand. A *problem* means that
jobs can be lost, or do not run, in normal operation: it must be fixed. A *warning* is a choice that the operator should
have made on purpose. *ok* shows that something was checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from wheelq.admin.figures import number
from wheelq.base.plural import counted
from wheelq.model.durations import span
from wheelq.transport.startup import is_too_old

NEARLY_FULL = 0.8
CLIENTS_NEARLY_FULL = 0.9
CLOCK_OFF_MS = 1_000
NAMED = 10  # the most names in a title
OVERDUE_MS = 2_000  # a few sweeps: a scheduler that is later than this is not just busy
NOT_FOR_ALL = {
    "ZMSCORE": "Schedulers need it, to promote jobs, and so do operators who remove groups; nobody else does.",
    "XAUTOCLAIM": "Workers need it, to run a dead worker's jobs; a user that only looks or schedules does not.",
    "CLIENT LIST ID": "Schedulers use it, to see that a leader is gone; without it they wait for its lease to end, and "
    "jobs are promoted by the standby meanwhile, 100 ms late. Nobody else needs it.",
    "PUBLISH": "Producers, schedulers and workers need it, to tell each other of changes; a user that only looks does "
    "not.",
    "SUBSCRIBE": "Schedulers and workers need it, to hear of changes; a user that only looks or schedules does not.",
}
"""Operations that only some users need, and which users."""
CHANNELS = "The use of channels"
"""The name in `ServerFacts.refused` for channels, which may be denied although the commands are allowed."""


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """As it should be."""
    WARNING = "warning"
    """A choice with a price, or something that could not be checked."""
    PROBLEM = "problem"
    """Jobs can be lost or do not run: fix it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    title: str
    explanation: str = ""
    """The consequences and, unless it is ok, what to do."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about the server."""

    info: Mapping[str, str]
    """`INFO`, flat; empty if this user may not read it."""
    config: Mapping[str, str] | None
    """The results of `CONFIG GET`; None if this user may not read them."""
    missing: tuple[str, ...] = ()
    """Commands that wheelq needs and the server does not know."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Operations that the server refused to this user, with its error messages."""
    writes_refused: str = ""
    """Why the server refuses writes; empty if it takes them, or this user may not write."""
    clock_skew_ms: float = 0.0
    """This machine's clock minus the server's."""
    clock_error_ms: float = 0.0
    """How far off that figure may be: half a round trip."""
    waited_for: int = 1
    """Replicas that must have a job before a call with `durability="replicated"` returns."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Facts about jobs, schedulers and workers."""

    waiting: int = 0
    schedulers: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)
    """Version of wheelq → how many live schedulers and workers run it; "-" if they do not tell it."""
    overdue_ms: Mapping[str, int] = field(default_factory=dict)
    """Topic → how long its first waiting job has been due."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Topic → jobs that are ready."""
    served: frozenset[str] = frozenset()
    """Topics that a live worker has a handler for."""
    unserved: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Topic and group that no live worker serves → the group's unfinished jobs."""
    paused: Mapping[str, int] = field(default_factory=dict)
    """Paused topic → how long its first waiting job has been due, in ms."""
    leaderless: Mapping[str, int] = field(default_factory=dict)
    """Topic → shards with a job that is due within half a second, or overdue, and no leader."""
    outgoing: Mapping[str, int] = field(default_factory=dict)
    """Topic whose jobs have followers that their topics did not take at the second attempt → how many are left."""
    lost_workers: int = 0
    """Workers that ended without a word in the last ten minutes."""
    missed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Topic and name of a recurring job → how many ms ago an occurrence was due that is not scheduled yet."""
    open_destinations: tuple[str, ...] = ()
    """Receivers of callbacks that are not called, because they failed too often."""
    leaving: tuple[str, ...] = ()
    """Topics whose removal has begun but not ended."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Topics whose settings cannot be read here, and why."""
    couriers: tuple[tuple[bool, str, str], ...] = ()
    """What is wrong with SQL outboxes: see `CourierInfo.troubles`."""
    prefix: str = "wheelq"
    other_prefixes: tuple[str, ...] = ()
    """Other prefixes in use on the server."""
    unreadable_keys: Mapping[str, str] = field(default_factory=dict)
    """API keys of the HTTP server that cannot be read here, and why; "" stands for all keys."""


ok, warning, problem = (partial(Finding, level) for level in Level)


def diagnose(server: ServerFacts, jobs: JobFacts) -> list[Finding]:
    """Returns every finding, in reading order."""
    about = (_topics, _schedulers, _versions, _prefixes, _planned, _workers, _api_keys)
    return [*diagnose_server(server), *(finding for findings in about for finding in findings(jobs))]


def diagnose_server(server: ServerFacts) -> list[Finding]:
    """Returns the findings about the server alone."""
    info = (_role, _durability, _replicas, _memory, _clients) if server.info else ()
    about = (_version, _rights, _writes, _eviction, *info, _clock)
    return [finding for findings in about for finding in findings(server)]


def _version(facts: ServerFacts) -> Iterator[Finding]:
    valkey = facts.info.get("valkey_version")
    shown = f"Valkey {valkey}" if valkey else f"Redis {facts.info.get('redis_version', 'or Valkey')}"
    if facts.missing:
        yield problem(
            f"{shown} lacks {', '.join(facts.missing)}",
            "wheelq needs it. Use Redis 6.2.2 or newer, or any Valkey.",
        )
    elif is_too_old(facts.info):
        why = "Before 6.2.2 the recovery of a dead worker's jobs miscounts deliveries."
        yield problem(f"{shown} is too old", f"{why} Use Redis 6.2.2 or newer, or any Valkey.")
    else:
        yield ok(shown, "Knows every command that wheelq needs.")


def _rights(facts: ServerFacts) -> Iterator[Finding]:
    for operation, words in facts.refused.items():
        if operation in NOT_FOR_ALL:
            yield warning(f"{operation} was refused to this user", NOT_FOR_ALL[operation])
        elif operation == CHANNELS:
            without = "Without it jobs that are due soon may be late by up to a minute, and a scheduler does not start"
            yield problem(f"{CHANNELS} was refused", f"{words}. {without}.")
        else:
            yield problem(f"{operation} was refused", f"{words}. Without it jobs do not run: fix the user's ACL.")
    if not facts.info:
        yield warning(
            "What the server reports about itself cannot be read",
            "INFO is denied to this user, so that its role, memory, disk, replicas and connections were not looked at. "
            "Jobs run without that right. For a whole diagnosis use a user as in config/acl/monitor.acl.",
        )
    elif facts.config is None:
        yield warning(
            "The server's configuration cannot be read",
            "CONFIG GET is denied, as on most managed servers. The findings below rest on INFO alone: look up in the "
            "provider's console that persistence is on and how often it reaches the disk (appendfsync).",
        )


def _writes(facts: ServerFacts) -> Iterator[Finding]:
    if facts.writes_refused:
        yield problem(
            "The server refuses writes",
            f"{facts.writes_refused}. No job is scheduled until it takes them again. Look at its memory, disk and log.",
        )


def _role(facts: ServerFacts) -> Iterator[Finding]:
    if facts.info.get("role") == "slave":
        primary = f"{facts.info.get('master_host', '?')}:{facts.info.get('master_port', '?')}"
        yield problem("This server is a replica", f"It takes no writes. Connect to its primary, {primary}.")
    if "cluster" in (facts.info.get("redis_mode"), facts.info.get("server_mode")):
        yield ok(
            "This is a cluster",
            "Topics are spread over its masters by their shards: three or four for each master are enough. The "
            "findings about memory, disk, replicas and settings are one master's: make sure that the others are "
            "configured alike. Their clocks must agree, as NTP keeps them.",
        )


def _eviction(facts: ServerFacts) -> Iterator[Finding]:
    policy = (facts.config or {}).get("maxmemory-policy") or facts.info.get("maxmemory_policy")
    if policy is None:
        yield warning("The eviction policy cannot be seen", "Make sure that maxmemory-policy is noeviction.")
    elif policy != "noeviction":
        yield problem(
            f"maxmemory-policy is {policy}",
            "When memory runs short, the server deletes keys, and waiting jobs with them, without any error. Change "
            "it: CONFIG SET maxmemory-policy noeviction (and in the server's configuration file).",
        )
    else:
        yield ok("Nothing is evicted", "When memory runs short new jobs are refused with an error; due jobs still run.")


def _memory(facts: ServerFacts) -> Iterator[Finding]:
    limit, used = number(facts.info, "maxmemory"), number(facts.info, "used_memory")
    if not limit:
        yield ok("No memory limit", f"{_megabytes(used)} used; the machine's memory is the limit.")
        return
    share = f"{used / limit:.0%} of maxmemory is used ({_megabytes(used)} of {_megabytes(limit)})"
    if used >= limit:
        yield problem(share, "New jobs are refused until some have run. Raise maxmemory.")
    elif used >= NEARLY_FULL * limit:
        yield warning(share, "At the limit new jobs are refused; due jobs still run. Raise maxmemory in time.")
    else:
        yield ok(share)


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.1f} MB"


def _clients(facts: ServerFacts) -> Iterator[Finding]:
    limit, connected = number(facts.info, "maxclients"), number(facts.info, "connected_clients")
    if limit and connected >= CLIENTS_NEARLY_FULL * limit:
        yield warning(
            f"{connected} of {limit} connections are in use",
            "At the limit new producers and workers are turned away. Raise maxclients, or use fewer connections.",
        )


def _clock(facts: ServerFacts) -> Iterator[Finding]:
    off_ms, ahead = abs(facts.clock_skew_ms), "ahead of" if facts.clock_skew_ms >= 0 else "behind"
    if off_ms - facts.clock_error_ms <= CLOCK_OFF_MS:
        yield ok(
            f"This machine's clock is {off_ms:,.0f} ms {ahead} the server's (± {facts.clock_error_ms:.1f} ms)",
            "Only the server's clock decides when a job is due.",
        )
        return
    yield warning(
        f"This machine's clock is {span(off_ms)} {ahead} the server's",
        "Only the server's clock decides when a job is due, so jobs with a `delay` are right. But a program that "
        "computes `at` here schedules at a wrong time, and times in logs are wrong. Set the clocks by NTP.",
    )


def _durability(facts: ServerFacts) -> Iterator[Finding]:
    """Yields findings about the disk. `_replicas` yields those about replicas.

    The claims are measured. A killed server process with AOF `everysec` lost 0 of 15,000 acknowledged writes, because
    the kernel already had them; only a crash of the machine loses the last second. The exception is a slow disk: while
    the previous second's sync is still running, the server holds back its writes for up to two seconds, and a crash of
    the process then loses those.
    A replica promoted after its primary was killed lacked a few of the last acknowledged writes, but none for which a
    call had waited.
    """
    config, info = facts.config or {}, facts.info
    if info.get("aof_last_write_status", "ok") != "ok":
        yield problem(
            "The append-only file cannot be written",
            "The server refuses writes until it can be written. See the server's log: most likely the disk is full or "
            "broken.",
        )
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield problem(
            "The last snapshot failed",
            "By default the server refuses writes until a snapshot succeeds. See its log: the disk may be full, or "
            "there is no memory to fork (vm.overcommit_memory = 1 helps).",
        )
    if info.get("aof_enabled") == "1":
        yield _append_only(config.get("appendfsync"))
    elif config.get("save") == "" and number(info, "connected_slaves"):
        yield problem(
            "Nothing is written to disk, and replicas copy that",
            "If the server's process ends and is started again before a replica is promoted, it comes back empty, and "
            "the replicas empty themselves: every waiting job is lost everywhere. CONFIG SET appendonly yes, and the "
            "same in the configuration file.",
        )
    elif config.get("save") == "":
        yield warning(
            "Nothing is written to disk",
            "If the server's process ends, every waiting job is lost. Unless that is meant (tests): CONFIG SET "
            "appendonly yes, and the same in the configuration file.",
        )
    else:
        points = f" (save {config['save']})" if config.get("save") else ""
        yield warning(
            f"Only snapshots are written to disk{points}",
            "If the server's process ends, everything since the last snapshot is lost: minutes of scheduled jobs. Jobs "
            "that ran since then run again. Better: CONFIG SET appendonly yes, and the same in the configuration file.",
        )


def _append_only(fsync: str | None) -> Finding:
    if fsync == "always":
        return ok(
            "Every job is on disk before its call returns (appendfsync always)",
            "Neither a crash nor a power cut loses anything accepted; only the loss of the disk does.",
        )
    if fsync == "no":
        return warning(
            "The operating system decides when jobs reach the disk (appendfsync no)",
            "A crash of the server's process loses nothing; a power cut may cost half a minute. Better: CONFIG SET "
            "appendfsync everysec.",
        )
    if fsync is None:
        return ok(
            "An append-only file is written", "How often it reaches the disk cannot be seen; usually each second."
        )
    return ok(
        "Jobs reach the disk every second (appendfsync everysec)",
        "A crash of the server's process loses nothing, unless the disk lags behind. A power cut, or a crash then, may "
        "cost the last one or two seconds: jobs scheduled then are gone, jobs that started then run again. To lose "
        "nothing: CONFIG SET appendfsync always (costs little with schedule_many, much for single calls), or "
        "durability='fsynced' for the calls that matter.",
    )


def _replicas(facts: ServerFacts) -> Iterator[Finding]:
    if facts.info.get("role") == "slave":
        return
    replicas = number(facts.info, "connected_slaves")
    needed = number(facts.config or {}, "min-replicas-to-write")
    in_step = sum("state=online" in facts.info.get(f"slave{place}", "") for place in range(replicas))
    if needed > in_step:
        yield problem(
            f"min-replicas-to-write is {needed}, and {in_step} replica{' is' if in_step == 1 else 's are'} in step",
            "The server refuses every write: jobs can neither be scheduled nor promoted. Bring the replicas back, or "
            f"CONFIG SET min-replicas-to-write {in_step}.",
        )
    elif needed:
        yield ok(
            f"Writes are refused while fewer than {needed} replica{'s' if needed > 1 else ''} answer "
            "(min-replicas-to-write)",
            "So a primary that is cut off from its replicas stops accepting jobs. This does not limit what a failover "
            "loses: it counts replicas that answer, not the writes that they already have.",
        )
    if replicas:
        yield warning(
            f"{replicas} replica{'s follow' if replicas > 1 else ' follows'}, and calls wait for "
            f"{'them' if replicas > 1 else 'it'} only if they ask to",
            "By default a failover loses what replication had not carried yet, usually milliseconds: such jobs are "
            "gone, or run again. Where it matters, schedule with durability='replicated' ([client] durability makes "
            "it the default): the call returns once a replica has the job, and says so if none has it in time.",
        )
    if replicas > facts.waited_for:
        yield warning(
            f"durability='replicated' waits for {facts.waited_for} of {replicas} replicas",
            "A failover may promote one of the others, which lacks jobs that were confirmed; in a planned SENTINEL "
            "FAILOVER the others go on confirming for the old primary. Set [client] replicas to "
            f"{replicas}: then whichever is promoted has them, and while one is away calls raise NotReplicated. For a "
            "planned switch use FAILOVER TO host port on the primary (in a cluster CLUSTER FAILOVER on the replica), "
            "which pauses writes until that replica has them all.",
        )
    if in_step < replicas:
        yield warning(
            f"{replicas - in_step} of {replicas} replicas {'is' if replicas - in_step == 1 else 'are'} not in step yet",
            "A replica that copies the data for the first time or after a long break confirms nothing, and must not be "
            "promoted, until it is done.",
        )


def _topics(jobs: JobFacts) -> Iterator[Finding]:
    for topic, what in sorted(jobs.unreadable.items()):
        yield problem(
            f"The settings of topic {topic} cannot be read: {what}",
            "A newer release of wheelq or another program wrote them. Programs of this release that did not know the "
            "topic before do not serve it: upgrade them, or correct the settings.",
        )


def _schedulers(jobs: JobFacts) -> Iterator[Finding]:
    late = {topic: ms for topic, ms in jobs.overdue_ms.items() if ms > OVERDUE_MS}
    shown = ", ".join(f"{topic} for {ms / 1000:,.0f} s" for topic, ms in sorted(late.items()))
    if jobs.schedulers and late:
        yield problem(
            f"Jobs are overdue: {shown}",
            "A scheduler runs and does not keep up or cannot reach this server: see its log.",
        )
    elif jobs.schedulers:
        running = counted(jobs.schedulers, "scheduler runs", "schedulers run")
        yield ok(running if jobs.leaderless else f"{running}, nothing is overdue")
    elif late:
        yield problem(f"No scheduler runs, and jobs are overdue: {shown}", "Start one: wheelq scheduler.")
    else:
        waiting = f"Jobs ({counted(jobs.waiting, 'waits', 'wait')} now) will not start when they are due."
        yield warning("No scheduler runs", f"{waiting} Start one: wheelq scheduler.")


def _versions(jobs: JobFacts) -> Iterator[Finding]:
    if len(jobs.versions) > 1:
        shown = ", ".join(f"{version} ({count})" for version, count in sorted(jobs.versions.items()))
        why = "During an upgrade this is as it should be. Otherwise some were not restarted: wheelq stats shows which."
        yield warning(f"Schedulers and workers run different versions of wheelq: {shown}", why)


def _prefixes(jobs: JobFacts) -> Iterator[Finding]:
    if not jobs.other_prefixes:
        return
    others = ", ".join(jobs.other_prefixes)
    if jobs.schedulers and jobs.overdue_ms and (jobs.served or not any(jobs.unread.values())):
        yield ok(f"Other prefixes on this server: {others}", "Programs with different prefixes do not see each other.")
        return
    missing = "scheduler" if not jobs.schedulers else "topic" if not jobs.overdue_ms else "worker"
    yield warning(
        f"No {missing} has the prefix {jobs.prefix}; other prefixes on this server: {others}",
        "Programs with different prefixes do not see each other. If these belong together, give all of them the same: "
        "prefix in the settings file, or WHEELQ_PREFIX.",
    )


def _planned(jobs: JobFacts) -> Iterator[Finding]:
    """Yields findings about leaders, paused topics, recurring jobs and receivers."""
    for topic, shards in sorted(jobs.leaderless.items()):
        what = f"{counted(shards, 'shard')} of {topic} with jobs that are due has no leader"
        yield problem(what, "Look for a scheduler that runs and reaches this server; start one: wheelq scheduler.")
    for topic, left in sorted(jobs.outgoing.items()):
        why = "Look for the topics that follow it: a full topic (max_pending), or a server that is away; logs say more."
        yield warning(f"{counted(left, 'job')} that follow jobs of {topic} could not be delivered yet", why)
    if paused := {topic: ms for topic, ms in sorted(jobs.paused.items()) if topic not in jobs.leaving}:
        since = f", and jobs have been due for {max(paused.values()) / 1000:,.0f} s" if any(paused.values()) else ""
        title = _together([*paused], "Topic {} is paused", "{} topics are paused", since)
        topic = "TOPIC" if len(paused) > 1 else next(iter(paused))
        yield warning(title, f"None of its jobs run. Resume it: wheelq resume {topic}.")
    for (topic, name), ms in sorted(jobs.missed.items()):
        what = f"Recurring job {name} of {topic} was due {ms / 1000:,.0f} s ago and is not scheduled"
        yield problem(what, "Start a scheduler, or upgrade those that run: a newer release may have written its rule.")
    yield from (problem(*words) if nobody_delivers else warning(*words) for nobody_delivers, *words in jobs.couriers)
    if jobs.open_destinations:
        title = _together(jobs.open_destinations, "Receiver {} is not called", "{} receivers are not called")
        yield warning(title, "It failed too often. It will be tried again; check its state.")
    if jobs.lost_workers:
        yield warning(
            f"{counted(jobs.lost_workers, 'worker')} ended without a word in the last ten minutes",
            "Look for processes that were killed or ran out of memory. Other workers have taken over their jobs.",
        )


def _together(names: Sequence[str], one: str, many: str, more: str = "") -> str:
    """Returns the title of a finding that concerns all of these: `one` with the only name, or `many` and the first."""
    if len(names) == 1:
        return one.format(names[0]) + more
    left_out = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{many.format(len(names))}{more}: {', '.join(names[:NAMED])}{left_out}"


def _workers(jobs: JobFacts) -> Iterator[Finding]:
    if unread := {topic: count for topic, count in sorted(jobs.unread.items()) if count and topic not in jobs.served}:
        count = sum(unread.values())
        one = f"{counted(count, 'job of {} is', 'jobs of {} are')} ready and no live worker handles that topic"
        many = f"{count:,} jobs in {{}} topics are ready and no live worker handles these"
        yield warning(
            _together([*unread], one, many),
            "They are kept until one does. Start one: wheelq worker MODULE:NAME, with a handler for it.",
        )
    if jobs.unserved:
        groups, left = [f"{group} of {topic}" for topic, group in sorted(jobs.unserved)], sum(jobs.unserved.values())
        has = f", which {'has' if len(groups) == 1 else 'have'} {counted(left, 'job')} to do" if left else ""
        topic, group = next(iter(jobs.unserved)) if len(groups) == 1 else ("TOPIC", "GROUP")
        yield warning(
            _together(groups, "No live worker serves group {}", "No live worker serves {} groups", has),
            "A group gets every job of its topic, and keeps each job and its id until one of its workers has run it. "
            f"Start a worker, or remove the group: wheelq group remove {topic} {group}.",
        )
    for topic in jobs.leaving:
        yield problem(
            f"Topic {topic} is half removed",
            "It takes no jobs, and none of its jobs run. Unless its removal still runs, end it, which deletes them: "
            f"wheelq topic remove {topic} --force; or take it back with what is left of it: wheelq resume {topic}.",
        )
    if jobs.served:
        yield ok(f"Workers handle {', '.join(sorted(jobs.served))}")


def _api_keys(jobs: JobFacts) -> Iterator[Finding]:
    for id, what in sorted(jobs.unreadable_keys.items()):
        if id:
            yield problem(
                f"API key {id} cannot be read: {what}",
                f"No HTTP server accepts it. Replace it: wheelq keys revoke {id}, wheelq keys create.",
            )
        else:
            yield problem(
                f"The API keys cannot be read: {what}",
                "HTTP servers keep using the keys that they have read, even revoked ones; a new one refuses all.",
            )
