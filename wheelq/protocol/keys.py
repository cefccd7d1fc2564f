"""The name of every key in Redis; nothing else builds one.

All keys of one shard carry the hash tag `{topic:shard}`, so that a script touches one cluster slot and a topic spreads
over the cluster by its shards. With the prefix `wheelq`:

| key                      | type        | holds                                                                       |
|--------------------------|-------------|-----------------------------------------------------------------------------|
| `wheelq:{T:0}:delayed`   | sorted set  | member → due_ms; a member is a job id, or `id \\x1f group` for a retry      |
| `wheelq:{T:0}:jobs`      | hash        | member → record while delayed, → entry id once promoted; gone when finished |
| `wheelq:{T:0}:ready`     | stream      | one entry per promoted job                                                  |
| `wheelq:{T:0}:dead`      | stream      | buried jobs                                                                 |
| `wheelq:{T:0}:lease`     | string, PX  | the leader's token                                                          |
| `wheelq:{T:0}:epoch`     | string      | the last epoch given out                                                    |
| `wheelq:{T:0}:horizon`   | string      | due_ms up to which the leader has loaded                                    |
| `wheelq:{T:0}:near`      | channel     | lines `due_ms id`: jobs scheduled before the horizon                        |
| `wheelq:{T:0}:shards`    | string      | the topic's number of shards, after a change: fences out who knows another  |
| `wheelq:topics`          | hash        | topic → its settings (msgpack); `:version` counts the changes               |
| `wheelq:changes`         | channel     | a topic, a node or the assignment has changed                               |
| `wheelq:assignment`      | hash        | leader and standby of every shard (msgpack), and its version                |
| `wheelq:nodes`           | hash        | scheduler node → what it does and when it last said so (msgpack)            |
| `wheelq:workers`         | hash        | worker → the same                                                           |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

MEMBER_SEPARATOR = "\x1f"
"""Stands between job id and group in the member of a job that waits for its retry in that group."""


@dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of one shard of a topic."""

    prefix: str
    topic: str
    shard: int
    delayed: str = field(init=False)
    jobs: str = field(init=False)
    ready: str = field(init=False)
    dead: str = field(init=False)
    lease: str = field(init=False)
    epoch: str = field(init=False)
    horizon: str = field(init=False)
    near: str = field(init=False)
    shards: str = field(init=False)

    def __post_init__(self) -> None:
        stem = f"{self.prefix}:{{{self.topic}:{self.shard}}}:"
        for name in ("delayed", "jobs", "ready", "dead", "lease", "epoch", "horizon", "near", "shards"):
            object.__setattr__(self, name, stem + name)


_shard_keys = lru_cache(maxsize=10_000)(ShardKeys)  # a producer needs the same few for every job


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key of one wheelq."""

    prefix: str = "wheelq"

    def shard(self, topic: str, shard: int) -> ShardKeys:
        """The keys of one shard."""
        return _shard_keys(self.prefix, topic, shard)

    @property
    def topics(self) -> str:
        return f"{self.prefix}:topics"

    @property
    def changes(self) -> str:
        return f"{self.prefix}:changes"

    @property
    def assignment(self) -> str:
        return f"{self.prefix}:assignment"

    @property
    def nodes(self) -> str:
        return f"{self.prefix}:nodes"

    @property
    def workers(self) -> str:
        return f"{self.prefix}:workers"
