"""`Browse`: the waiting jobs, page by page, in order of due time over all shards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from wheelq.errors import InvalidInput
from wheelq.model.checks import check_limit, moment_ms
from wheelq.model.job import WaitingJob, WaitingPage
from wheelq.producer.operation import Operation, ask_all
from wheelq.producer.topics import Topics
from wheelq.protocol.calls import producer
from wheelq.protocol.keys import raw_member

CURSOR_PATTERN = r"(-?[0-9]{1,14}\.[0-9]{2})~((?:[0-9a-f]{2}){1,600})"
END = 1e15
"""A score above all possible ones."""


class _Cursor(NamedTuple):
    """Where a page ends: the score and the member of its last job."""

    score: float
    member: bytes

    def __str__(self) -> str:
        return f"{self.score:.2f}~{self.member.hex()}"

    @classmethod
    def parse(cls, cursor: str) -> _Cursor:
        found = re.fullmatch(CURSOR_PATTERN, cursor) if isinstance(cursor, str) else None
        if found is None:
            raise InvalidInput("cursor", f"{cursor!r:.60} is not a cursor: pass the previous page's")
        return cls(float(found[1]), bytes.fromhex(found[2]))


@dataclass(frozen=True, slots=True)
class Browse:
    """Pages of a topic's waiting jobs."""

    topics: Topics

    def waiting(
        self, topic: str, due_from: datetime | None, due_to: datetime | None, limit: int, cursor: str | None
    ) -> Operation[WaitingPage]:
        """Returns one page. Each shard is asked for a whole page. Raises: TopicNotFound, InvalidInput."""
        check_limit(limit)
        from_ms, to_ms = moment_ms(due_from, "due_from"), moment_ms(due_to, "due_to")
        begin = _Cursor.parse(cursor) if cursor is not None else _Cursor((from_ms or 0) - producer.HALF_MS, b"")
        end = END if to_ms is None else to_ms - producer.HALF_MS
        shards = yield from self.topics.shards(topic)
        asked = [producer.waiting(keys, begin.score, end, begin.member, limit) for keys in shards]
        found = [job for part in (yield from ask_all(asked)) for job in part]
        found.sort(key=lambda job: (job.score, raw_member(job.member)))
        page = found[:limit]
        more = len(page) == limit
        jobs = [WaitingJob(job.id, job.due_ms, job.group) for job in page]
        return WaitingPage(jobs, str(_Cursor(page[-1].score, raw_member(page[-1].member))) if more else None)
