"""Lists topics, schedulers and workers.

Schedulers and workers are known by their heartbeats, one every five seconds. A heartbeat is valid for 15 seconds by the
server's clock, so a killed process, whose entry stays behind, is not listed after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wheelq.base.metrics import Lateness
from wheelq.model.topic import TopicInfo
from wheelq.producer.operation import Operation, ask, ask_all
from wheelq.protocol.calls import heartbeats, registry, shard_counts
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys

NOT_TOLD = Lateness()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The last heartbeat of a live scheduler node."""

    name: str
    seen_ms: int
    """When the heartbeat was sent, by the server's clock."""
    shards: int
    leading: int
    """How many of its shards it leads; other nodes lead the rest."""
    promoted: int
    clock_skew_ms: int
    """Its machine's clock minus the server's; harmless."""
    lateness: Lateness = NOT_TOLD
    """How late it promoted jobs: from due time to promotion, by the server's clock. Jobs that are due when they are
    scheduled do not count: the schedule call promotes them."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The last heartbeat of a live worker."""

    name: str
    seen_ms: int
    """When the heartbeat was sent, by the server's clock."""
    group: str
    topics: tuple[str, ...]
    running: int
    handled: int
    failed: int
    lateness_p99_ms: int
    """99 % of its handlers started within this many milliseconds after the due time."""
    skipped: int
    """Jobs that were too late, and were dropped or buried."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Every topic, live scheduler and live worker."""

    server_ms: int
    """The server's time when they were read."""
    topics: list[TopicInfo]
    nodes: list[NodeInfo]
    workers: list[WorkerInfo]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Topics whose settings cannot be read here, and why: a newer release or another program wrote them."""


def stats(keys: Keys) -> Operation[Stats]:
    """Returns every topic, live scheduler and live worker, by name."""
    settings, unreadable = (yield from ask(registry.topics(keys)))[1:]
    shards = [keys.shard(name, n) for name in sorted(settings) for n in range(settings[name].all_shards)]
    counts = yield from ask_all(shard_counts.counts(shard) for shard in shards)
    server_ms = (yield from ask(server_time_us())) // 1000
    return Stats(
        server_ms,
        shard_counts.add_up(settings, shards, counts),
        [_node(name, said) for name, said in (yield from _alive(keys.nodes, server_ms))],
        [_worker(name, said) for name, said in (yield from _alive(keys.workers, server_ms))],
        unreadable,
    )


def nodes(keys: Keys) -> Operation[list[NodeInfo]]:
    """Returns every live scheduler, by name."""
    server_ms = (yield from ask(server_time_us())) // 1000
    return [_node(name, said) for name, said in (yield from _alive(keys.nodes, server_ms))]


def workers(keys: Keys) -> Operation[list[WorkerInfo]]:
    """Returns every live worker, by name."""
    server_ms = (yield from ask(server_time_us())) // 1000
    return [_worker(name, said) for name, said in (yield from _alive(keys.workers, server_ms))]


def _alive(hash_key: str, server_ms: int) -> Operation[list[tuple[str, Mapping[str, Any]]]]:
    said = yield from ask(heartbeats.alive(hash_key))
    return sorted(heartbeats.living(said, server_ms).items())


def _node(name: str, said: Mapping[str, Any]) -> NodeInfo:
    figures = ("seen_ms", "shards", "leading", "promoted", "clock_skew_ms")
    lateness = Lateness(said.get("late_ms", 0), tuple(said.get("lateness", ())))
    return NodeInfo(name, **{figure: said.get(figure, 0) for figure in figures}, lateness=lateness)


def _worker(name: str, said: Mapping[str, Any]) -> WorkerInfo:
    figures = (said.get(figure, 0) for figure in ("running", "handled", "failed", "lateness_p99_ms", "skipped"))
    return WorkerInfo(name, said.get("seen_ms", 0), said.get("group", "?"), tuple(said.get("topics", ())), *figures)
