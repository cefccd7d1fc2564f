"""The commands of streams. A read that would block returns None; the server waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.simulation.store.commands import command, wants
from loadtest.simulation.store.database import OK, Database, Refusal, Words
from loadtest.simulation.store.stream import FIRST, LAST, Group, Id, Pending, Stream, id_text, parse_id

NODE = 100
"""Entries in one node of a real server, which an approximate trim removes only as a whole."""


def _id(text: bytes, missing_sequence: int = 0) -> Id:
    try:
        return parse_id(text, missing_sequence)
    except ValueError:
        raise Refusal("ERR Invalid stream ID specified as stream command argument") from None


def _bound(text: bytes, is_end: bool) -> Id:
    if text in (b"-", b"+"):
        return FIRST if text == b"-" else LAST
    if text[:1] != b"(":
        return _id(text, 2**64 - 1 if is_end else 0)
    ms, sequence = _id(text[1:], 2**64 - 1 if is_end else 0)
    if is_end:
        return (ms, sequence - 1) if sequence else (ms - 1, 2**64 - 1)
    return ms, sequence + 1


def _entries(stream: Stream, ids: Sequence[Id]) -> list[list[Any]]:
    return [[id_text(id), list(stream.entries[id])] for id in ids]


def _stream(db: Database, key: bytes) -> Stream:
    stream = db.get(key, Stream)
    if stream is None:
        raise Refusal("ERR no such key")
    return stream


def _group(db: Database, key: bytes, group: bytes) -> tuple[Stream, Group]:
    stream = db.get(key, Stream)
    found = stream.groups.get(group) if stream is not None else None
    if stream is None or found is None:
        raise Refusal(f"NOGROUP No such key '{key.decode()}' or consumer group '{group.decode()}'")
    return stream, found


@command("XADD", writes=True, needs_memory=True)
def xadd(db: Database, words: Words) -> bytes | None:
    key, n, most = words[1], 2, None
    while words[n].upper() in (b"NOMKSTREAM", b"MAXLEN"):
        if words[n].upper() == b"NOMKSTREAM":
            if not db.exists(key):
                return None
            n += 1
        else:
            n += 2 if words[n + 1] in (b"=", b"~") else 1
            most, n = int(words[n]), n + 1
    wants(len(words) - n > 2 and (len(words) - n) % 2 == 1, "ERR wrong number of arguments for 'xadd' command")
    stream: Stream = db.make(key, Stream)
    id = stream.next_id(db.now_ms) if words[n] == b"*" else _id(words[n])
    wants(id > stream.last, "ERR The ID specified in XADD is equal or smaller than the target stream top item")
    stream.add(id, tuple(words[n + 1 :]))
    if most is not None and len(stream) > most:
        stream.remove_first(len(stream) - most)
    db.touched.append(key)
    return id_text(id)


@command("XLEN")
def xlen(db: Database, words: Words) -> int:
    return len(db.get(words[1], Stream) or ())


@command("XRANGE")
def xrange(db: Database, words: Words) -> list[Any]:
    _, key, first, last, *rest = words
    stream = db.get(key, Stream)
    limit = int(rest[1]) if rest else -1
    return [] if stream is None else _entries(stream, stream.between(_bound(first, False), _bound(last, True), limit))


@command("XREVRANGE")
def xrevrange(db: Database, words: Words) -> list[Any]:
    _, key, last, first, *rest = words
    stream = db.get(key, Stream)
    if stream is None:
        return []
    found = stream.between(_bound(first, False), _bound(last, True))[::-1]
    return _entries(stream, found[: int(rest[1])] if rest else found)


@command("XDEL", writes=True)
def xdel(db: Database, words: Words) -> int:
    stream = db.get(words[1], Stream)
    return 0 if stream is None else sum(stream.remove(_id(id)) for id in words[2:])


@command("XTRIM", writes=True)
def xtrim(db: Database, words: Words) -> int:
    stream, how, rest = db.get(words[1], Stream), words[2].upper(), list(words[3:])
    is_near = rest[0] == b"~"
    if rest[0] in (b"~", b"="):
        rest.pop(0)
    if stream is None:
        return 0
    count = stream.before(_id(rest[0])) if how == b"MINID" else max(len(stream) - int(rest[0]), 0)
    if is_near:
        limit = int(rest[2]) if len(rest) > 2 else NODE * NODE
        count = min(count, limit) // NODE * NODE
    return stream.remove_first(count)


@command("XREAD")
def xread(db: Database, words: Words) -> list[Any] | None:
    count, names, ids = _what_to_read(words)
    found = []
    for key, after in zip(names, ids, strict=True):
        stream = db.get(key, Stream)
        if stream is None or after == b"$":
            continue
        if entries := _entries(stream, stream.after(_id(after), count)):
            found.append([key, entries])
    return found or None


@command("XREADGROUP", writes=True)
def xreadgroup(db: Database, words: Words) -> list[Any] | None:
    group, consumer = words[2], words[3]
    count, names, ids = _what_to_read(words[3:])
    no_ack = b"NOACK" in [word.upper() for word in words[4 : words.index(names[0])]]
    found = []
    for key, after in zip(names, ids, strict=True):
        stream, own = _group(db, key, group)
        seen = own.see(consumer, db.now_ms)
        if after != b">":
            held = [
                id for id in own.between(_id(after), LAST) if id > _id(after) and own.pending[id].consumer == consumer
            ]
            shown = held if count < 0 else held[:count]
            found.append(
                [key, [[id_text(id), list(stream.entries[id]) if id in stream.entries else None] for id in shown]]
            )
            continue
        new = stream.after(own.last, count)
        if not new:
            continue
        seen[1] = db.now_ms
        own.last = new[-1]
        if not no_ack:
            for id in new:
                own.deliver(id, Pending(consumer, db.now_ms, 1))
        found.append([key, _entries(stream, new)])
    return found or None


def _what_to_read(words: Words) -> tuple[int, Sequence[bytes], Sequence[bytes]]:
    options = [word.upper() for word in words]
    at = options.index(b"STREAMS")
    count = int(words[options.index(b"COUNT", 0, at) + 1]) if b"COUNT" in options[:at] else -1
    rest = words[at + 1 :]
    wants(len(rest) % 2 == 0, "ERR Unbalanced list of streams: for each stream key an ID or '$' must be specified.")
    return count, rest[: len(rest) // 2], rest[len(rest) // 2 :]


def blocks_ms(words: Words) -> int | None:
    """Returns how long a read may wait; None if it does not block."""
    options = [word.upper() for word in words]
    if b"STREAMS" in options and b"BLOCK" in options[: options.index(b"STREAMS")]:
        return int(words[options.index(b"BLOCK") + 1])
    return None


def streams_read(words: Words) -> Sequence[bytes]:
    """Returns the streams of a read."""
    return _what_to_read(words)[1]


# --- groups --------------------------------------------------------------------------------------------------------


@command("XGROUP CREATE", writes=True, needs_memory=True)
def xgroup_create(db: Database, words: Words) -> bytes:
    _, _, key, group, start, *options = words
    stream = db.get(key, Stream)
    if stream is None:
        wants(
            b"MKSTREAM" in [option.upper() for option in options],
            "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
            "MKSTREAM option to create an empty stream automatically.",
        )
        stream = db.make(key, Stream)
    wants(group not in stream.groups, "BUSYGROUP Consumer Group name already exists")
    stream.groups[group] = Group(stream.last if start == b"$" else _id(start))
    return OK


@command("XGROUP DESTROY", writes=True)
def xgroup_destroy(db: Database, words: Words) -> int:
    stream = db.get(words[2], Stream)
    if stream is None or stream.groups.pop(words[3], None) is None:
        return 0
    db.touched.append(words[2])
    return 1


@command("XGROUP SETID", writes=True)
def xgroup_setid(db: Database, words: Words) -> bytes:
    stream, group = _group(db, words[2], words[3])
    group.last = stream.last if words[4] == b"$" else _id(words[4])
    return OK


@command("XGROUP CREATECONSUMER", writes=True, needs_memory=True)
def xgroup_createconsumer(db: Database, words: Words) -> int:
    _, group = _group(db, words[2], words[3])
    is_new = words[4] not in group.consumers
    group.see(words[4], db.now_ms)
    return int(is_new)


@command("XGROUP DELCONSUMER", writes=True)
def xgroup_delconsumer(db: Database, words: Words) -> int:
    _, group = _group(db, words[2], words[3])
    if group.consumers.pop(words[4], None) is None:
        return 0
    held = [id for id in group.order if group.pending[id].consumer == words[4]]
    for id in held:
        group.settle(id)
    return len(held)


@command("XINFO GROUPS")
def xinfo_groups(db: Database, words: Words) -> list[Any]:
    stream = _stream(db, words[2])
    rows = []
    for name, group in sorted(stream.groups.items()):
        lag = len(stream.after(group.last))
        fields = (b"name", name, b"consumers", len(group.consumers), b"pending", len(group.pending))
        rows.append([*fields, b"last-delivered-id", id_text(group.last), b"entries-read", None, b"lag", lag])
    return rows


@command("XINFO CONSUMERS")
def xinfo_consumers(db: Database, words: Words) -> list[Any]:
    _, group = _group(db, words[2], words[3])
    rows = []
    for name, (seen_ms, active_ms) in sorted(group.consumers.items()):
        pending = sum(one.consumer == name for one in group.pending.values())
        idle, inactive = max(db.now_ms - seen_ms, 0), -1 if active_ms < 0 else max(db.now_ms - active_ms, 0)
        rows.append([b"name", name, b"pending", pending, b"idle", idle, b"inactive", inactive])
    return rows


@command("XINFO STREAM")
def xinfo_stream(db: Database, words: Words) -> list[Any]:
    stream = _stream(db, words[2])
    return [b"length", len(stream), b"last-generated-id", id_text(stream.last), b"groups", len(stream.groups)]
