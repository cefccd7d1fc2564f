"""Settles leased jobs that failed: another attempt after a pause, or burial.

A failure counts as an attempt, like one of a library's handler; `release` counts only as a delivery.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from wheelq.model.dead import Reason
from wheelq.model.retry import Retry
from wheelq.protocol import codec
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leases, worker
from wheelq.protocol.calls.worker import Burial, Entry
from wheelq.protocol.keys import ShardKeys
from wheelq.settings import TopicSettings

ERROR_CHARS = 500
"""The most characters of an error's beginning that are kept."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A consumer's report of failed jobs."""

    error: str
    pause_ms: int | None = None
    """The time until the next attempt; None: a pause that grows with the attempts, as in `Retry`."""
    bury: bool = False
    """Whether to give the jobs up at once."""
    max_attempts: int = 5
    """After this many attempts a job is given up."""

    def settle(self, keys: ShardKeys, group: str, entry: Entry, settings: TopicSettings) -> Call[bool]:
        """Returns the call that settles one leased entry; its answer is False if the lease was no longer valid."""
        said = " ".join(self.error.split())[:ERROR_CHARS]
        pause_ms = self._pause_ms(entry.attempt)
        if pause_ms is not None:
            record = codec.again(entry.record, entry.due_ms, said, counts=True)
            return worker.retry(keys, group, leases.CONSUMER, entry, pause_ms, record, entry.deliveries)
        first_due_ms = codec.decode(entry.record).first_due_ms or entry.due_ms
        reason = Reason.GIVEN_UP if self.bury else Reason.FAILED
        burial = Burial(reason, said, "", entry.attempt, first_due_ms)
        return worker.bury(keys, group, leases.CONSUMER, entry, burial, settings, entry.deliveries)

    def _pause_ms(self, attempt: int) -> int | None:
        """Returns the pause before the next attempt; None: the job is given up."""
        if self.bury:
            return None
        pause_ms = Retry(max_attempts=self.max_attempts).pause_ms(attempt, random.random())
        return pause_ms if pause_ms is None or self.pause_ms is None else self.pause_ms
