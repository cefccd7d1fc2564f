"""Charts as SVG, their axes, and the spans of time that the future is shown in. Pure: numbers in, markup out.

Widths are percentages and heights are pixels, so a chart fills its place without distorting its text. Colours are
classes of the stylesheet (`c0` to `c7`, by topic): a strict Content-Security-Policy allows no style in the markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from wheelq.model.durations import span
from wheelq.server.dashboard.words import short

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
        return self.from_ms + self.bar_ms * self.bars

    @property
    def length_ms(self) -> int:
        return self.bar_ms * self.bars

    def bar(self, place: int) -> tuple[int, int]:
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


COLOURS = 8
LEFT, TOP, BOTTOM = 5.5, 12, 24
"""Room for the scale (percent) and for the marks of time (pixels)."""


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar: one topic's share."""

    value: float
    colour: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its parts from the bottom up, what it is, and where it leads."""

    parts: Sequence[BarPart]
    label: str
    href: str = ""

    @property
    def value(self) -> float:
        return sum(part.value for part in self.parts)


def colours_of(names: Iterable[str], stacked: Iterable[str] = ()) -> dict[str, int]:
    """Returns a colour for each topic, by its place among all; those `stacked` in one chart have different ones."""
    found = {name: place % COLOURS for place, name in enumerate(sorted(names))}
    taken: set[int] = set()
    for name in sorted(stacked):
        found[name] = next(n % COLOURS for n in range(found[name], found[name] + COLOURS) if n % COLOURS not in taken)
        taken.add(found[name])
    return found


def bars(columns: Sequence[Bar], marks: Sequence[AxisMark], label: str, height: int = 260) -> Markup:
    """Returns a chart of stacked bars over a time axis, each a link if it leads somewhere."""
    top, levels = scale(max((bar.value for bar in columns), default=0))
    plot = height - TOP - BOTTOM
    drawn = [_grid(levels, plot), _marks(marks, height)]
    width = (100 - LEFT) / max(1, len(columns))
    for place, bar in enumerate(columns):
        if bar.value:
            drawn.append(_column(bar, LEFT + place * width, width, top, plot))
    return _svg(label, height, drawn)


def lane(values: Sequence[int], colour: int, labels: Sequence[str], hrefs: Sequence[str]) -> Markup:
    """Returns the bars of one topic without axes, by its own scale, in a row of a table; higher ones are darker."""
    height, width, highest = 34, 100 / max(1, len(values)), max(values, default=0)
    drawn = []
    for place, value in enumerate(values):
        if value:
            tall = max(3.0, height * value / highest)
            shade = 1 + min(3, int(4 * value / (highest + 1)))
            rect = Markup(
                '<a href="{}" tabindex="-1" aria-hidden="true"><rect class="c{} s{}" x="{:.3f}%" y="{:.1f}" '
                'width="{:.3f}%" height="{:.1f}" rx="1.5"><title>{}</title></rect></a>'
            )
            place_x = place * width + width * 0.08
            href, label = hrefs[place], labels[place]
            drawn.append(rect.format(href, colour, shade, place_x, height - tall, width * 0.84, tall, label))
    ground = Markup('<line class="ground" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(height)
    return Markup('<svg class="lane" width="100%" height="{}" aria-hidden="true" focusable="false">{}{}</svg>').format(
        height + 1, ground, Markup("").join(drawn)
    )


def lines(
    series: Sequence[tuple[str, Sequence[float]]], marks: Sequence[AxisMark], label: str, height: int = 160
) -> Markup:
    """Returns a chart of lines over a time axis; `series` are (class, values)."""
    top, levels = scale(max((value for _, values in series for value in values), default=0))
    plot = height - TOP - BOTTOM
    drawn = [_grid(levels, plot), _marks(marks, height)]
    for kind, values in series:
        last = max(1, len(values) - 1)
        points = " ".join(f"{1000 * n / last:.1f},{1000 - 1000 * value / top:.1f}" for n, value in enumerate(values))
        inner = Markup(
            '<svg x="{}%" y="{}" width="{}%" height="{}" viewBox="0 0 1000 1000" preserveAspectRatio="none">'
            '<polyline class="line {}" points="{}" vector-effect="non-scaling-stroke"/></svg>'
        )
        drawn.append(inner.format(LEFT, TOP, 100 - LEFT, plot, kind, points))
    return _svg(label, height, drawn)


def _column(bar: Bar, left: float, width: float, top: float, plot: int) -> Markup:
    """One bar; all of its height can be clicked."""
    x, wide = left + width * 0.08, width * 0.84
    drawn, base = [], float(TOP + plot)
    for part in bar.parts:
        tall = plot * part.value / top
        if tall > 0:
            base -= tall
            rect = Markup('<rect class="c{}" x="{:.3f}%" y="{:.2f}" width="{:.3f}%" height="{:.2f}"/>')
            drawn.append(rect.format(part.colour, x, base, wide, max(tall, 0.75)))
    hit = Markup('<rect class="hit" x="{:.3f}%" y="{}" width="{:.3f}%" height="{}"><title>{}</title></rect>').format(
        left, TOP, width, plot, bar.label
    )
    inside = Markup("").join([*drawn, hit])
    if not bar.href:
        return Markup("<g>{}</g>").format(inside)
    return Markup('<a class="bar" href="{}" aria-label="{}">{}</a>').format(bar.href, bar.label, inside)


def _grid(levels: Sequence[AxisMark], plot: int) -> Markup:
    drawn = []
    for mark in levels:
        y = TOP + plot * (1 - mark.share)
        line = Markup(
            '<line class="grid" x1="{0}%" x2="100%" y1="{1:.1f}" y2="{1:.1f}"/>'
            '<text class="level" x="{2}%" y="{3:.1f}">{4}</text>'
        )
        drawn.append(line.format(LEFT, y, LEFT - 0.8, y + 4, mark.text))
    return Markup("").join(drawn)


def _marks(marks: Sequence[AxisMark], height: int) -> Markup:
    drawn = []
    for place, mark in enumerate(marks):
        kind = "first" if mark.share == 0 else "last" if mark.share == 1 else "odd" if place % 2 else "even"
        kind += " now" if mark.text == "now" else ""
        text = Markup('<text class="mark {}" x="{:.3f}%" y="{}">{}</text>')
        drawn.append(text.format(kind, LEFT + mark.share * (100 - LEFT), height - 6, mark.text))
    return Markup("").join(drawn)


def _svg(label: str, height: int, drawn: Sequence[Markup]) -> Markup:
    return Markup('<svg class="chart" width="100%" height="{}" role="group" aria-label="{}">{}</svg>').format(
        height, label, Markup("").join(drawn)
    )
