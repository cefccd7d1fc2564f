"""Findings about what can be lost: persistence, replicas, and the calls that wait for them.

The claims are measured. A killed server process with AOF `everysec` lost 0 of 15,000 acknowledged writes, because the
kernel already had them; only a crash of the machine loses the last second. The exception is a slow disk: while the
previous second's sync is still running, the server holds back its writes for up to two seconds, and a crash of the
process then loses those.
A replica promoted after its primary was killed lacked a few of the last acknowledged writes, but none for which a call
had waited.
"""

from __future__ import annotations

from collections.abc import Iterator

from wheelq.admin.diagnosis.facts import Finding, ServerFacts, number, ok, problem, warning


def durability_findings(facts: ServerFacts) -> Iterator[Finding]:
    """Yields findings about the disk, then about replicas."""
    yield from _durability(facts)
    yield from _replicas(facts)


def _durability(facts: ServerFacts) -> Iterator[Finding]:
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
