"""Jobs on a page of one state. `JobInfo` says more about a single job."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from wheelq.model.job import from_ms
from wheelq.model.state import JobState


class ListedJob(NamedTuple):
    """One row of a page: a job, perhaps in one of its groups. If several groups have the job in the page's state, each
    has its own row. A field is None if it is not known here.
    """

    id: str
    state: JobState
    at_ms: int
    """Orders the page: when it is due (waiting, retrying), promoted (ready, running), ended (done) or buried (dead)."""
    due_ms: int
    """When this attempt is, or was, due."""
    group: str | None = None
    """The only group concerned; None: every group, or there was no group yet."""
    attempt: int | None = None
    """The number of the attempt that waits, runs, or was the last."""
    worker: str | None = None
    """The consumer that has it, or had it last."""
    error: str | None = None
    """The error of its last failed attempt."""
    dead_id: str | None = None
    """Of a dead job, the argument of the methods of `client.dead`."""

    @property
    def at(self) -> datetime:
        """`at_ms` as an aware datetime in UTC."""
        return from_ms(self.at_ms)


class JobPage(NamedTuple):
    """One page of jobs, and the cursor of the next."""

    jobs: list[ListedJob]
    """May be fewer than the limit, even none, although more follow: a call looks at a bounded number of jobs."""
    cursor: str | None
    """The argument for the next page; None after the last."""
