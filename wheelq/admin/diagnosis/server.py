"""Findings about the server: version, permissions, role, eviction, load and clock."""

from __future__ import annotations

from collections.abc import Iterator

from wheelq.admin.diagnosis.facts import Finding, ServerFacts, number, ok, problem, warning
from wheelq.transport.startup import is_too_old

NEARLY_FULL = 0.8
CLIENTS_NEARLY_FULL = 0.9
NOT_FOR_ALL = {
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


def server_findings(facts: ServerFacts) -> Iterator[Finding]:
    """Yields findings about version, permissions, role and eviction."""
    yield from _version(facts)
    yield from _rights(facts)
    if facts.writes_refused:
        yield problem(
            "The server refuses writes",
            f"{facts.writes_refused}. No job is scheduled until it takes them again. Look at its memory, disk and log.",
        )
    yield from _role(facts)
    yield from _eviction(facts)


def load_findings(facts: ServerFacts) -> Iterator[Finding]:
    """Yields findings about memory, connections and clock."""
    yield from _memory(facts)
    yield from _clients(facts)
    yield _clock(facts)


def _version(facts: ServerFacts) -> Iterator[Finding]:
    valkey = facts.info.get("valkey_version")
    shown = f"Valkey {valkey}" if valkey else f"Redis {facts.info.get('redis_version', 'of unknown version')}"
    if facts.missing:
        yield problem(
            f"{shown} lacks {', '.join(facts.missing)}",
            "wheelq needs it. Use Redis 6.2.2 or newer, or any Valkey.",
        )
    elif is_too_old(facts.info):
        yield problem(
            f"{shown} is too old",
            "Before 6.2.2 the recovery of a dead worker's jobs miscounts deliveries. Use Redis 6.2.2 or newer, or any "
            "Valkey.",
        )
    else:
        yield ok(shown, "Knows every command that wheelq needs.")


def _rights(facts: ServerFacts) -> Iterator[Finding]:
    for operation, words in facts.refused.items():
        if operation in NOT_FOR_ALL:
            yield warning(f"{operation} was refused to this user", f"{NOT_FOR_ALL[operation]} ({words})")
        elif operation == CHANNELS:
            without = "Without it jobs that are due soon may be late by up to a minute, and a scheduler does not start"
            yield problem(f"{CHANNELS} was refused", f"{words}. {without}.")
        else:
            yield problem(f"{operation} was refused", f"{words}. Without it jobs do not run: fix the user's ACL.")
    if facts.config is None:
        yield warning(
            "The server's configuration cannot be read",
            "CONFIG GET is denied, as on most managed servers. The findings below rest on INFO alone: look up in the "
            "provider's console that persistence is on and how often it reaches the disk (appendfsync).",
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


def _clock(facts: ServerFacts) -> Finding:
    ahead = "ahead of" if facts.clock_skew_ms >= 0 else "behind"
    return ok(
        f"This machine's clock is {abs(facts.clock_skew_ms):,.0f} ms {ahead} the server's "
        f"(± {facts.clock_error_ms:.1f} ms)",
        "This is harmless, because only the server's clock decides when a job is due. (But a program that computes "
        "`at` from a wrong clock schedules at a wrong time; `delay` avoids that.)",
    )
