"""One shard on a real server: sends calls, and shows everything that the shard holds.

    shard.snapshot()
    {
        "delayed": {"a": 1763000000000},                              member → due_ms
        "jobs": {"a": b"…", "b": "e1"},                               member → record, or the name of its entry
        "ready": {"e1": {"id": "b", "due": …, "attempt": 1, "record": b"…"}},
        "groups": {"g": {"read": "e1", "pending": {"e1": ("worker-1", 1)}}},     consumer and number of deliveries
        "dead": [{"id": "c", …, "reason": "failed", "entry": "e2"}],
        "recurring": {"nightly": b"…"}, "occurrences": {"nightly": 1763000000000},    name → stored, when to look at it
        "lease": "node-1:…", "epoch": …, "horizon": …, "shards": …,
        "order": {"g": {"owner": "w1", "e1": (1763000000000, b"…")}},     who holds it; next runs. Without the moments
        "buried": ["c\\x1fg"], "progress": {"b\\x1fg": b"…"}, "done": ["d"], "ended": ["d"], "news": ["d\\ne"],
        "retries": 1,                                                     how many wait for one
    }

What the server does not hold is left out. Entry ids depend on the moment, so they are called e1, e2, … in the order in
which this shard has met them; a name stays with its entry from one snapshot to the next.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import redis

from tests.records import RECORD, unstamped
from wheelq.model.job import OnDuplicate
from wheelq.protocol.call import Call, command
from wheelq.protocol.calls import leader, producer, worker
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.calls.worker import Burial, Entry
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport

T = TypeVar("T")

HOUR_MS = 3_600_000
KEEPS_NOTHING = TopicSettings(retention_ms=0)
LEASE_MS = 30_000
KINDS = {
    "ready",
    "delayed",
    "jobs",
    "dead",
    "epoch",
    "horizon",
    "shards",
    "fence",
    "rate",
    "retries",
    "groups",
    "lease",
    "recurring",
    "occurrences",
    "buried",
    "progress",
    "done",
    "ended",
    "news",
    "replays",
    "counts",
    "outgoing",
    "held",
    "permits",
    "permitted",
    "paces",
}
TERMS = "1"
"""Of a topic with one shard and no limits."""


class Shard:
    """A shard of a topic of its own."""

    def __init__(self, url: str, topic: str, number: int = 0) -> None:
        self.keys = Keys().shard(topic, number)
        self.redis = redis.Redis.from_url(url)
        self._transport = Transport(Address(url))
        self._names: dict[str, str] = {}

    def close(self) -> None:
        self._transport.close()
        self.redis.close()

    # --- sending ---------------------------------------------------------------------------------------------------

    def send(self, call: Call[T]) -> T:
        """What the caller is told."""
        return self._transport.send(call)

    def raw(self, call: Call[Any]) -> Any:
        """What the script returned, with records as they were sent."""
        return self.send(replace(call, read=_unstamped))

    def now_ms(self) -> int:
        return self.send(server_time_us()) // 1000

    def wait_until(self, ms: int) -> None:
        """Wait until the server's clock has reached `ms`, by asking it."""
        while self.now_ms() < ms:
            pass

    # --- bringing about a state ------------------------------------------------------------------------------------

    def schedule(self, *jobs: tuple[str, int | str], record: bytes = RECORD, on_duplicate: OnDuplicate = "keep") -> Any:
        """Schedule jobs, each an id and a due time in ms (or "+ms"): status and due_ms of each, as the script says."""
        new = [(id, str(due), record) for id, due in jobs]
        flat = self.raw(producer.schedule(self.keys, new, on_duplicate, TERMS))[: 2 * len(jobs)]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def lead(self, node: str = "node", lease_ms: int = LEASE_MS) -> str:
        """Take the lease; the token."""
        answer = self.send(leader.acquire(self.keys, node, "run:1", lease_ms, TERMS))
        assert answer.is_ours
        return answer.token

    def sweep(self) -> None:
        """Promote what is due, as a leader that leaves no trace."""
        self.send(leader.sweep(self.keys, self.lead(), 30_000, 500))
        self.redis.delete(self.keys.lease, self.keys.epoch)

    def make_group(self, group: str) -> None:
        """Make a group, in a shard whose first group is older than a minute."""
        self.send(worker.make_group(self.keys, group))
        with suppress(redis.ResponseError):  # a test put something else under the key
            self.redis.hdel(self.keys.counts, "born")

    def read(self, group: str, consumer: str, count: int = 100) -> list[Entry]:
        """New deliveries of the group, given to the consumer."""
        entries = self.send(worker.read([self.keys], group, consumer, count, block_ms=1))[0]
        for read in entries:
            self.name(read.entry_id)
        return entries

    def deliver(self, *ids: str, group: str = "g", consumer: str = "w1", record: bytes = RECORD) -> list[Entry]:
        """Let jobs be due, promoted and given to a consumer; their deliveries."""
        self.make_group(group)
        now = self.now_ms()
        self.schedule(*((id, now) for id in ids), record=record)
        entries = self.read(group, consumer)
        assert [entry.id for entry in entries] == list(ids)
        return entries

    def ack(
        self,
        entries: Sequence[Entry],
        group: str = "g",
        consumer: str = "w1",
        safe_until_ms: int = 0,
        retention_ms: int = 0,
    ) -> int:
        deliveries = [(entry.entry_id, entry.member) for entry in entries]
        return self.send(worker.ack(self.keys, group, consumer, safe_until_ms, retention_ms, deliveries))

    def retry(self, entry: Entry, pause_ms: int = 0, group: str = "g", consumer: str = "w1") -> int:
        record = entry.record[:7] + bytes((entry.record[7] + 1,)) + entry.record[8:]
        return self.raw(worker.retry(self.keys, group, consumer, entry, pause_ms, record))

    def bury(
        self, entry: Entry, group: str = "g", consumer: str = "w1", settings: TopicSettings = KEEPS_NOTHING
    ) -> bytes:
        burial = Burial("failed", "it broke", "Traceback", entry.attempt, entry.due_ms)
        return self.raw(worker.bury(self.keys, group, consumer, entry, burial, settings))

    # --- looking ---------------------------------------------------------------------------------------------------

    def name(self, entry_id: str | bytes) -> str:
        """The name of an entry: e1, e2, … in the order of acquaintance."""
        id = entry_id if isinstance(entry_id, str) else entry_id.decode()
        return self._names.setdefault(id, f"e{len(self._names) + 1}")

    def snapshot(self) -> dict[str, Any]:
        """Everything this shard holds."""
        stem = self.keys.near.removesuffix("near")
        kinds = {key.decode().removeprefix(stem): key for key in self.redis.keys(stem + "*")}
        found: dict[str, Any] = {}
        if "ready" in kinds:
            found["ready"] = {self.name(id): _fields(fields) for id, fields in self.redis.xrange(self.keys.ready)}
            if groups := self._groups():
                found["groups"] = groups
        if "delayed" in kinds:
            pairs = self.redis.zrange(self.keys.delayed, 0, -1, withscores=True)
            found["delayed"] = {member.decode(): int(score) for member, score in pairs}
        if "occurrences" in kinds:
            pairs = self.redis.zrange(self.keys.occurrences, 0, -1, withscores=True)
            found["occurrences"] = {name.decode(): int(score) for name, score in pairs}
        if "recurring" in kinds:
            found["recurring"] = {
                name.decode(): value for name, value in self.redis.hgetall(self.keys.recurring).items()
            }
        if "jobs" in kinds:
            stored = self.redis.hgetall(self.keys.jobs)
            found["jobs"] = {
                member.decode(): unstamped(value) if value[0] < 32 else "0-0" if value == b"0-0" else self.name(value)
                for member, value in stored.items()
            }
        if "dead" in kinds:
            found["dead"] = [self._dead(fields) for _, fields in self.redis.xrange(self.keys.dead)]
        for number in ("epoch", "horizon", "shards"):
            if number in kinds:
                found[number] = int(self.redis.get(kinds[number]))  # type: ignore[arg-type]
        if "lease" in kinds:
            found["lease"] = self.redis.get(kinds["lease"]).decode()  # type: ignore[union-attr]
        found |= self._remains(kinds)
        orders = {kind: key for kind, key in kinds.items() if kind.startswith("order:")}
        if orders:
            found["order"] = {kind.removeprefix("order:"): self._order(key) for kind, key in orders.items()}
        assert set(kinds) - set(orders) <= KINDS, "an unknown key"
        return found

    def _order(self, key: bytes) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for field, value in self.redis.hgetall(key).items():
            if field[:1].isdigit():
                due_ms, _, record = value.partition(b" ")
                shown[self.name(field)] = (int(due_ms), record)
            elif not field.endswith(b"until"):
                shown[field.decode()] = value.decode()
        return shown

    def _dead(self, fields: dict[bytes, bytes]) -> dict[str, Any]:
        shown = _fields(fields)
        if shown.get("entry") not in (None, "", "0-0"):
            shown["entry"] = self.name(shown["entry"])
        return shown

    def _remains(self, kinds: dict[str, bytes]) -> dict[str, Any]:
        """What is kept of jobs that ended, and what their handlers and those who wait for them left behind."""
        read: dict[str, Callable[[bytes], Any]] = {
            "buried": lambda key: sorted(member.decode() for member in self.redis.hkeys(key)),
            "progress": lambda key: {member.decode(): note for member, note in self.redis.hgetall(key).items()},
            "done": lambda key: sorted(id.decode() for id in self.redis.hkeys(key)),
            "ended": lambda key: sorted(id.decode() for id in self.redis.zrange(key, 0, -1)),
            "retries": lambda key: sum(int(count) for count in self.redis.hvals(key)),
            "replays": lambda key: sorted(name.decode() for name in self.redis.hkeys(key)),
            "news": lambda key: [fields[b"ids"].decode() for _, fields in self.redis.xrange(key)],
        }
        return {kind: look(kinds[kind]) for kind, look in read.items() if kind in kinds}

    def _groups(self) -> dict[str, Any]:
        groups = {}
        for info in self.redis.xinfo_groups(self.keys.ready):
            group, last = info["name"].decode(), info["last-delivered-id"].decode()
            pending = self.send(command("XPENDING", self.keys.ready, group, "-", "+", 1000, read=list))
            groups[group] = {
                "read": None if last == "0-0" else self.name(last),
                "pending": {self.name(entry): (who.decode(), count) for entry, who, _, count in pending},
            }
        return groups


def _unstamped(reply: Any) -> Any:
    return [_unstamped(part) for part in reply] if isinstance(reply, list) else unstamped(reply)


def _fields(fields: dict[bytes, bytes]) -> dict[str, Any]:
    shown: dict[str, Any] = {name.decode(): value for name, value in fields.items()}
    for name, value in shown.items():
        if name in ("due", "attempt", "first_due"):
            shown[name] = int(value)
        else:
            shown[name] = unstamped(value) if name == "record" else value.decode()
    return shown


def entry(id: str, due: int, attempt: int = 1, record: bytes = RECORD, group: str | None = None) -> dict[str, Any]:
    """A ready entry, as a snapshot shows it."""
    shown = {"id": id, "due": due, "attempt": attempt, "record": record}
    return shown if group is None else shown | {"group": group}


class Ear:
    """Hears a channel, without waiting for what does not come."""

    def __init__(self, shard: Shard, channel: str | None = None) -> None:
        self._redis, self._channel = shard.redis, channel or shard.keys.near
        self._pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(self._channel)
        self.heard()

    def heard(self) -> list[bytes]:
        """What was said since the last time: all that comes before a word of our own."""
        word = secrets.token_hex(8).encode()
        while not self._redis.publish(self._channel, word):
            pass  # not subscribed yet
        messages = []
        while True:
            message = self._pubsub.get_message(timeout=5.0)
            if message is None:
                continue
            if message["data"] == word:
                return messages
            messages.append(message["data"])

    def close(self) -> None:
        self._pubsub.close()
