"""`/future`: how many jobs are due when. A bar leads to a closer look, and in the end to the jobs themselves.

The overview and the page of a topic show the same chart, and beside it those of the last hour and the last day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup
from starlette.responses import Response

from wheelq.admin.figures import Fleet
from wheelq.base.plural import counted
from wheelq.model.durations import span
from wheelq.model.topic import TopicInfo
from wheelq.server.access import Verb
from wheelq.server.dashboard import charts
from wheelq.server.dashboard.charts import DAY, FINEST_MS, HOUR, MINUTE, SPANS, AxisMark, Bar, BarPart, colours_of
from wheelq.server.dashboard.timeline import Outlook, PastSeries, TopicLane, series
from wheelq.server.dashboard.visit import Visit, shows
from wheelq.server.dashboard.words import iso, relative
from wheelq.server.problems import NOT_ALLOWED, Problem

LANES = 20
"""Topics on one page, besides the chart of all."""
FURTHEST_MS = 10**14
STACKED = 7
"""Topics that have parts of their own in a bar; the others are one part together."""
OTHERS = charts.COLOURS


class LaneRow(NamedTuple):
    """One topic below the chart."""

    topic: str
    colour: int
    jobs: int
    overdue: int
    lane: Markup
    peak: int
    """The most jobs that are due in one bar."""
    peak_ms: int
    """When that bar begins."""


async def future(visit: Visit) -> Response:
    """The next minute, hour, day or week, or the part of it that was chosen, of all topics or of one."""
    query = visit.query
    chosen, name = query.get("topic"), query.text("span", "hour")
    seen = await _seen(visit, chosen)
    topics = [info for info in visit.readable(seen) if chosen in (None, info.name)]
    outlook, is_zoomed = await _outlook(visit, name, topics)
    busy, first = [lane for lane in outlook.lanes if lane.jobs], query.whole("first", 0, 10**6) or 0
    shown = busy[first : first + LANES]
    colours = colours_in(outlook, seen.topics)
    return visit.page(
        "future.html",
        outlook=outlook,
        window=outlook.window,
        chart=chart(visit, outlook, chosen, colours, height=320),
        rows=[_row(visit, outlook, lane, colours[lane.topic]) for lane in shown],
        parts=legend(outlook, colours),
        jobs=sum(outlook.bars),
        overdue=sum(lane.overdue for lane in outlook.lanes),
        later=sum(lane.later for lane in outlook.lanes),
        quiet=len(outlook.lanes) - len(busy),
        more=first + LANES if len(busy) > first + LANES else None,
        spans=list(SPANS),
        span_name=name if name in SPANS else "hour",
        chosen=chosen,
        topic_names=[info.name for info in visit.readable(seen)],
        is_zoomed=is_zoomed,
        table=_table(visit, outlook, chosen),
        bar_words=span(outlook.window.bar_ms),
    )


async def _seen(visit: Visit, chosen: str | None) -> Fleet:
    """Returns a look that shows the chosen topic. Raises: Problem, TopicNotFound, ServerError."""
    snapshot = visit.service.snapshot
    if chosen is None:
        return await snapshot.now()
    if not visit.may(Verb.READ, chosen):
        raise Problem(NOT_ALLOWED)
    await visit.service.client.settings_of(chosen)
    return await snapshot.showing(chosen)


async def _outlook(visit: Visit, name: str, topics: list[TopicInfo]) -> tuple[Outlook, bool]:
    """Returns the outlook, and whether the viewer chose a part of the future."""
    due_counts, query = visit.service.due_counts, visit.query
    from_ms, to_ms = query.whole("from", 0, FURTHEST_MS), query.whole("to", 0, FURTHEST_MS)
    if from_ms is not None and to_ms is not None and to_ms > from_ms:
        return await due_counts.between(from_ms, to_ms, topics), True
    return await due_counts.span(name, topics), False


def chart(visit: Visit, outlook: Outlook, chosen: str | None, colours: Mapping[str, int], height: int) -> Markup:
    """Returns the chart of all topics together, or of the chosen one."""
    stacked = _stacked(outlook)
    columns = []
    for place, jobs in enumerate(outlook.bars):
        parts = [BarPart(lane.bars[place], colours[lane.topic]) for lane in stacked if lane.bars[place]]
        if others := jobs - sum(int(part.value) for part in parts):
            parts.append(BarPart(others, OTHERS))
        columns.append(Bar(parts, _label(outlook, place, jobs), _leads_to(visit, outlook, place, chosen)))
    label = f"Jobs due in each {span(outlook.window.bar_ms)}"
    return charts.bars(columns, outlook.window.marks(outlook.now_ms), label, height)


def _leads_to(visit: Visit, outlook: Outlook, place: int, chosen: str | None) -> str:
    """Returns the link of a bar: for one topic its jobs; for all topics a shorter window, or "" at the shortest."""
    from_ms, to_ms = outlook.window.bar(place)
    if chosen is not None:
        return jobs_url(visit, chosen, from_ms, to_ms)
    if outlook.window.bar_ms > FINEST_MS:
        return visit.url("/future", **{"from": from_ms, "to": to_ms})
    lanes = [lane.topic for lane in outlook.lanes if lane.bars[place]]
    return jobs_url(visit, lanes[0], from_ms, to_ms) if lanes else ""


def jobs_url(visit: Visit, topic: str, from_ms: int, to_ms: int) -> str:
    """Returns where the jobs of a topic that are due in a range are listed."""
    return visit.url(f"/topics/{topic}/jobs", state="waiting", since=iso(from_ms), until=iso(to_ms))


def _label(outlook: Outlook, place: int, jobs: int) -> str:
    from_ms, to_ms = outlook.window.bar(place)
    when = f"{iso(from_ms)[11:19]} to {iso(to_ms)[11:19]} UTC"
    return f"{counted(jobs, 'job')} due {relative(from_ms, outlook.now_ms)} ({when})"


def _row(visit: Visit, outlook: Outlook, lane: TopicLane, colour: int) -> LaneRow:
    spots = range(len(lane.bars))
    drawn = charts.lane(
        lane.bars,
        colour,
        [f"{lane.topic}: {_label(outlook, place, lane.bars[place])}" for place in spots],
        [jobs_url(visit, lane.topic, *outlook.window.bar(place)) for place in spots],
    )
    peak = max(spots, key=lane.bars.__getitem__)
    peak_ms = outlook.window.bar(peak)[0]
    return LaneRow(lane.topic, colour, lane.jobs, lane.overdue, drawn, lane.bars[peak], peak_ms)


def legend(outlook: Outlook, colours: Mapping[str, int]) -> list[tuple[str, str]]:
    """Returns what the parts of the chart's bars are, and the class of the colour of each."""
    named = [(lane.topic, f"c{colours[lane.topic]}") for lane in _stacked(outlook)]
    others = sum(lane.jobs > 0 for lane in outlook.lanes) - len(named)
    return [*named, (counted(others, "more topic"), f"c{OTHERS}")] if others else named


def colours_in(outlook: Outlook, topics: Iterable[TopicInfo]) -> dict[str, int]:
    """Returns the colours of all topics in the chart of an outlook."""
    return colours_of((info.name for info in topics), (lane.topic for lane in _stacked(outlook)))


def _stacked(outlook: Outlook) -> Sequence[TopicLane]:
    """Those with parts of their own: "1 more topic" would say less than its name."""
    busy = [lane for lane in outlook.lanes if lane.jobs]
    return busy if len(busy) == STACKED + 1 else busy[:STACKED]


def _table(visit: Visit, outlook: Outlook, chosen: str | None) -> list[tuple[int, int, str]]:
    """The chart as numbers: when, how many, where it leads."""
    bars = enumerate(outlook.bars)
    return [(outlook.window.bar(n)[0], jobs, _leads_to(visit, outlook, n, chosen)) for n, jobs in bars if jobs]


PLACES = (shows("/future", future),)


MOST_SHARDS = 200
"""The most shards that the charts add up: those of the topics with the most jobs."""
LINES = (("scheduled", "k2"), ("promoted", "k1"), ("done", "k0"), ("failed", "failure"))


class PastCharts(NamedTuple):
    """What happened lately."""

    hour: Markup
    day: Markup
    last: PastSeries
    """The last whole minute."""
    left_out: int
    """How many topics the charts leave out."""
    is_empty: bool
    """Whether nothing happened, or nothing was recorded yet."""


async def past(visit: Visit, topics: Sequence[TopicInfo], now_ms: int) -> PastCharts:
    """Returns the charts of these topics together. Raises: ServerError."""
    chosen: list[TopicInfo] = []
    left = MOST_SHARDS
    for info in sorted(topics, key=lambda info: -info.waiting - info.ready - info.running):
        left -= info.settings.all_shards
        if left >= 0 or not chosen:
            chosen.append(info)
    minutes = await visit.service.history.minutes(chosen, now_ms)
    return PastCharts(
        _chart(series(minutes, now_ms, MINUTE, 60), HOUR, "Jobs in each minute of the last hour"),
        _chart(series(minutes, now_ms, 15 * MINUTE, 96), DAY, "Jobs in each quarter of an hour of the last day"),
        series(minutes, now_ms, MINUTE, 1),
        len(topics) - len(chosen),
        not minutes,
    )


def _chart(found: PastSeries, length_ms: int, label: str) -> Markup:
    marks = [AxisMark(n / 4, f"−{span(length_ms * (4 - n) // 4)}" if n < 4 else "now") for n in range(5)]
    return charts.lines([(kind, getattr(found, name)) for name, kind in LINES], marks, label)
