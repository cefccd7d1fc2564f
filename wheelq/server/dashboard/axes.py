"""Axes: the marks of a scale, and the spans of time that the future is shown in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wheelq.server.dashboard.words import short, span

MINUTE, HOUR, DAY, WEEK = 60_000, 3_600_000, 86_400_000, 7 * 86_400_000
SPANS = {"minute": MINUTE, "hour": HOUR, "day": DAY, "week": WEEK}
"""What a viewer can choose, in milliseconds from now."""
_BARS = {MINUTE: 60, HOUR: 60, DAY: 72, WEEK: 84}
FINEST_MS = 1_000
"""The shortest span of one bar."""
MOST_BARS = 60


class AxisMark(NamedTuple):
    """A mark on an axis."""

    share: float
    """Where it is: 0 at the start, 1 at the end."""
    text: str


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A part of the future, divided into bars of one length."""

    from_ms: int
    """When it begins, by the server's clock."""
    bar_ms: int
    bars: int

    @classmethod
    def of_span(cls, name: str, now_ms: int) -> TimeWindow:
        """Returns the window from now on with this name; an unknown one means an hour."""
        length = SPANS.get(name, HOUR)
        bars = _BARS[length]
        return cls(now_ms, length // bars, bars)

    @classmethod
    def between(cls, from_ms: int, to_ms: int) -> TimeWindow:
        """Returns the window between two moments, in at most `MOST_BARS` bars of at least `FINEST_MS`."""
        length = max(FINEST_MS, to_ms - from_ms)
        bars = max(1, min(MOST_BARS, length // FINEST_MS))
        return cls(from_ms, -(-length // bars), bars)

    @property
    def to_ms(self) -> int:
        """When it ends."""
        return self.from_ms + self.bar_ms * self.bars

    @property
    def length_ms(self) -> int:
        """How long it is."""
        return self.bar_ms * self.bars

    def bar(self, place: int) -> tuple[int, int]:
        """When a bar begins and ends."""
        return self.from_ms + place * self.bar_ms, self.from_ms + (place + 1) * self.bar_ms

    def marks(self, now_ms: int) -> Sequence[AxisMark]:
        """Returns the marks of the time axis, counted from now."""
        start, parts = max(0, self.from_ms - now_ms), 7 if self.length_ms == WEEK else 6
        ends = [start + self.length_ms * n // parts for n in range(parts + 1)]
        return [AxisMark(n / parts, f"+{span(end)}" if end else "now") for n, end in enumerate(ends)]


def scale(highest: float) -> tuple[float, Sequence[AxisMark]]:
    """Returns the top of a scale for values up to `highest`, and its marks: whole, round numbers."""
    top = max(1.0, highest)
    magnitude = 10.0 ** (len(str(int(top))) - 1)
    step = next(unit * magnitude for unit in (0.2, 0.25, 0.5, 1, 2, 2.5, 5) if top / (unit * magnitude) <= 5)
    step = max(1.0, step)
    count = int(-(-top // step))
    return step * count, [AxisMark(n / count, short(step * n)) for n in range(count + 1)]
