"""The commands of sorted sets."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from loadtest.simulation.store.commands import command, wants
from loadtest.simulation.store.database import Database, Refusal, Words
from loadtest.simulation.store.sorted_set import SortedSet


def score_text(score: float) -> bytes:
    """Returns a score as Redis writes a double."""
    if score in (float("inf"), float("-inf")):
        return b"inf" if score > 0 else b"-inf"
    return b"%d" % score if score == int(score) and abs(score) < 1e17 else repr(score).encode()


def _score(text: bytes) -> float:
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if score != score:
        raise Refusal("ERR value is not a valid float")
    return score


def _told(found: Iterable[tuple[float, bytes]], with_scores: bool) -> list[bytes]:
    if not with_scores:
        return [member for _, member in found]
    return [one for score, member in found for one in (member, score_text(score))]


@command("ZADD", writes=True, needs_memory=True)
def zadd(db: Database, words: Words) -> int:
    n, options = 2, set()
    while words[n].upper() in (b"NX", b"XX", b"GT", b"LT", b"CH"):
        options.add(words[n].upper())
        n += 1
    pairs = [(_score(words[at]), words[at + 1]) for at in range(n, len(words), 2)]
    found: SortedSet = db.make(words[1], SortedSet)
    added = 0
    for score, member in pairs:
        before = found.scores.get(member)
        if (b"NX" in options and before is not None) or (b"XX" in options and before is None):
            continue
        if before is not None and ((b"GT" in options and score <= before) or (b"LT" in options and score >= before)):
            continue
        added += found.put(member, score)
    db.remove_if_empty(words[1], found)
    return added


@command("ZREM", writes=True)
def zrem(db: Database, words: Words) -> int:
    found = db.get(words[1], SortedSet)
    if found is None:
        return 0
    removed = sum(found.remove(member) for member in words[2:])
    db.remove_if_empty(words[1], found)
    return removed


@command("ZCARD")
def zcard(db: Database, words: Words) -> int:
    return len(db.get(words[1], SortedSet) or ())


@command("ZSCORE")
def zscore(db: Database, words: Words) -> bytes | None:
    found = db.get(words[1], SortedSet)
    score = found.scores.get(words[2]) if found else None
    return None if score is None else score_text(score)


@command("ZMSCORE")
def zmscore(db: Database, words: Words) -> list[bytes | None]:
    scores = found.scores if (found := db.get(words[1], SortedSet)) else {}
    return [score_text(scores[member]) if member in scores else None for member in words[2:]]


@command("ZCOUNT")
def zcount(db: Database, words: Words) -> int:
    found = db.get(words[1], SortedSet)
    return found.count(words[2], words[3]) if found else 0


@command("ZRANK")
def zrank(db: Database, words: Words) -> int | None:
    found = db.get(words[1], SortedSet)
    if not found or words[2] not in found.scores:
        return None
    rank: int = found.order.index((found.scores[words[2]], words[2]))
    return rank


@command("ZRANGE")
def zrange(db: Database, words: Words) -> list[bytes]:
    _, key, first, last, *rest = words
    options = [one.upper() for one in rest]
    wants(set(options) <= {b"WITHSCORES"}, "ERR the simulated ZRANGE goes by rank only")
    order = found.order if (found := db.get(key, SortedSet)) else []
    start, end = (max(n + len(order), 0) if n < 0 else n for n in (int(first), int(last)))
    if int(last) < 0 and int(last) + len(order) < 0:
        return []
    return _told(order[start : end + 1], b"WITHSCORES" in options)


@command("ZRANGEBYSCORE")
def zrangebyscore(db: Database, words: Words) -> list[bytes]:
    _, key, low, high, *rest = words
    options: list[Any] = [one.upper() for one in rest]
    found = db.get(key, SortedSet)
    if found is None:
        return []
    members = found.between(low, high)
    if b"LIMIT" in options:
        at = options.index(b"LIMIT")
        skip, count = int(rest[at + 1]), int(rest[at + 2])
        members = islice(members, skip, None if count < 0 else skip + count)
    return _told(members, b"WITHSCORES" in options)


@command("ZRANGEBYLEX")
def zrangebylex(db: Database, words: Words) -> list[bytes]:
    _, key, low, high, *rest = words
    wants(rest[:1] == [b"LIMIT"], "ERR the simulated ZRANGEBYLEX needs a limit")
    found, (skip, count) = db.get(key, SortedSet), (int(one) for one in rest[1:])
    return found.named(low, high)[skip : skip + count] if found else []


@command("ZLEXCOUNT")
def zlexcount(db: Database, words: Words) -> int:
    found = db.get(words[1], SortedSet)
    return len(found.named(words[2], words[3])) if found else 0


@command("ZREMRANGEBYSCORE", writes=True)
def zremrangebyscore(db: Database, words: Words) -> int:
    found = db.get(words[1], SortedSet)
    if found is None:
        return 0
    gone = [member for _, member in found.between(words[2], words[3])]
    for member in gone:
        found.remove(member)
    db.remove_if_empty(words[1], found)
    return len(gone)
