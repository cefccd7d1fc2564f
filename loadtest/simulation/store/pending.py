"""The commands of pending entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from loadtest.simulation.store.commands import command
from loadtest.simulation.store.database import Database, Words
from loadtest.simulation.store.stream import Group, Id, Pending, Stream, id_text
from loadtest.simulation.store.streams import _bound, _group, _id


@command("XACK", writes=True)
def xack(db: Database, words: Words) -> int:
    stream = db.get(words[1], Stream)
    group = stream.groups.get(words[2]) if stream is not None else None
    return 0 if group is None else sum(group.settle(_id(id)) for id in words[3:])


@command("XPENDING")
def xpending(db: Database, words: Words) -> list[Any]:
    _, group = _group(db, words[1], words[2])
    if len(words) == 3:
        if not group.order:
            return [0, None, None, None]
        holders = Counter(one.consumer for one in group.pending.values())
        counts = [[name, b"%d" % count] for name, count in sorted(holders.items())]
        return [len(group.order), id_text(group.order[0]), id_text(group.order[-1]), counts]
    rest, least_idle = list(words[3:]), 0
    if rest[0].upper() == b"IDLE":
        least_idle, rest = int(rest[1]), rest[2:]
    first, last, count, *consumer = rest
    found: list[Any] = []
    for id in group.between(_bound(first, False), _bound(last, True)):
        one = group.pending[id]
        idle = max(db.now_ms - one.delivered_ms, 0)
        if len(found) < int(count) and idle >= least_idle and (not consumer or one.consumer == consumer[0]):
            found.append([id_text(id), one.consumer, idle, one.deliveries])
    return found


@command("XCLAIM", writes=True)
def xclaim(db: Database, words: Words) -> list[Any]:
    _, key, name, consumer, least_idle, *rest = words
    stream, group = _group(db, key, name)
    ids, options = _ids_and_options(rest)
    group.see(consumer, db.now_ms)
    delivered_ms = db.now_ms - int(options.get(b"IDLE", b"0"))
    if b"TIME" in options:
        delivered_ms = int(options[b"TIME"])
    delivered_ms = db.now_ms if not 0 <= delivered_ms <= db.now_ms else delivered_ms
    claimed = []
    for id in ids:
        one = group.pending.get(id)
        if id not in stream.entries:
            group.settle(id)
            continue
        if one is None:
            if b"FORCE" not in options:
                continue
            one = Pending(consumer, db.now_ms, 0)
            group.deliver(id, one)
        if int(least_idle) and db.now_ms - one.delivered_ms < int(least_idle):
            continue
        _claim(group, id, consumer, delivered_ms, b"JUSTID" in options)
        if b"RETRYCOUNT" in options:
            one.deliveries = int(options[b"RETRYCOUNT"])
        claimed.append(id)
    return _entries(stream, claimed, b"JUSTID" in options)


@command("XAUTOCLAIM", writes=True)
def xautoclaim(db: Database, words: Words) -> list[Any]:
    _, key, name, consumer, least_idle, start, *rest = words
    stream, group = _group(db, key, name)
    options = [one.upper() for one in rest]
    count = int(rest[options.index(b"COUNT") + 1]) if b"COUNT" in options else 100
    group.see(consumer, db.now_ms)
    claimed: list[Id] = []
    deleted: list[Id] = []
    attempts, cursor = count * 10, b"0-0"
    for id in list(group.between(_bound(start, False), (2**64 - 1, 2**64 - 1))):
        if attempts == 0 or len(claimed) + len(deleted) >= count:
            cursor = id_text(id)
            break
        attempts -= 1
        if id not in stream.entries:
            group.settle(id)
            deleted.append(id)
        elif db.now_ms - group.pending[id].delivered_ms >= int(least_idle):
            _claim(group, id, consumer, db.now_ms, b"JUSTID" in options)
            claimed.append(id)
    return [cursor, _entries(stream, claimed, b"JUSTID" in options), [id_text(id) for id in deleted]]


def _claim(group: Group, id: Id, consumer: bytes, delivered_ms: int, only_id: bool) -> None:
    one = group.pending[id]
    one.consumer, one.delivered_ms = consumer, delivered_ms
    one.deliveries += not only_id


def _entries(stream: Stream, ids: Sequence[Id], only_ids: bool) -> list[Any]:
    return [id_text(id) if only_ids else [id_text(id), list(stream.entries[id])] for id in ids]


def _ids_and_options(words: Words) -> tuple[list[Id], dict[bytes, bytes]]:
    ids: list[Id] = []
    options: dict[bytes, bytes] = {}
    n = 0
    while n < len(words):
        name = words[n].upper()
        if name in (b"JUSTID", b"FORCE"):
            options[name] = b""
        elif name in (b"IDLE", b"TIME", b"RETRYCOUNT", b"LASTID"):
            n += 1
            options[name] = words[n]
        else:
            ids.append(_id(words[n]))
        n += 1
    return ids, options
