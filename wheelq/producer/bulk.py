"""`Bulk`: cancel or move all waiting jobs that are due in a range, over all shards of a topic.

Each round changes up to 500 jobs in every shard that is not done, with one script call each. A shard stores the
progress of a change under its name, so a call that was interrupted or lost its reply continues and changes no job
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from wheelq.base.clock import Clock
from wheelq.base.ids import make_id
from wheelq.errors import InvalidInput, OutcomeUnknown, ServerError
from wheelq.model.checks import check_id, check_most, due_argument, moment_ms, span_ms
from wheelq.model.job import BulkProgress
from wheelq.producer.operation import Operation, Stream, ask_all
from wheelq.producer.topics import Topics
from wheelq.protocol.call import Call
from wheelq.protocol.calls import bulk as calls
from wheelq.protocol.calls.bulk import BulkPart, DueRange
from wheelq.protocol.keys import ShardKeys

Report = Callable[[BulkProgress], object]
"""Receives the progress of a change after each round."""


class Bulk:
    """Changes by due range. All methods raise TopicNotFound and InvalidInput."""

    def __init__(self, topics: Topics, max_delay_ms: int, clock: Clock) -> None:
        self._topics = topics
        self._max_delay_ms = max_delay_ms
        self._clock = clock

    def count(self, topic: str, since: datetime | None, until: datetime | None) -> Operation[int]:
        """Count the waiting jobs in the range."""
        due = _range(since, until)
        shards = yield from self._topics.shards(topic)
        return sum((yield from ask_all(calls.count(shard, band) for shard in shards for band in due.bands())))

    def cancel(
        self,
        topic: str,
        since: datetime | None,
        until: datetime | None,
        name: str | None,
        rounds: int | None,
        report: Report | None,
    ) -> Operation[BulkProgress]:
        """Cancel the waiting jobs in the range."""
        due, name = _bounded(since, until), _named(name)
        return self._change(topic, name, lambda shard: calls.cancel(shard, name, due), rounds, report)

    def move(
        self,
        topic: str,
        since: datetime | None,
        until: datetime | None,
        by: float | timedelta | None,
        delay: float | timedelta | None,
        at: datetime | None,
        name: str | None,
        rounds: int | None,
        report: Report | None,
    ) -> Operation[BulkProgress]:
        """Move each waiting job in the range by a time, or all of them to one time."""
        due, name = _bounded(since, until), _named(name)
        if by is None:
            target, by_ms = due_argument(delay, at, self._clock.wall_ms(), self._max_delay_ms), 0
        elif delay is None and at is None:
            target, by_ms = "", self._by_ms(by)
        else:
            raise InvalidInput("by", "give one of by, delay and at")
        return self._change(topic, name, lambda shard: calls.move(shard, name, due, target, by_ms), rounds, report)

    def _by_ms(self, by: float | timedelta) -> int:
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not abs(seconds) > 0:
            raise InvalidInput("by", f"must be seconds other than 0 or a timedelta, not {by!r}")
        ms = span_ms(abs(seconds), self._max_delay_ms, "by")
        return ms if seconds > 0 else -ms

    def _change(
        self,
        topic: str,
        name: str,
        call: Callable[[ShardKeys], Call[BulkPart]],
        rounds: int | None,
        report: Report | None,
    ) -> Operation[BulkProgress]:
        check_most(rounds, "rounds")
        if report is not None and not callable(report):
            raise InvalidInput("progress", f"must be a function that takes the progress, not {report!r}")
        left: Sequence[ShardKeys] = yield from self._topics.shards(topic)
        jobs: dict[ShardKeys, int] = {}
        while True:
            asked = [call(shard) for shard in left]
            try:
                parts = yield from _ask(asked)
            except ServerError as error:
                if not (jobs or isinstance(error, OutcomeUnknown)):
                    raise
                message = f"the change of jobs in {topic!r} was interrupted; continue it with name={name!r}: {error}"
                raise OutcomeUnknown(message) from error
            jobs |= {shard: part.jobs for shard, part in zip(left, parts, strict=True)}
            left = [shard for shard, part in zip(left, parts, strict=True) if not part.is_all]
            progress = BulkProgress(sum(jobs.values()), not left, name)
            if report is not None:
                report(progress)
            rounds = None if rounds is None else rounds - 1
            if progress.is_done or rounds == 0:
                return progress


def _ask(asked: Sequence[Call[BulkPart]]) -> Operation[list[BulkPart]]:
    """Returns the answers; if some are lost, all calls are repeated once, which changes nothing twice.

    Raises: OutcomeUnknown, also when only some of the calls arrived; ServerError, when none was answered.
    """
    was_lost = False
    while True:
        answers: list[BulkPart] = []
        try:
            yield Stream(asked, answers.append)
        except OutcomeUnknown:
            if was_lost:
                raise
            was_lost = True
        except ServerError as error:
            if was_lost or answers:
                raise OutcomeUnknown(str(error)) from error
            raise
        else:
            return answers


def _range(since: datetime | None, until: datetime | None) -> DueRange:
    since_ms, until_ms = moment_ms(since, "since"), moment_ms(until, "until")
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise InvalidInput("until", "must not be before since")
    return DueRange.of(since_ms, until_ms)


def _bounded(since: datetime | None, until: datetime | None) -> DueRange:
    """Returns the range of a change, which must have an end."""
    if since is None and until is None:
        raise InvalidInput("until", "say which jobs: those due since a time, until a time, or between two")
    return _range(since, until)


def _named(name: str | None) -> str:
    return make_id() if name is None else check_id(name, "name")
