"""Errors of topics, and of their groups, shards and recurring jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wheelq.errors.base import WheelqError


class TopicFull(WheelqError):
    """As many jobs wait as the topic's `max_pending` allows. Try again when some have run.

    `refused` (index → id) are the jobs that were not scheduled, `receipts` (index → receipt) the jobs that were.
    """

    def __init__(self, topic: str, refused: Mapping[int, str], receipts: Mapping[int, Any]) -> None:
        jobs = "a job was refused" if len(refused) == 1 else f"{len(refused):,} jobs were refused"
        super().__init__(f"topic {topic!r} is full: {jobs}, because as many wait as its max_pending allows")
        self.topic = topic
        self.refused = refused
        self.receipts = receipts


class TopicNotFound(WheelqError):
    """No job was ever scheduled to this topic; `topic` is the name in the call."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist: the first job of a topic creates it")
        self.topic = topic


class TopicUnreadable(WheelqError):
    """A topic's settings cannot be read here: a newer release or another program wrote them; nothing was done.

    `topic` names it. Upgrade this program, or correct the settings with the program that wrote them.
    """

    def __init__(self, topic: str, problem: str) -> None:
        super().__init__(f"the settings of topic {topic!r} cannot be read: {problem}")
        self.topic = topic
        self.problem = problem


class RecurringUnreadable(WheelqError):
    """A recurring job cannot be read here: a newer release or another program wrote it; nothing was done.

    `topic` and `name` name it. Upgrade this program, or correct the definition with the program that wrote it.
    """

    def __init__(self, topic: str, name: str, problem: str) -> None:
        super().__init__(f"recurring job {name!r} of topic {topic!r} cannot be read: {problem}")
        self.topic = topic
        self.name = name
        self.problem = problem


class InUse(WheelqError):
    """A group or topic was not removed, because it is in use. Nothing was changed; `workers` are its live workers.

    Stop the workers, wait until the jobs have run, or remove it with `force=True`.
    """

    def __init__(self, what: str, why: str, workers: Sequence[str] = ()) -> None:
        super().__init__(f"{what} is in use: {why}")
        self.workers = tuple(workers)


class NotLeader(WheelqError):
    """This node does not hold the shard's lease; the call changed nothing."""
