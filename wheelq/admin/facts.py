"""Collects facts about a server and its jobs; `wheelq.admin.diagnosis` interprets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from wheelq.admin.diagnosis import CHANNELS, Finding, JobFacts, ServerFacts, diagnose, diagnose_server
from wheelq.admin.figures import Fleet, Parts, all_allowed, by_slot, fleet, recurring_times
from wheelq.base.clock import Clock, ServerClock
from wheelq.errors import GroupNotFound, NotPermitted, Refused, ServerBusy, ServerTooOld, WritesRefused
from wheelq.producer.operation import Do, Operation, Step, ask, ask_all
from wheelq.protocol.calls import access, heartbeats, notes, removal
from wheelq.protocol.calls.server import (
    config,
    info,
    is_registry,
    listening,
    needed_commands,
    publish_nothing,
    server_time_us,
    with_topics,
)
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport, Transport

CLOCK_SAMPLES = 5  # the best of a few round trips is close to the wire's own time
MISSED_MS = 60_000
"""An occurrence that is not scheduled this long after its due time was missed."""
LOOKS = 100
"""The most calls that look for topics; with more keys than they cover, some prefixes may be missed."""
ENOUGH = 10
"""When this many other prefixes are found, the search ends."""
INFO_SECTIONS = ("server", "clients", "memory", "persistence", "replication")
CONFIGURATION = ("maxmemory-policy", "appendonly", "appendfsync", "save", "min-replicas-to-write")


def findings(
    keys: Keys, clock: Clock, transport: Transport | AsyncTransport, replicas: int = 1
) -> Operation[list[Finding]]:
    """Returns findings about the server and its users; see `server_facts`."""
    server = yield from server_facts(keys, clock, transport, replicas)
    if server.missing:
        return diagnose_server(server)
    return diagnose(server, (yield from job_facts(keys, by_slot(transport.slot))))


def server_facts(
    keys: Keys, clock: Clock, transport: Transport | AsyncTransport, replicas: int
) -> Operation[ServerFacts]:
    """Collects facts about the server. `replicas` must have a job before `durability="replicated"` returns."""
    server_clock = ServerClock(clock)
    for _ in range(CLOCK_SAMPLES):
        asked_at = clock.monotonic()
        server_clock.observe(asked_at, (yield from ask(server_time_us())))
    refused: dict[str, str] = {}
    missing = []
    for name, call in needed_commands(keys).items():
        try:
            yield from ask(call)
        except ServerTooOld:
            missing.append(name)
        except ServerBusy:  # a busy server answers every command so, which tells nothing about the command
            raise
        except (GroupNotFound, WritesRefused):  # the answers of a server that knows XAUTOCLAIM
            pass
        except Refused as error:
            refused[name] = str(error)
    refused |= yield from _refused_channels(keys, partial(transport.try_to_listen, keys.shard("none", 0).near))
    writes_refused = yield from _writes_refused(keys)
    reported = yield from all_allowed(info(section) for section in INFO_SECTIONS)  # Redis 6.2 takes a single section
    configuration = yield from all_allowed(config(name) for name in CONFIGURATION)
    about_clock = server_clock.skew_ms, server_clock.error_ms
    return ServerFacts(reported or {}, configuration, tuple(missing), refused, writes_refused, *about_clock, replicas)


def job_facts(keys: Keys, parts: Parts) -> Operation[JobFacts]:
    """Collects facts about jobs, schedulers and workers."""
    seen = yield from fleet(keys, parts)
    topics, nodes, workers = seen.topics, seen.processes.nodes, seen.processes.workers
    paused = {topic.name: topic.overdue_ms for topic in topics if topic.settings.paused}
    others = yield from other_prefixes(keys, thoroughly=not topics)
    recurring = yield from recurring_times(keys, seen)
    unserved = yield from _unserved(keys, seen)
    consumed = {group.topic for group in seen.groups if (group.topic, group.name) not in unserved}
    missed = {place: seen.at_ms - one.next_ms for place, one in recurring.items() if one.next_ms is not None}
    return JobFacts(
        waiting=sum(topic.waiting for topic in topics),
        schedulers=len(nodes),
        versions=Counter(node.version for node in nodes) + Counter(worker.version for worker in workers),
        overdue_ms={topic.name: topic.overdue_ms for topic in topics if topic.name not in paused},
        paused=paused,
        outgoing={
            topic: sum(one.outgoing for one in shards)
            for topic, shards in seen.shards.items()
            if any(one.claims > 1 for one in shards)
        },
        leaderless={topic: n for topic in seen.shards if (n := seen.without_leader(topic))},
        lost_workers=seen.processes.lost_workers,
        missed={place: ms for place, ms in missed.items() if ms > MISSED_MS and place[0] not in paused},
        open_destinations=tuple(sorted(seen.processes.open_destinations)),
        unread={topic.name: topic.ready for topic in topics if topic.name not in consumed},
        served=frozenset(topic for topic, _ in seen.serving),
        unserved=unserved,
        leaving=tuple(topic.name for topic in topics if topic.settings.removing),
        unreadable=seen.registered.unreadable,
        couriers=tuple(trouble for one in seen.processes.couriers for trouble in one.troubles()),
        prefix=keys.prefix,
        other_prefixes=others,
        unreadable_keys=(yield from _unreadable_keys(keys)),
    )


def _unserved(keys: Keys, seen: Fleet) -> Operation[dict[tuple[str, str], int]]:
    """Counts the unfinished jobs of each group without a live worker and without a recently active consumer."""
    unserved = {}
    for group in seen.groups:
        if not group.workers:
            shards = (keys.shard(group.topic, n) for n in range(len(seen.shards[group.topic])))
            asked = [removal.consumers(shard, group.name, heartbeats.BELIEVED_MS) for shard in shards]
            if not any((yield from ask_all(asked))):
                unserved[group.topic, group.name] = group.lag + group.pending
    return unserved


def _unreadable_keys(keys: Keys) -> Operation[dict[str, str]]:
    try:
        return (yield from ask(access.api_keys(keys))).unreadable
    except NotPermitted:
        return {}  # only users that manage the HTTP server may read the keys
    except Refused as error:
        return {"": str(error)}


def _refused_channels(keys: Keys, try_to_listen: Callable[[], Any]) -> Operation[dict[str, str]]:
    """Finds out whether this user may publish and subscribe: commands and channels need separate permissions."""
    refused = {}
    attempts: dict[str, Step] = {"PUBLISH": publish_nothing(keys), "SUBSCRIBE": Do(try_to_listen)}
    for name, attempt in attempts.items():
        try:
            yield attempt
        except NotPermitted as error:
            refused[CHANNELS if "channel" in str(error) else name] = str(error)
    return refused


def _writes_refused(keys: Keys) -> Operation[str]:
    """Writes a note that lasts a millisecond. Returns the reason if the server refuses it."""
    try:
        yield from ask(notes.remember(keys.note("doctor", ""), b"", 1))
    except NotPermitted:
        return ""  # a read-only user
    except Refused as error:
        return str(error)
    return ""


def other_prefixes(keys: Keys, *, thoroughly: bool) -> Operation[tuple[str, ...]]:
    """Returns the other prefixes that schedulers and workers use; `thoroughly`: also those that only have topics.

    Programs whose user may not ask this find none.
    """
    found: set[str] = set()
    with suppress(Refused):
        found |= set((yield from ask(listening(keys))))
    if thoroughly:
        with suppress(Refused):
            found |= yield from _with_topics(keys)
    return tuple(sorted(found))


def _with_topics(keys: Keys) -> Operation[set[str]]:
    found: set[str] = set()
    cursor = 0
    for _ in range(LOOKS):
        cursor, named = yield from ask(with_topics(keys, cursor))
        for prefix in sorted(named):
            if (yield from ask(is_registry(Keys(prefix)))):
                found.add(prefix)
            if len(found) == ENOUGH:
                return found
        if not cursor:
            break
    return found
