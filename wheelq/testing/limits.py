"""`LoadLimit`: an upper limit for a figure of a load test, from `--limit "lateness p99 50"`.

Pure: it reads the rows of Locust's table and does not import Locust.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from wheelq.errors import InvalidInput

if TYPE_CHECKING:
    from locust.stats import StatsEntry

_PATTERN = re.compile(r"(\S+?)(?:/(\S+))? (p\d{1,2}(?:\.\d+)?|mean|max|failures) (\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class LoadLimit:
    """A figure of one kind of entries, and its upper limit."""

    kind: str
    """Locust's request type: a method of the client, "lateness", or an HTTP method."""
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

    def broken_by(self, entries: Iterable[StatsEntry]) -> list[str]:
        """Returns a sentence for each entry above the limit. Without measurements the limit is broken, too."""
        measured = [
            entry
            for entry in entries
            if entry.method == self.kind and self.name in (None, entry.name) and entry.num_requests + entry.num_failures
        ]
        if not measured:
            return [f"{self}: nothing was measured"]
        return [f"{self}: {value:g} for {entry.name}" for entry in measured if (value := self._of(entry)) > self.most]

    def _of(self, entry: StatsEntry) -> float:
        if self.measure == "failures":
            return 100 * entry.num_failures / max(entry.num_requests, entry.num_failures)
        if self.measure == "mean":
            return entry.avg_response_time
        if self.measure == "max":
            return entry.max_response_time
        return entry.get_response_time_percentile(float(self.measure[1:]) / 100)

    def __str__(self) -> str:
        name = "" if self.name is None else f"/{self.name}"
        return f"{self.kind}{name} {self.measure} at most {self.most:g}"
