"""The charts of the last hour and the last day, as the overview and the page of a topic show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from wheelq.model.topic import TopicInfo
from wheelq.server.dashboard import charts
from wheelq.server.dashboard.charts import DAY, HOUR, MINUTE, AxisMark
from wheelq.server.dashboard.past import PastSeries, series
from wheelq.server.dashboard.visit import Visit
from wheelq.server.dashboard.words import span

MOST_SHARDS = 200
"""The most shards that the charts add up: those of the topics with the most jobs."""
LINES = (("scheduled", "k2"), ("promoted", "k1"), ("done", "k0"), ("failed", "k3"))


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
    minutes = await visit.service.past.minutes(chosen, now_ms)
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
