"""Whether a job that is about to start is too late. Pure.

    expires      the job's own: after that it never runs; dropped, or buried where the topic buries what is late
    misfire      the topic's: later than its `grace_ms` a job runs all the same, is dropped, or is buried

Both look at the start of every run: of a retry `expires` still counts from when the job was first due, the grace from
when the retry is. A job that is delivered anew, because its worker died, is looked at again too.
"""

from __future__ import annotations

from dataclasses import dataclass

from wheelq.dead import Reason
from wheelq.settings import TopicSettings
from wheelq.worker.outcome import Buried


@dataclass(frozen=True, slots=True)
class Dropped:
    """The job is forgotten, as if it had run."""

    why: str


def too_late(now_ms: float, due_ms: int, expires_ms: float, topic: TopicSettings) -> Dropped | Buried | None:
    """What becomes of a job that would start now; None: it starts."""
    if now_ms > expires_ms:
        reason, why = Reason.EXPIRED, f"it could start until {expires_ms - due_ms:,.0f} ms after its due time"
    elif topic.misfire != "run" and now_ms > due_ms + topic.grace_ms:
        reason, why = Reason.MISFIRED, f"its grace of {topic.grace_ms:,} ms has passed"
    else:
        return None
    why += f", and it is {now_ms - due_ms:,.0f} ms late"
    return Buried(reason, why) if topic.misfire == "bury" else Dropped(why)
