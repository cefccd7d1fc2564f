"""Bundles: jobs that are counted, so that another one follows when all of them have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, TypedDict, TypeVar, get_args

from wheelq.errors import InvalidInput
from wheelq.model.checks import check_id, check_topic
from wheelq.model.dead import DeadJob
from wheelq.model.job import JobSpec, OnDuplicate, Payload, Priority, Receipt
from wheelq.settings import Durability

R = TypeVar("R")

When = Literal["all_done", "all_ended"]
"""When a bundle's follower is made: once every member has ended and none is dead; or once every member has ended."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The job that follows a bundle, for `schedule_many(…, then=…)`.

        Continuation("publish", {"album": 7}, when="all_done")

    It is made once all members are done ("all_done": a dead one holds it up until it is replayed, purged or trimmed),
    or once all have ended, however (`when` "all_ended"). Its `topic`, `payload`, `at`, `headers`, `partition_key`,
    `priority`, `attempts`, `timeout` and `on_dead` are as in `schedule`. Its `delay` counts from the end of the bundle;
    without `delay` and `at` it is due at once. Without `key` its id is made from the bundle's.
    """

    topic: str
    payload: Payload = None
    delay: float | timedelta | None = None
    at: datetime | None = None
    key: str | None = None
    when: When = "all_done"
    headers: Mapping[str, str] | None = None
    partition_key: str | None = None
    priority: Priority = "normal"
    attempts: int | None = None
    timeout: float | timedelta | None = None
    on_dead: str | None = None
    on_duplicate: OnDuplicate = "keep"
    """What to do with a live job that has its key: "keep" or "replace"."""

    def spec(self, id: str) -> JobSpec:
        """Returns the job to make; `id` is its id if it has no key. Raises: InvalidInput."""
        check_topic(self.topic)
        if self.when not in get_args(When):
            raise InvalidInput("when", f"must be 'all_done' or 'all_ended', not {self.when!r}")
        if self.on_duplicate not in ("keep", "replace"):
            problem = f"must be 'keep' or 'replace', not {self.on_duplicate!r}"
            raise InvalidInput("on_duplicate", f"{problem}: nobody waits for the answer when a follower is made")
        delay = 0 if self.delay is None and self.at is None else self.delay
        places = (
            self.headers,
            self.partition_key,
            self.priority,
            None,
            None,
            self.attempts,
            self.timeout,
            self.on_dead,
        )
        return JobSpec(self.payload, delay, self.at, id if self.key is None else self.key, *places)


class BundleState(StrEnum):
    """How far a bundle is."""

    OPEN = "open"
    """It takes members: `close_bundle` has not been called."""
    CLOSED = "closed"
    """It waits for the end of its members, or for dead ones to be replayed."""
    ENDED = "ended"
    """Its follower was made."""
    CANCELLED = "cancelled"
    """`cancel_bundle` was called: nothing follows."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle: `follower_id` in `follower_topic` follows it `when` "all_done" or "all_ended".

    It has had so many `members`, of which so many are `done`, `dead` and `cancelled`; those `left` wait or run.
    """

    id: str
    state: BundleState
    when: When
    follower_topic: str
    follower_id: str
    members: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    """Members that will not be done: cancelled, expired, skipped, replaced, purged, removed with group or topic."""
    left: int = 0
    topics: Sequence[str] = ()
    """The topics that may have members."""
    dead_jobs: Sequence[DeadJob] = ()
    """Up to 100 of the dead members, from the dead letters."""


class ManyOptions(TypedDict, total=False):
    """The arguments of `client.schedule_many` besides the jobs."""

    on_duplicate: OnDuplicate
    durability: Durability | None
    then: Continuation | None
    bundle: str | None
    close: bool


class Receipts(list[Receipt[R]]):
    """The receipts of a `schedule_many` call."""

    bundle: str | None = None
    """The id of the bundle; None: the call was made without one."""


def check_bundle(id: str) -> str:
    """Returns the id of a bundle. Raises: InvalidInput."""
    topic, colon, _ = check_id(id, "bundle").partition(":")
    if not colon:
        raise InvalidInput("bundle", f"{id!r} is not the id of a bundle, which schedule_many returns")
    check_topic(topic)
    return id
