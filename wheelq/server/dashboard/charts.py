"""Charts as SVG. Pure: numbers in, markup out.

Widths are percentages and heights are pixels, so a chart fills its place without distorting its text. Colours are
classes of the stylesheet (`c0` to `c7`, by topic): a strict Content-Security-Policy allows no style in the markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from wheelq.server.dashboard.axes import AxisMark, scale

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
        """How high it is."""
        return sum(part.value for part in self.parts)


def colours_of(names: Iterable[str]) -> dict[str, int]:
    """Returns a colour for each topic; the first `COLOURS` by name have different ones."""
    return {name: place % COLOURS for place, name in enumerate(sorted(names))}


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
        points = _points(values, top, plot)
        inner = Markup(
            '<svg x="{}%" y="{}" width="{}%" height="{}" viewBox="0 0 1000 1000" preserveAspectRatio="none">'
            '<polyline class="line {}" points="{}" vector-effect="non-scaling-stroke"/></svg>'
        )
        drawn.append(inner.format(LEFT, TOP, 100 - LEFT, plot, kind, points))
    return _svg(label, height, drawn)


def _points(values: Sequence[float], top: float, plot: int) -> str:
    last = max(1, len(values) - 1)
    return " ".join(f"{1000 * n / last:.1f},{1000 - 1000 * value / top:.1f}" for n, value in enumerate(values))


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
