"""Pages of a topic's jobs over all its shards: `Listing`, by state, or of those that wait, in order of due time.

Each shard is asked for its next jobs, and looks at a bounded number. A page ends where a shard stopped looking, because
that shard's next job may come next in the order. So no call takes long, and no job is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from wheelq.errors import InvalidInput
from wheelq.model.checks import check_id, check_limit, moment_ms
from wheelq.model.dead import DeadFilter, DeadJob, Position
from wheelq.model.job import WaitingJob, WaitingPage
from wheelq.model.state import JobPage, JobState, ListedJob
from wheelq.producer import dead as dead_jobs
from wheelq.producer.operation import Operation, ask_all
from wheelq.producer.topics import Topics
from wheelq.protocol.calls import dead as dead_calls
from wheelq.protocol.calls import producer
from wheelq.protocol.calls import state as calls
from wheelq.protocol.calls.bulk import DueRange
from wheelq.protocol.calls.producer import HALF_MS
from wheelq.protocol.calls.state import Score
from wheelq.protocol.keys import ShardKeys, raw_member
from wheelq.protocol.scores import unheld

CURSOR_PATTERN = r"-?[0-9]{1,14}\.[0-9]{2}~(?:[0-9a-f]{2}){1,600}|[1-9][0-9]{0,12}-[0-9]{1,10}:[0-9]{1,4}"
WITH_ERRORS = (JobState.RETRYING, JobState.DEAD)
"""Jobs in these states may be filtered by their error."""
ROUNDS = 10
"""How often one page of jobs with a prefix looks: at 5,000 jobs in each shard, in calls of about a millisecond."""
_END = 1e15
"""A score above all possible ones."""
_PLACE = re.compile(r"(-?[0-9]{1,14}\.[0-9]{2})~((?:[0-9a-f]{2}){1,600})")


class Listing:
    """Pages of jobs. All methods raise TopicNotFound and InvalidInput."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def page(
        self,
        topic: str,
        state: JobState | str,
        since: datetime | None,
        until: datetime | None,
        error: str | None,
        prefix: str | None,
        limit: int,
        cursor: str | None,
    ) -> Operation[JobPage]:
        """Returns one page; `error` selects jobs whose last error contains it, `prefix` those whose id begins with it.

        To find enough, it looks up to `ROUNDS` times at the next jobs of every shard.
        """
        check_limit(limit)
        state = _state(state)
        if prefix is not None:
            check_id(prefix, "prefix")
        if error is not None and state not in WITH_ERRORS:
            raise InvalidInput("error", f"selects retrying and dead jobs only, not {state} ones")
        where = DeadFilter(since_ms=moment_ms(since, "since"), until_ms=moment_ms(until, "until"))
        shards = yield from self._topics.shards(topic)
        jobs: list[ListedJob] = []
        for _ in range(ROUNDS if prefix else 1):
            match state:
                case JobState.WAITING | JobState.RETRYING:
                    found = yield from _due(shards, state, where, cursor)
                case JobState.DONE:
                    found = yield from _done(shards, where, cursor)
                case JobState.READY | JobState.RUNNING:
                    found = yield from _in_stream(shards, state, where, cursor)
                case JobState.DEAD:
                    found = yield from _dead(shards, where, cursor)
            more, cursor = _page(found, error, prefix, limit - len(jobs))
            jobs += more
            if cursor is None or len(jobs) >= limit:
                break
        return JobPage(jobs, cursor)

    def waiting(
        self, topic: str, due_from: datetime | None, due_to: datetime | None, limit: int, cursor: str | None
    ) -> Operation[WaitingPage]:
        """Returns one page of those that wait, in order of due time. Each shard is asked for a whole page."""
        check_limit(limit)
        from_ms, to_ms = moment_ms(due_from, "due_from"), moment_ms(due_to, "due_to")
        begin = Score((from_ms or 0) - HALF_MS, b"") if cursor is None else _score(cursor)
        bands = DueRange.of(from_ms, to_ms).bands(begin.score)
        shards = yield from self._topics.shards(topic)
        asked = [
            producer.waiting(keys, band.since, band.until, begin.member, limit) for keys in shards for band in bands
        ]
        parts = yield from ask_all(asked)
        found = [(Score(unheld(job.score), raw_member(job.member)), job) for part in parts for job in part]
        found.sort(key=lambda item: item[0])
        page = found[:limit]
        jobs = [WaitingJob(job.id, job.due_ms, job.group) for _, job in page]
        return WaitingPage(jobs, _cursor(page[-1][0]) if len(page) == limit else None)


_Found = tuple[list[tuple[Any, ListedJob]], Any]
"""Jobs with their places, in order, and the place up to which all shards have looked; None at the end."""


def _state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError:
        raise InvalidInput("state", f"{state!r:.40} is not a state; use one of {', '.join(JobState)}") from None


def _due(shards: Sequence[ShardKeys], state: JobState, where: DeadFilter, cursor: str | None) -> Operation[_Found]:
    behind = Score((where.since_ms or 0) - HALF_MS, b"") if cursor is None else _score(cursor)
    bands = DueRange.of(where.since_ms, where.until_ms).bands(behind.score)
    asked = [(Score(band.since, behind.member), band.until) for band in bands]
    parts = yield from ask_all(calls.due(shard, state, *band) for shard in shards for band in asked)
    return dead_jobs.merged([part.jobs for part in parts], [part.looked_to for part in parts], newest_first=False)


def _done(shards: Sequence[ShardKeys], where: DeadFilter, cursor: str | None) -> Operation[_Found]:
    before = Score(_END if where.until_ms is None else where.until_ms, b"") if cursor is None else _score(cursor)
    parts = yield from ask_all(calls.done(shard, before, where.since_ms or 0) for shard in shards)
    return dead_jobs.merged([part.jobs for part in parts], [part.looked_to for part in parts], newest_first=True)


def _in_stream(
    shards: Sequence[ShardKeys], state: JobState, where: DeadFilter, cursor: str | None
) -> Operation[_Found]:
    after = None if cursor is None else Position.parse(cursor, "cursor")
    spans = [(shard, dead_jobs.rest(where, after, shard.shard, newest_first=False)) for shard in shards]
    which = (calls.ready, calls.running) if state is JobState.READY else (calls.running,)
    parts = yield from ask_all(call(shard, *span) for shard, span in spans for call in which)
    jobs = [[one for one in part.jobs if one[1].state is state] for part in parts]
    return dead_jobs.merged(jobs, [part.looked_to for part in parts], newest_first=False)


def _dead(shards: Sequence[ShardKeys], where: DeadFilter, cursor: str | None) -> Operation[_Found]:
    after = None if cursor is None else Position.parse(cursor, "cursor")
    spans = [(shard, dead_jobs.rest(where, after, shard.shard, newest_first=True)) for shard in shards]
    parts = yield from ask_all(
        dead_calls.find(shard, where, span, dead_calls.LOOKED_AT, newest_first=True) for shard, span in spans
    )
    jobs = [[(Position.parse(job.dead_id), _listed(job)) for job, _ in part.jobs] for part in parts]
    return dead_jobs.merged(jobs, [part.looked_to for part in parts], newest_first=True)


def _listed(job: DeadJob) -> ListedJob:
    found = ListedJob(job.id, JobState.DEAD, job.buried_ms, job.due_ms, job.group, job.attempt)
    return found._replace(error=job.error, dead_id=job.dead_id)


def _page(found: _Found, error: str | None, prefix: str | None, limit: int) -> JobPage:
    """Returns the first matching jobs; rows of several groups with the same place stay together."""
    items, edge = found
    if error is not None:
        items = [item for item in items if error in (item[1].error or "")]
    if prefix:
        items = [item for item in items if item[1].id.startswith(prefix)]
    if len(items) > limit:
        last = items[limit - 1][0]
        more = items[limit:]
        items = items[:limit] + [item for item in more if item[0] == last]
        if len(items) < limit + len(more):
            edge = last
    return JobPage([job for _, job in items], None if edge is None else _cursor(edge))


def _score(cursor: str) -> Score:
    found = _PLACE.fullmatch(cursor) if isinstance(cursor, str) else None
    if found is None:
        raise InvalidInput("cursor", f"{cursor!r:.60} is not a cursor: pass the previous page's")
    return Score(unheld(float(found[1])), bytes.fromhex(found[2]))


def _cursor(place: Score | Position) -> str:
    return f"{place.score:.2f}~{place.member.hex()}" if isinstance(place, Score) else str(place)
