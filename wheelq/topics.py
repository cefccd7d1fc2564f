"""Topics as people see them, and what a client remembers of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from wheelq.job import from_ms
from wheelq.settings import TopicSettings


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What one topic holds now, all shards together."""

    name: str
    shards: int
    delayed: int
    """Jobs that wait for their due time."""
    ready: int
    """Entries in the ready streams: promoted, and not yet acked by every group or kept for the topic's retention."""
    dead: int
    """Jobs that were given up and wait for a decision."""
    first_due_ms: int | None
    """When the first waiting job is due; None when nothing waits."""
    overdue_ms: int
    """How long the first waiting job has been due; 0 when none is. More than a second means no scheduler runs."""

    @property
    def first_due(self) -> datetime | None:
        """`first_due_ms` as an aware datetime in UTC."""
        return None if self.first_due_ms is None else from_ms(self.first_due_ms)


class KnownTopics:
    """Settings of topics a client has met, each trusted for a while. Times are monotonic seconds."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl = ttl_ms / 1000
        self._known: dict[str, tuple[float, TopicSettings]] = {}

    def find(self, topic: str, now: float) -> TopicSettings | None:
        """What is known, unless it is too old."""
        found = self._known.get(topic)
        return found[1] if found is not None and found[0] > now else None

    def remember(self, topic: str, settings: TopicSettings, now: float) -> TopicSettings:
        """Keep `settings` for a while."""
        self._known[topic] = (now + self._ttl, settings)
        return settings
