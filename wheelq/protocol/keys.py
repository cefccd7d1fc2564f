"""The name of every key in Redis; nothing else builds one.

All keys of one shard carry the hash tag `{topic:shard}`, so that a script touches one cluster slot and a topic's shards
spread over the cluster. With the prefix `wheelq`:

| key                      | type        | holds                                                                       |
|--------------------------|-------------|-----------------------------------------------------------------------------|
| `wheelq:{T:0}:delayed`   | sorted set  | member → due_ms; a member is a job id, or `id \\x1f group` for a retry, or  |
|                          |             | `id \\x1f group \\x1f entry` where a later job with this id also retries   |
| `wheelq:{T:0}:jobs`      | hash        | member → record while waiting, → entry id once promoted; gone when finished |
| `wheelq:{T:0}:ready`     | stream      | one entry per promoted job                                                  |
| `wheelq:{T:0}:dead`      | stream      | buried jobs                                                                 |
| `wheelq:{T:0}:lease`     | string, PX  | the leader's token                                                          |
| `wheelq:{T:0}:epoch`     | string      | the last epoch given out                                                    |
| `wheelq:{T:0}:horizon`   | string      | due_ms up to which the leader has loaded                                    |
| `wheelq:{T:0}:near`      | channel     | lines `due_ms id`: jobs scheduled before the horizon                        |
| `wheelq:{T:0}:buried`    | hash        | `id \\x1f group` → its entry among the dead                                |
| `wheelq:{T:0}:progress`  | hash        | `id \\x1f group` → how far its handler says it is (msgpack)                |
| `wheelq:{T:0}:done`      | hash        | id → the kept data of a finished job, for the topic's `keep_done_ms`;       |
|                          |             | `id \\x1f group` → its earlier attempts there                              |
| `wheelq:{T:0}:ended`     | sorted set  | id → when it last ended in some group; names what is in `done`              |
| `wheelq:{T:0}:news`      | stream      | ids that ended just now; exists only while a caller waits for one           |
| `wheelq:{T:0}:replays`   | hash        | name of a rerun → its progress; for a day. `:cancel:NAME`, `:move:NAME`:    |
|                          |             | the same for a change by due range                                          |
|                          |             | `:dead`: when a dead job was last replayed                                  |
| `wheelq:{T:0}:shards`    | string      | the topic's terms, after a change: fences out clients with other terms      |
| `wheelq:{T:0}:fence`     | string      | the version of the topic that has these terms                               |
| `wheelq:{T:0}:recurring` | hash        | name → definition and state of a recurring job; in shard 0 only            |
| `wheelq:{T:0}:occurrences`| sorted set | name → when its next occurrence is due                                     |
| `wheelq:{T:0}:order:G`   | hash        | the consumer that runs jobs in order for group G; next runs of failed jobs |
| `wheelq:{T:0}:groups`    | hash        | group that the shard has or had → "", or the last entry while it is removed |
| `wheelq:{T:0}:counts`    | hash        | outcome → number of jobs (`calls/counts`); the last leader                  |
| `wheelq:{T:0}:history:H` | hash        | minute of hour H → what was counted in it; for three days                  |
| `wheelq:{T:0}:retries`   | hash        | span of about 17 minutes → how many retries are due in it                   |
| `wheelq:{T:0}:outgoing`  | stream      | followers of settled jobs, on their way to other shards (`calls/outgoing`)  |
| `wheelq:{T:0}:bundles`   | hash        | bundles with members here, and members that have not ended; `=bundle`:      |
|                          |             | a bundle that this shard keeps (`calls/bundles`)                            |
| `wheelq:{T:0}:tags:S:0` | hash       | tag of a call → its answer; this and `…:1` take turns of S seconds          |
| `wheelq:{T:0}:rate`      | string      | the time (us) from which a limited rate is counted                          |
| `wheelq:{T:0}:held`      | sorted set  | key, rank, member of jobs that are held back for their keys, the next first |
| `wheelq:{T:0}:permits`   | sorted set  | key, entry of promoted jobs with a permit; `permitted`: hash, entry → key   |
| `wheelq:{T:0}:paces`     | sorted set  | partition key → the time (us) from which its rate is counted                |
| `wheelq:topics`          | hash        | topic → its settings (msgpack); `:version`: the number of the last change   |
| `wheelq:changes`         | channel     | a topic, a node or the assignment has changed                               |
| `wheelq:came`            | channel     | ready streams to which entries came, one a line: for workers of many shards |
| `wheelq:asks:W`          | channel     | `stream entry`: worker W is asked to cancel the delivery of it             |
| `wheelq:assignment`      | hash        | leader and standby of every shard (msgpack), and its version                |
| `wheelq:nodes`           | hash        | scheduler node → its last report and when it was sent (msgpack)             |
| `wheelq:workers`         | hash        | worker → the same                                                           |
| `wheelq:couriers`        | hash        | SQL outbox → the last report of its courier (msgpack)                      |
| `wheelq:{wheelq:workers}:beats` | hash | worker → its heartbeat: a number that grows, or `left`, and its group |
| `wheelq:{wheelq:workers}:histograms` | hash | kind, topic, group → sum and counts; process → number |
| `wheelq:{wheelq:workers}:measured` | sorted set | the same fields → when they last changed; for an hour |
| `wheelq:callbacks`       | set         | topics with jobs that have a target to be called                            |
| `wheelq:access`          | hash        | id of an API key of the HTTP server → its digests and scopes (msgpack)      |
| `wheelq:task-ids`        | string      | the last numeric task id given out by the classic API                       |
| `wheelq:lease-clock`     | hash        | the clock by which HTTP leases end: its time and its era                    |
| `wheelq:note:…`          | string, PX  | answers to requests with an Idempotency-Key; pulled tasks                   |
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from functools import lru_cache

MEMBER_SEPARATOR = "\x1f"
"""Separates job id and group in the member of a job that waits for a retry; see `id_and_group`."""


_NOT_UTF8 = "surrogateescape"


def member_of(raw: bytes) -> str:
    """A member as text. If another program wrote bytes that are not UTF-8, `raw_member` restores them."""
    return raw.decode(errors=_NOT_UTF8)


def raw_member(member: str) -> bytes:
    """The bytes from which `member_of` made this text."""
    return member.encode(errors=_NOT_UTF8)


def id_and_group(member: str) -> tuple[str, str | None]:
    """The job's id, and the group in which the member waits for a retry; None if it is not a retry."""
    id, *rest = member.split(MEMBER_SEPARATOR)
    return id, rest[0] if rest else None


class _Key:
    """A key of a shard, built when it is first asked for: a node with thousands of shards needs few of each."""

    def __set_name__(self, owner: type[ShardKeys], name: str) -> None:
        self._name = name

    def __get__(self, keys: ShardKeys, owner: type[ShardKeys]) -> str:
        key = keys.__dict__[self._name] = keys.stem + self._name
        return key


class _RareKey(_Key):
    """A key that few calls need: it is built each time, and takes no memory in between."""

    def __get__(self, keys: ShardKeys, owner: type[ShardKeys]) -> str:
        return keys.stem + self._name


@dataclass(frozen=True)
class ShardKeys:
    """The keys of one shard of a topic."""

    prefix: str
    topic: str
    shard: int
    delayed = _Key()
    jobs = _Key()
    ready = _Key()
    dead = _Key()
    lease = _Key()
    epoch = _RareKey()
    horizon = _Key()
    near = _Key()
    shards = _Key()
    fence = _RareKey()
    buried = _RareKey()
    progress = _Key()
    done = _Key()
    ended = _RareKey()
    news = _Key()
    replays = _RareKey()
    groups = _RareKey()
    retries = _Key()
    rate = _RareKey()
    recurring = _RareKey()
    occurrences = _RareKey()
    counts = _Key()
    outgoing = _RareKey()
    bundles = _RareKey()
    held = _RareKey()
    permits = _RareKey()
    permitted = _RareKey()
    paces = _RareKey()

    @property
    def stem(self) -> str:
        """What every key of the shard begins with."""
        return f"{self.prefix}:{{{self.topic}:{self.shard}}}:"

    @classmethod
    def names(cls) -> list[str]:
        """The attributes that are keys."""
        return [name for name, value in vars(cls).items() if isinstance(value, _Key)]

    def order(self, group: str) -> str:
        """The consumer that holds the shard for a group that runs its jobs in order, and its failed jobs."""
        return f"{self.stem}order:{group}"

    def history(self, hour: int) -> str:
        """The counts of each minute of an hour; `hour` counts from the Unix epoch."""
        return f"{self.stem}history:{hour}"


_shard_keys = lru_cache(maxsize=10_000)(ShardKeys)  # a producer needs the same few for every job


@lru_cache(maxsize=10_000)
def tag_keys(prefix: str, topic: str, shard: int, turn_ms: int) -> tuple[str, str]:
    """The answers to the calls of a shard, in two hashes that take turns of `turn_ms`."""
    stem = f"{prefix}:{{{topic}:{shard}}}:tags:{turn_ms // 1000}:"
    return stem + "0", stem + "1"


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key of one wheelq."""

    prefix: str = "wheelq"
    topics: str = field(init=False)
    asks: str = field(init=False)
    """The prefix of every worker's channel; the worker's name follows."""
    changes: str = field(init=False)
    came: str = field(init=False)
    assignment: str = field(init=False)
    nodes: str = field(init=False)
    workers: str = field(init=False)
    couriers: str = field(init=False)
    histograms: str = field(init=False)
    measured: str = field(init=False)
    """When each histogram last changed."""
    beats: str = field(init=False)
    """The heartbeats of workers, in the slot of `workers` so that one call writes both."""
    callbacks: str = field(init=False)
    access: str = field(init=False)
    task_ids: str = field(init=False)
    lease_clock: str = field(init=False)

    def __post_init__(self) -> None:
        of_workers = f"{{{self.prefix}:workers}}:"
        names = {"asks": "asks:", **{name: of_workers + name for name in ("histograms", "measured", "beats")}}
        for key in fields(self)[1:]:
            name = names.get(key.name, key.name.replace("_", "-"))
            object.__setattr__(self, key.name, f"{self.prefix}:{name}")

    def shard(self, topic: str, shard: int) -> ShardKeys:
        """The keys of one shard."""
        return _shard_keys(self.prefix, topic, shard)

    def note(self, kind: str, name: str) -> str:
        """The key of a note; `name` may be any text, because only its digest is used if it is long."""
        return f"{self.prefix}:note:{kind}:{hashlib.sha256(name.encode()).hexdigest()}"
