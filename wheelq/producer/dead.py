"""`Dead`: operations on dead jobs, over all shards of a topic.

Pages list dead jobs in the order of their burial over all shards. Each shard is asked for as many jobs as the page
holds, and looks at a bounded number of entries. The page ends where a shard stopped looking, because its next entry may
come next in the order:

    shard 0   ■ ■ ■ ■ ……            newest first: shard 1 has looked as far as │
    shard 1   ■   ■  │…             later jobs of other shards are left for the next page
    page      ■ ■ ■ ■│              the cursor is the last place that is surely complete
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from wheelq.model.checks import check_flag, check_limit, check_most
from wheelq.model.dead import DeadFilter, DeadJob, DeadPage, Position, Replayed, ReplayOutcome, check_rate
from wheelq.producer.operation import Operation, ask, ask_all
from wheelq.producer.topics import Topics
from wheelq.protocol import codec
from wheelq.protocol.calls import dead as calls
from wheelq.protocol.calls import draining
from wheelq.protocol.calls.dead import DeadRange, DeadSummary, FoundDead
from wheelq.protocol.calls.state import Score
from wheelq.protocol.keys import ShardKeys

P = TypeVar("P", Score, Position)
J = TypeVar("J")

ANY = DeadFilter()
Summaries = list[DeadSummary]  # in the class below, `list` is an operation


class Dead:
    """The dead jobs of one server's topics. All methods raise TopicNotFound and InvalidInput."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def list(
        self, topic: str, where: DeadFilter, limit: int, cursor: str | None, newest_first: bool
    ) -> Operation[DeadPage]:
        """One page."""
        check_limit(limit)
        check_flag(newest_first, "newest_first")
        after = None if cursor is None else Position.parse(cursor, "cursor")
        shards = yield from self._topics.shards(topic)
        parts = yield from ask_all(
            calls.find(shard, where, rest(where, after, shard.shard, newest_first), limit, newest_first=newest_first)
            for shard in shards
        )
        return page(parts, limit, newest_first)

    def newest(self, topic: str, most: int) -> Operation[Summaries]:
        """The newest dead jobs of all shards, without their payloads; each shard is read in bounded parts."""
        found: Summaries = []
        unread: dict[ShardKeys, str | None] = dict.fromkeys((yield from self._topics.shards(topic)))
        while unread:
            parts = yield from ask_all(calls.newest(shard, before) for shard, before in unread.items())
            for shard, part in zip(list(unread), parts, strict=True):
                found += part
                if len(part) < calls.LOOKED_AT:
                    del unread[shard]
                else:
                    unread[shard] = Position.parse(part[-1].dead_id).entry_id
            found.sort(key=lambda job: Position.parse(job.dead_id), reverse=True)
            if len(found) >= most:  # a shard may still hold jobs that are newer than the last of these
                last = Position.parse(found[most - 1].dead_id)
                unread = {s: at for s, at in unread.items() if at and Position.of(at, s.shard) > last}
        return found[:most]

    def show(self, topic: str, dead_id: str) -> Operation[DeadJob | None]:
        """Returns one dead job; None if it is not among the dead."""
        found = yield from self._find(topic, dead_id)
        return found[1][0] if found else None

    def replay_one(self, topic: str, dead_id: str) -> Operation[ReplayOutcome]:
        """Replay one dead job."""
        found = yield from self._find(topic, dead_id)
        if found is None:
            return ReplayOutcome.NOT_FOUND
        shard, job = found[0], found[1:]
        if (yield from self._alive_elsewhere(topic, shard, job)):
            return ReplayOutcome.ALIVE
        return (yield from ask(calls.replay(shard, job, 0, 0))).outcomes[0]

    def _alive_elsewhere(
        self, topic: str, shard: ShardKeys, jobs: Sequence[tuple[DeadJob, bytes]]
    ) -> Operation[set[str]]:
        """Returns the ids of those that are alive in another shard, after a change of the number of shards."""
        found = yield from self._topics.read_existing(topic)
        asked = [
            (job.id, place)
            for job, record in jobs
            for place in found.places(_partition_key(record) or job.id)
            if place != shard.shard
        ]
        answers = yield from ask_all(draining.is_alive(self._topics.shard(topic, place), id) for id, place in asked)
        return {id for (id, _), is_there in zip(asked, answers, strict=True) if is_there}

    def replay(
        self, topic: str, where: DeadFilter, all: bool, rate: float | None, limit: int | None
    ) -> Operation[Replayed]:
        """Replay the matching jobs, oldest first in each shard, except jobs that are buried meanwhile."""
        where.check_choice(all, "replay")
        check_most(limit, "limit")
        spacing_ms = check_rate(rate)
        due_ms, left = 0.0, limit
        outcomes: list[ReplayOutcome] = []
        for shard in (yield from self._topics.shards(topic)):
            span: DeadRange | None = DeadRange.of(where)
            while span is not None and left != 0:
                most = calls.REPLAY_BATCH if left is None else min(left, calls.REPLAY_BATCH)
                found = yield from ask(calls.find(shard, where, span, most, newest_first=False))
                alive = yield from self._alive_elsewhere(topic, shard, found.jobs)
                outcomes += [ReplayOutcome.ALIVE for job, _ in found.jobs if job.id in alive]
                if jobs := [one for one in found.jobs if one[0].id not in alive]:
                    answer = yield from ask(calls.replay(shard, jobs, due_ms, spacing_ms))
                    due_ms = answer.next_due_ms
                    outcomes += answer.outcomes
                    left = None if left is None else left - answer.outcomes.count(ReplayOutcome.REPLAYED)
                span = _beyond(span, found.now_ms, found.looked_to)
        replayed = outcomes.count(ReplayOutcome.REPLAYED)
        return Replayed(replayed, len(outcomes) - replayed - outcomes.count(ReplayOutcome.NOT_FOUND))

    def purge_one(self, topic: str, dead_id: str) -> Operation[bool]:
        """Remove one dead job; False if it is not among the dead."""
        shard, position = yield from self._place(topic, dead_id)
        if shard is None:
            return False
        return (yield from ask(calls.purge(shard, ANY, DeadRange.one(position.entry_id)))).purged == 1

    def purge(self, topic: str, where: DeadFilter, all: bool) -> Operation[int]:
        """Remove the matching jobs, except jobs that are buried meanwhile. Returns how many."""
        where.check_choice(all, "purge")
        purged = 0
        for shard in (yield from self._topics.shards(topic)):
            span: DeadRange | None = DeadRange.of(where)
            while span is not None:
                answer = yield from ask(calls.purge(shard, where, span))
                purged += answer.purged
                span = _beyond(span, answer.now_ms, answer.looked_to)
        return purged

    def _place(self, topic: str, dead_id: str) -> Operation[tuple[ShardKeys | None, Position]]:
        position = Position.parse(dead_id)
        shards = yield from self._topics.shards(topic)
        return shards[position.shard] if position.shard < len(shards) else None, position

    def _find(self, topic: str, dead_id: str) -> Operation[tuple[ShardKeys, tuple[DeadJob, bytes]] | None]:
        shard, position = yield from self._place(topic, dead_id)
        if shard is None:
            return None
        found = yield from ask(calls.find(shard, ANY, DeadRange.one(position.entry_id), 1, newest_first=False))
        return (shard, found.jobs[0]) if found.jobs else None


def _partition_key(record: bytes) -> str | None:
    try:
        return codec.parts_of(record).partition_key
    except codec.UnreadableRecord:
        return None


def rest(where: DeadFilter, after: Position | None, shard: int, newest_first: bool) -> DeadRange:
    """Returns the range of a shard's entries after a position in the order of all shards."""
    span = DeadRange.of(where)
    if after is None:
        return span
    # Entries with the same id are ordered by shard.
    is_later = shard < after.shard if newest_first else shard > after.shard
    edge = after.entry_id if is_later else f"({after.entry_id}"
    return span._replace(last=edge) if newest_first else span._replace(first=edge)


def page(parts: Sequence[FoundDead], limit: int, newest_first: bool) -> DeadPage:
    """Returns the first jobs found, up to where all shards have looked."""
    jobs = [[(Position.parse(job.dead_id), job) for job, _ in part.jobs] for part in parts]
    found, edge = merged(jobs, [part.looked_to for part in parts], newest_first=newest_first)
    cursor = found[limit - 1][0] if len(found) > limit else edge
    return DeadPage([job for _, job in found[:limit]], None if cursor is None else str(cursor))


def merged(
    jobs: Sequence[Sequence[tuple[P, J]]], looked_to: Sequence[P | None], *, newest_first: bool
) -> tuple[list[tuple[P, J]], P | None]:
    """Returns the jobs of all shards with their places, in order, up to where all shards have looked."""
    first: Callable[..., P] = max if newest_first else min
    edges = [place for place in looked_to if place is not None]
    edge = first(edges) if edges else None
    found = [item for part in jobs for item in part]
    if edge is not None:
        found = [item for item in found if (item[0] >= edge if newest_first else item[0] <= edge)]
    found.sort(key=lambda item: item[0], reverse=newest_first)
    return found, edge


def _beyond(span: DeadRange, now_ms: int, looked_to: Position | None) -> DeadRange | None:
    """Returns the rest of a span, without entries newer than the first look: replayed jobs may die again."""
    if looked_to is None:
        return None
    last = span.last if span.last != "+" and int(span.last) < now_ms else str(now_ms)
    return DeadRange(f"({looked_to.entry_id}", last)
