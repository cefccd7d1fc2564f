"""`News`: hints that entries came to streams; `Hearing`: what a reader of many shards makes of them.

    script that adds entries ──PUBLISH──▶ HintListener ──▶ News ──▶ Hearing: told ──▶ take ──▶ read
                                                                     └─ check ──▶ an entry that no hint names: distrust

A hint may be lost when a connection breaks, and none comes from a program of an earlier release, or whose Redis user
may not publish. So a reader that relies on hints also checks all its shards from time to time. When a hint is missing,
it listens to all of them instead, until none has been missing for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from wheelq.worker.delivery.held import ServedShard

CHECK_AFTER, CHECK_EVERY = 1.0, 5.0
"""Seconds between looks for entries of which no hint came: at first, and at most. They double from look to look."""
HINT_LATE = 0.5
"""Seconds after which the hint of an entry that a check found counts as missing."""
DISTRUST = 60.0
"""Seconds for which hints are not relied on after one was missing: a program that sends none adds entries."""
Hear = Callable[[Iterable[str]], None]
"""Called with the names of ready streams."""


class News:
    """The hints of one worker; nothing is heard before a reader wants it."""

    def __init__(self) -> None:
        self.is_wanted = asyncio.Event()
        """Set when a reader relies on hints."""
        self.era = 0
        """Grows whenever hints may have been missed; 0 while none are heard."""
        self._eras = 0
        self._hearers: list[Hear] = []

    def want(self, hear: Hear) -> None:
        """Call `hear` with what each hint names from now on, and with nothing when the era changes."""
        if hear not in self._hearers:
            self._hearers.append(hear)
        self.is_wanted.set()

    def begin(self) -> None:
        """Record that hints are heard from now on."""
        self._eras += 1
        self._turn(self._eras)

    def end(self) -> None:
        """Record that no hints are heard any more."""
        self._turn(0)

    def tell(self, streams: Iterable[str]) -> None:
        """Pass a hint on."""
        for hear in self._hearers:
            hear(streams)

    def _turn(self, era: int) -> None:
        self.era = era
        self.tell(())


class Hearing:
    """The hints for the shards of one reader. Times are seconds of a monotonic clock."""

    def __init__(self, news: News) -> None:
        self.told = asyncio.Event()
        """Set when a hint came, and when there is another reason to wait no longer."""
        self._news = news
        self._shards: dict[str, ServedShard] = {}  # by stream
        self._named: dict[ServedShard, None] = {}
        self._missing: dict[ServedShard, float] = {}  # found by a check at this time, and not named since
        self._era = 0
        self._check_at = 0.0
        self._check_every = CHECK_AFTER
        self._trusts_from = float("-inf")

    def follow(self, shards: Sequence[ServedShard]) -> None:
        """Hear of these shards from now on."""
        self._shards = {shard.keys.ready: shard for shard in shards}
        self._missing.clear()
        self.told.set()

    def hear(self, streams: Iterable[str]) -> None:
        """Take a hint."""
        for stream in streams:
            if shard := self._shards.get(stream):
                self._named[shard] = None
                self._missing.pop(shard, None)
        self.told.set()

    def patience(self, now: float) -> float | None:
        """Returns for how long hints can be relied on before the next check; None if they cannot be relied on.

        The first call makes the worker hear them.
        """
        self._news.want(self.hear)
        if any(now - since > HINT_LATE for since in self._missing.values()):
            self._missing.clear()
            self._trusts_from = now + DISTRUST
        if not self._news.era or now < self._trusts_from:
            return None
        return max(0.0, self._check_at - now) if self._era == self._news.era else 0.0

    def take(self) -> list[ServedShard]:
        """Returns the shards that hints named since the last time."""
        named, self._named = self._named, {}
        self.told.clear()
        return list(named)

    def forget(self, shards: Iterable[ServedShard]) -> None:
        """Forget hints for shards that are about to be read."""
        for shard in shards:
            self._named.pop(shard, None)

    def checked(self, now: float, era: int, found: Iterable[ServedShard]) -> None:
        """Record a check, made in this era, that found entries in these shards."""
        is_first, self._era = self._era != era, era
        self._check_every = CHECK_AFTER if is_first else min(2 * self._check_every, CHECK_EVERY)
        self._check_at = now + self._check_every
        if not is_first:  # before the first, entries came that could not be heard of
            self.found(now, found)

    def found(self, now: float, shards: Iterable[ServedShard]) -> None:
        """Record that entries were found in these shards, of which hints should have come."""
        if self._news.era:
            self._missing |= {shard: now for shard in shards if shard not in self._named}
