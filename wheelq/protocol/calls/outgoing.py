"""Calls for followers: jobs that a settled delivery leaves in its shard's stream `outgoing`, for another shard.

    settle   `conclude`, `ack_leased` and `bury` add them in the step that settles the delivery
    claim    takes what was not carried within a second by the process that settled the delivery
    place    writes down the tag and the shard to which a follower is being sent, before it is
    remove   once the target has answered
    bury     puts it among the dead of its topic, if that did not take it

A carrier sends a follower with the tag and to the shard that stand in its entry, and nowhere else. So the target gives
a repeated call its first answer, also when the job has run and been forgotten. Two rules keep this true:

- After a claim an entry has another id. A carrier that finds its entry gone does nothing more with it, and has the tag
  forgotten only if it removed the entry itself, which nobody else had claimed.
- A tag is kept for `LIFE_MS`. An entry that was placed longer ago may have arrived, and been forgotten, so it is never
  sent again: it is buried, and a person decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from wheelq.model.job import OnDuplicate
from wheelq.protocol.call import Argument, Call, command, scripted
from wheelq.protocol.keys import ShardKeys
from wheelq.settings import TopicSettings

MOST_IN_A_CALL = 500
"""The most followers that one call settles with their deliveries."""
BYTES_IN_A_CALL = 1024 * 1024
"""The most bytes of their records."""
TURN_MS = 43_200_000
"""How long the answer to a follower's call is kept at least: half a day."""
LIFE_MS = TURN_MS - 3_600_000
"""How long a follower may be sent again: the rest is for a call that is on its way, and clocks that differ."""
LOOKED_AT = 100
"""How many entries one claim looks at."""
NOWHERE = -1
"""The shard of a follower that is not placed yet."""
FULL = b"full"
REPORTS = ":bundles"
"""In place of the topic: the entry is no follower, but what a shard reports of a bundle; see `calls.bundles`."""
OUTGOING = b"\x1foutgoing"
"""The end of a message on the `near` channel that says that something was left in `outgoing`."""


class Follower(NamedTuple):
    """A checked and packed job that follows another."""

    topic: str
    id: str
    due: str
    """As for `schedule`. A delay counts from the moment when the delivery is settled; from then on it is a time."""
    partition_key: str
    """"": it has none."""
    on_duplicate: OnDuplicate | str
    """"": its id was derived, so no other job can have it."""
    record: bytes
    tag: bytes
    shard: int = NOWHERE
    terms: str = ""

    @property
    def how(self) -> OnDuplicate:
        """What to do with a live job that has its id."""
        return "replace" if self.on_duplicate == "replace" else "keep"


class Outgoing(NamedTuple):
    """A follower in `outgoing`."""

    entry_id: str
    follower: Follower
    claims: int = 0
    """How often it was claimed."""
    refusals: int = 0
    """How often its target has refused it."""
    is_too_old: bool = False
    """Whether its tag may have expired: it must not be sent any more."""


class Claimed(NamedTuple):
    """The answer to `claim`."""

    now_ms: int
    """The server's time."""
    after: str
    """Where to look next; "": that was all."""
    next_ms: int | None
    """When to claim the next of these; None: none of them is left."""
    entries: list[Outgoing]


class Conclusion(NamedTuple):
    """What became of deliveries that were settled with their followers."""

    acknowledged: int
    """How many this consumer still held."""
    outgoing: list[Outgoing]
    """Their followers, and reports of their bundles."""
    held: frozenset[int] = frozenset()
    """The indexes of deliveries that are not settled yet, because `outgoing` has no room."""


def sent_on(follower: Follower) -> list[Argument]:
    """Returns the arguments for one follower, as `send_on` takes them."""
    return [*follower[:-2], "" if follower.shard == NOWHERE else follower.shard, follower.terms]


def packed(followers: Sequence[Sequence[Follower]]) -> list[Argument]:
    """Returns the arguments for the followers of deliveries, as settling scripts take them."""
    args: list[Argument] = []
    for number, some in enumerate(followers, 1):
        for one in some:
            args += (number, *sent_on(one))
    return args


def outgoing_of(followers: Sequence[Sequence[Follower]], answers: Sequence[bytes]) -> list[Outgoing]:
    """Returns the followers that were added, with their due times, by what a settling script returned for each."""
    found = []
    for one, answer in zip([one for some in followers for one in some], answers, strict=True):
        if answer not in (b"", FULL):
            entry_id, due = answer.decode().split(" ")
            found.append(Outgoing(entry_id, one._replace(due=due)))
    return found


def claimed(flat: Sequence[Any], now_ms: int = 0) -> list[Outgoing]:
    """Returns the entries of a script's answer: entry id, values, entry id, …"""
    return [_outgoing(entry_id, values, now_ms) for entry_id, values in zip(flat[::2], flat[1::2], strict=True)]


def claim(keys: ShardKeys, after: str, at_once: bool = False) -> Call[Claimed]:
    """Claim followers among the `LOOKED_AT` entries after an entry id; `at_once` also those that were left just now."""

    def read(reply: list[Any]) -> Claimed:
        now_ms, last, soonest, *rest = reply
        return Claimed(now_ms, last.decode(), int(soonest) if soonest else None, claimed(rest, now_ms))

    return scripted("claim_outgoing", (keys.outgoing,), (after, LOOKED_AT, int(at_once)), read)


def place(keys: ShardKeys, entries: Sequence[Outgoing]) -> Call[list[str]]:
    """Write down the places of followers. Returns their new entry ids; "" for one that is not there any more."""
    args: list[Argument] = []
    for one in entries:
        shard = one.follower.shard
        args += (one.entry_id, one.follower.tag, "" if shard == NOWHERE else shard, one.follower.terms, one.refusals)
    return scripted("place_outgoing", (keys.outgoing,), args, lambda reply: [entry.decode() for entry in reply])


def remove(keys: ShardKeys, entries: Sequence[Outgoing]) -> Call[int]:
    """Remove followers that have arrived. Returns how many were still there under these entry ids."""
    return command("XDEL", keys.outgoing, *(one.entry_id for one in entries), read=int, key=keys.outgoing)


def bury(keys: ShardKeys, follower: Follower, error: str, topic: TopicSettings) -> Call[str]:
    """Put a follower among the dead of its topic. Returns the dead entry, also if it is there already."""
    due_ms = follower.due.rstrip("hl")
    args = (follower.id, due_ms, error, follower.record, topic.dead_retention_ms, topic.dead_max, keys.near)
    wanted = (keys.dead, keys.buried, keys.counts, keys.bundles, keys.outgoing)
    return scripted("bury_follower", wanted, args, lambda reply: reply.decode())


def how_many(keys: ShardKeys) -> Call[int]:
    """How many followers are outgoing."""
    return command("XLEN", keys.outgoing, read=int, key=keys.outgoing)


def _outgoing(entry_id: bytes, values: Sequence[bytes], now_ms: int) -> Outgoing:
    topic, id, due, key, how, record, tag, shard, terms, placed, claims, refusals = values
    follower = Follower(
        topic.decode(),
        id.decode(),
        due.decode(),
        key.decode(),
        how.decode(),
        record,
        tag,
        int(shard) if shard else NOWHERE,
        terms.decode(),
    )
    is_too_old = bool(placed) and now_ms - int(placed) > LIFE_MS
    return Outgoing(entry_id.decode(), follower, int(claims), int(refusals), is_too_old)
