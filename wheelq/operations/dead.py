"""`Dead`: what can be done with the jobs that were given up, over all shards of a topic.

Pages. Dead jobs stand in the order of their burial over all shards, and a page is a part of that order. Each shard is
asked for as many as the page holds, and looks at a bounded number of entries; where a shard has not looked far enough,
the page ends, for what it has not looked at may come next:

    shard 0   ■ ■ ■ ■ ……            newest first: shard 1 has looked as far as │
    shard 1   ■   ■  │…             what the others have beyond is left for the next page
    page      ■ ■ ■ ■│              the cursor is the last place that is surely told
"""

from __future__ import annotations

from collections.abc import Sequence

from wheelq.dead import DeadFilter, DeadJob, DeadPage, Position, Replayed, ReplayOutcome, check_limit, check_rate
from wheelq.operations.operation import Operation, ask, ask_all
from wheelq.operations.topics import Topics
from wheelq.protocol.calls import dead as calls
from wheelq.protocol.calls.dead import Found, Span
from wheelq.protocol.keys import ShardKeys

ANY = DeadFilter()


class Dead:
    """The dead jobs of one server's topics. Everything raises TopicNotFound and InvalidInput."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def list(
        self, topic: str, where: DeadFilter, limit: int, cursor: str | None, newest_first: bool
    ) -> Operation[DeadPage]:
        """One page."""
        check_limit(limit)
        after = None if cursor is None else Position.parse(cursor, "cursor")
        shards = yield from self._topics.shards(topic)
        parts = yield from ask_all(
            calls.find(shard, where, rest(where, after, shard.shard, newest_first), limit, newest_first=newest_first)
            for shard in shards
        )
        return page(parts, limit, newest_first)

    def show(self, topic: str, dead_id: str) -> Operation[DeadJob | None]:
        """One dead job; None when it is not among the dead."""
        found = yield from self._find(topic, dead_id)
        return found[1][0] if found else None

    def replay_one(self, topic: str, dead_id: str) -> Operation[ReplayOutcome]:
        """Let one run again."""
        found = yield from self._find(topic, dead_id)
        if found is None:
            return ReplayOutcome.NOT_FOUND
        shard, job = found[0], found[1:]
        return (yield from ask(calls.replay(shard, job, 0, 0))).outcomes[0]

    def replay(
        self, topic: str, where: DeadFilter, all: bool, rate: float | None, limit: int | None
    ) -> Operation[Replayed]:
        """Let those that match run again, oldest first in each shard; what is buried meanwhile is left alone."""
        where.check_choice(all, "replay")
        spacing_ms, due_ms, left = check_rate(rate), 0.0, limit
        outcomes: list[ReplayOutcome] = []
        for shard in (yield from self._topics.shards(topic)):
            span: Span | None = Span.of(where)
            while span is not None and left != 0:
                most = calls.REPLAY_BATCH if left is None else min(left, calls.REPLAY_BATCH)
                found = yield from ask(calls.find(shard, where, span, most, newest_first=False))
                if found.jobs:
                    answer = yield from ask(calls.replay(shard, found.jobs, due_ms, spacing_ms))
                    due_ms = answer.next_due_ms
                    outcomes += answer.outcomes
                    left = None if left is None else left - answer.outcomes.count(ReplayOutcome.REPLAYED)
                span = _beyond(span, found.now_ms, found.looked_to)
        replayed = outcomes.count(ReplayOutcome.REPLAYED)
        return Replayed(replayed, len(outcomes) - replayed - outcomes.count(ReplayOutcome.NOT_FOUND))

    def purge_one(self, topic: str, dead_id: str) -> Operation[bool]:
        """Remove one; False when it is not among the dead."""
        shard, position = yield from self._place(topic, dead_id)
        if shard is None:
            return False
        return (yield from ask(calls.purge(shard, ANY, Span.one(position.entry_id)))).purged == 1

    def purge(self, topic: str, where: DeadFilter, all: bool) -> Operation[int]:
        """Remove those that match; how many. What is buried meanwhile is left alone."""
        where.check_choice(all, "purge")
        purged = 0
        for shard in (yield from self._topics.shards(topic)):
            span: Span | None = Span.of(where)
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
        found = yield from ask(calls.find(shard, ANY, Span.one(position.entry_id), 1, newest_first=False))
        return (shard, found.jobs[0]) if found.jobs else None


def rest(where: DeadFilter, after: Position | None, shard: int, newest_first: bool) -> Span:
    """What of a shard comes after a position in the order of all shards."""
    span = Span.of(where)
    if after is None:
        return span
    # Entries of one id stand in the order of their shards.
    is_later = shard < after.shard if newest_first else shard > after.shard
    edge = after.entry_id if is_later else f"({after.entry_id}"
    return span._replace(last=edge) if newest_first else span._replace(first=edge)


def page(parts: Sequence[Found], limit: int, newest_first: bool) -> DeadPage:
    """The first of what the shards have found, as far as all of them have looked."""
    found = [(Position.parse(job.dead_id), job) for part in parts for job, _ in part.jobs]
    found.sort(key=lambda item: item[0], reverse=newest_first)
    edges = [part.looked_to for part in parts if part.looked_to is not None]
    edge = (max(edges) if newest_first else min(edges)) if edges else None
    if edge is not None:
        found = [item for item in found if (item[0] >= edge if newest_first else item[0] <= edge)]
    cursor = found[limit - 1][0] if len(found) > limit else edge
    return DeadPage([job for _, job in found[:limit]], None if cursor is None else str(cursor))


def _beyond(span: Span, now_ms: int, looked_to: Position | None) -> Span | None:
    """What is left of a span, but nothing that comes after the first look at it: what is replayed may die again."""
    if looked_to is None:
        return None
    last = span.last if span.last != "+" and int(span.last) < now_ms else str(now_ms)
    return Span(f"({looked_to.entry_id}", last)
