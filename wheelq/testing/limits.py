"""`LoadLimit`: an upper limit for a figure of a load test, from `--limit "lateness p99 50"`.

Pure: it knows Locust's figures only from a `LoadEntry`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from wheelq.errors import InvalidInput

_PATTERN = re.compile(r"(\S+?)(?:/(\S+))? (p\d{1,2}(?:\.\d+)?|mean|max|failures) (\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class LoadEntry:
    """One row of Locust's table."""

    kind: str
    """Locust's request type: a method of the client, "lateness", or an HTTP method."""
    name: str
    """Locust's name of the request: the topic, or a path."""
    requests: int
    failures: int
    mean_ms: float
    max_ms: float
    percentile_ms: Callable[[float], float]
    """Returns the time in ms that a share (0 to 1) of the requests did not exceed."""


@dataclass(frozen=True, slots=True)
class LoadLimit:
    """A figure of one kind of entries, and its upper limit."""

    kind: str
    name: str | None
    """The entry's name; None: every entry of this kind."""
    measure: str
    """"p50", "p99.9", "mean" or "max", in ms, or "failures", in percent of the requests."""
    most: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the limit for `KIND[/NAME] MEASURE MOST`. Raises: InvalidInput."""
        found = _PATTERN.fullmatch(text.strip())
        if not found:
            raise InvalidInput(
                "limit",
                f'{text!r} is not a limit; give kind, measure and most, as in "lateness p99 50" or '
                '"schedule/orders mean 5" (milliseconds), or "schedule failures 1" (percent)',
            )
        return cls(found[1], found[2], found[3], float(found[4]))

    def broken_by(self, entries: Iterable[LoadEntry]) -> list[str]:
        """Returns a sentence for each entry above the limit. Without measurements the limit is broken, too."""
        measured = [
            entry
            for entry in entries
            if entry.kind == self.kind and self.name in (None, entry.name) and entry.requests + entry.failures
        ]
        if not measured:
            return [f"{self}: nothing was measured"]
        return [f"{self}: {value:g} for {entry.name}" for entry in measured if (value := self._of(entry)) > self.most]

    def _of(self, entry: LoadEntry) -> float:
        if self.measure == "failures":
            return 100 * entry.failures / max(entry.requests, entry.failures)
        if self.measure == "mean":
            return entry.mean_ms
        if self.measure == "max":
            return entry.max_ms
        return entry.percentile_ms(float(self.measure[1:]) / 100)

    def __str__(self) -> str:
        name = "" if self.name is None else f"/{self.name}"
        return f"{self.kind}{name} {self.measure} at most {self.most:g}"
