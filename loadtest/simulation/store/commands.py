"""The registry of commands, and the commands of keys, strings, sets and hashes."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any
from zlib import crc32

from loadtest.simulation.store.database import OK, Command, Database, Refusal, Status, Words

COMMANDS: dict[bytes, Command] = {}
"""Every command by name; XINFO and others have a name of two words."""

Run = Callable[[Database, Words], Any]


def command(name: str, *, writes: bool = False, needs_memory: bool = False) -> Callable[[Run], Run]:
    """Register a command."""

    def register(run: Run) -> Run:
        COMMANDS[name.encode()] = Command(name.encode(), run, writes, needs_memory)
        return run

    return register


def wants(condition: bool, problem: str) -> None:
    """Raises: Refusal, unless the condition holds."""
    if not condition:
        raise Refusal(problem)


@command("TIME")
def time(db: Database, words: Words) -> list[bytes]:
    return [b"%d" % (db.now_us // 1_000_000), b"%d" % (db.now_us % 1_000_000)]


@command("PING")
def ping(db: Database, words: Words) -> bytes:
    return words[1] if len(words) > 1 else Status(b"PONG")


@command("PUBLISH")
def publish(db: Database, words: Words) -> int:
    db.published.append((words[1], words[2]))
    return db.listeners(words[1])


# --- keys ----------------------------------------------------------------------------------------------------------


@command("EXISTS")
def exists(db: Database, words: Words) -> int:
    return sum(db.exists(key) for key in words[1:])


@command("DEL", writes=True)
def delete(db: Database, words: Words) -> int:
    return sum(db.remove(key) for key in words[1:])


COMMANDS[b"UNLINK"] = Command(b"UNLINK", delete, True, False)


@command("TYPE")
def type_of(db: Database, words: Words) -> Status:
    names = {"bytes": b"string", "dict": b"hash", "set": b"set", "SortedSet": b"zset", "Stream": b"stream"}
    return Status(names[type(db.values[words[1]]).__name__] if db.exists(words[1]) else b"none")


@command("KEYS")
def keys(db: Database, words: Words) -> list[bytes]:
    start, star, rest = words[1].partition(b"*")
    wants(bool(star) and b"*" not in rest and b"?" not in words[1], "ERR the simulated KEYS knows one * only")
    return [key for key in db.all_keys() if key.startswith(start) and key.endswith(rest)]


@command("PEXPIRE", writes=True)
def pexpire(db: Database, words: Words) -> int:
    if not db.exists(words[1]):
        return 0
    db.expires_ms[words[1]] = db.now_ms + int(words[2])
    return 1


@command("PERSIST", writes=True)
def persist(db: Database, words: Words) -> int:
    return int(db.exists(words[1]) and db.expires_ms.pop(words[1], None) is not None)


@command("PTTL")
def pttl(db: Database, words: Words) -> int:
    if not db.exists(words[1]):
        return -2
    return db.expires_ms[words[1]] - db.now_ms if words[1] in db.expires_ms else -1


# --- strings and sets ----------------------------------------------------------------------------------------------


@command("GET")
def get(db: Database, words: Words) -> bytes | None:
    found: bytes | None = db.get(words[1], bytes)
    return found


@command("SET", writes=True, needs_memory=True)
def set_(db: Database, words: Words) -> Status | None:
    _, key, value, *options = words
    ttl_ms, names = None, [option.upper() for option in options]
    if b"PX" in names:
        ttl_ms = int(options[names.index(b"PX") + 1])
    if b"NX" in names and db.exists(key):
        return None
    db.values[key] = bytes(value)
    db.expires_ms.pop(key, None)
    if ttl_ms is not None:
        db.expires_ms[key] = db.now_ms + ttl_ms
    return OK


@command("SADD", writes=True, needs_memory=True)
def sadd(db: Database, words: Words) -> int:
    found = db.make(words[1], set)
    before = len(found)
    found.update(words[2:])
    return len(found) - before


@command("SREM", writes=True)
def srem(db: Database, words: Words) -> int:
    found = db.get(words[1], set)
    if found is None:
        return 0
    before = len(found)
    found.difference_update(words[2:])
    removed = before - len(found)
    db.remove_if_empty(words[1], found)
    return removed


@command("SMEMBERS")
def smembers(db: Database, words: Words) -> list[bytes]:
    return sorted(db.get(words[1], set) or ())


# --- hashes --------------------------------------------------------------------------------------------------------


@command("HGET")
def hget(db: Database, words: Words) -> bytes | None:
    found = db.get(words[1], dict)
    return found.get(words[2]) if found else None


@command("HMGET")
def hmget(db: Database, words: Words) -> list[bytes | None]:
    found = db.get(words[1], dict) or {}
    return [found.get(field) for field in words[2:]]


@command("HGETALL")
def hgetall(db: Database, words: Words) -> list[bytes]:
    return [one for pair in (db.get(words[1], dict) or {}).items() for one in pair]


@command("HSCAN")
def hscan(db: Database, words: Words) -> list[Any]:
    """A large hash comes page by page in the order of checksums, so that no page misses a field that stays."""
    options = dict(zip(words[3::2], words[4::2], strict=True))
    most, wanted = int(options.get(b"COUNT", b"10")), options.get(b"MATCH", b"*").replace(b"[^", b"[!")
    pairs, ends = list((db.get(words[1], dict) or {}).items()), 0
    if len(pairs) > most or words[2] != b"0":
        pairs.sort(key=lambda pair: crc32(pair[0]))
        pairs = [pair for pair in pairs if crc32(pair[0]) >= int(words[2])]
        ends = next((crc32(field) for field, _ in pairs[most:] if crc32(field) != crc32(pairs[most - 1][0])), 0)
        pairs = [pair for pair in pairs if not ends or crc32(pair[0]) < ends]
    return [b"%d" % ends, [one for pair in pairs if fnmatchcase(pair[0], wanted) for one in pair]]


@command("HKEYS")
def hkeys(db: Database, words: Words) -> list[bytes]:
    return list(db.get(words[1], dict) or ())


@command("HLEN")
def hlen(db: Database, words: Words) -> int:
    return len(db.get(words[1], dict) or ())


@command("HEXISTS")
def hexists(db: Database, words: Words) -> int:
    return int(words[2] in (db.get(words[1], dict) or ()))


@command("HSTRLEN")
def hstrlen(db: Database, words: Words) -> int:
    return len((db.get(words[1], dict) or {}).get(words[2], b""))


@command("HSET", writes=True, needs_memory=True)
def hset(db: Database, words: Words) -> int:
    wants(len(words) >= 4 and len(words) % 2 == 0, "ERR wrong number of arguments for 'hset' command")
    found = db.make(words[1], dict)
    before = len(found)
    for n in range(2, len(words), 2):
        found[words[n]] = words[n + 1]
    return len(found) - before


@command("HSETNX", writes=True, needs_memory=True)
def hsetnx(db: Database, words: Words) -> int:
    found = db.make(words[1], dict)
    if words[2] in found:
        return 0
    found[words[2]] = words[3]
    return 1


@command("HDEL", writes=True)
def hdel(db: Database, words: Words) -> int:
    found = db.get(words[1], dict)
    if found is None:
        return 0
    removed = sum(found.pop(field, None) is not None for field in words[2:])
    db.remove_if_empty(words[1], found)
    return removed


@command("HINCRBY", writes=True, needs_memory=True)
def hincrby(db: Database, words: Words) -> int:
    found = db.make(words[1], dict)
    value = int(found.get(words[2], b"0")) + int(words[3])
    found[words[2]] = b"%d" % value
    return value


@command("INCRBY", writes=True, needs_memory=True)
def incrby(db: Database, words: Words) -> int:
    value = int(db.get(words[1], bytes) or b"0") + int(words[2])
    db.values[words[1]] = b"%d" % value
    return value
