"""`FleetMetrics`: the metrics of the whole fleet in the text format of Prometheus, read from Redis when scraped.

Every process exposes the same figures, because they are kept in Redis: aggregate over the scraped processes with `max`,
not with `sum`. Left out are counters that are zero, and the histograms of removed groups and of topics that ran nothing
in the last hour. The lines are made here because prometheus-client takes ten times as long for thousands of topics.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from wheelq.admin.figures import Fleet, by_slot, fleet
from wheelq.base.clock import Clock
from wheelq.base.fresh import Fresh
from wheelq.base.metrics import BOUNDS, Measured
from wheelq.errors import ServerError
from wheelq.producer.driver import AsyncDriver
from wheelq.protocol.calls.registry import RegisteredTopics
from wheelq.protocol.calls.shard_counts import WITHIN_MS
from wheelq.protocol.keys import Keys
from wheelq.settings import BreakerSettings
from wheelq.transport import AsyncTransport

FRESH_S = 4.0
"""How many seconds the same figures are returned after Redis was asked. Nothing is read between scrapes."""
DEADLINE_S = 5.0
"""How long Redis may take to answer."""
_ASKS_ALWAYS = BreakerSettings(failures=1_000_000_000)


class FleetMetrics:
    """Asks Redis at most once in `FRESH_S`, however often it is scraped."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock, version: str) -> None:
        self._transport = transport
        self._keys = keys
        self._version = version
        self._driver = AsyncDriver(transport, _ASKS_ALWAYS, clock)
        self._known: RegisteredTopics | None = None
        self._reading = Fresh(self._read, FRESH_S, clock)

    async def text(self, may_read: Callable[[str], bool] = lambda topic: True) -> str:
        """Returns the metrics of topics that may be read, in the text format of Prometheus. Never raises."""
        return expose(await self._reading.get(), self._version, may_read)

    async def _read(self) -> Fleet | None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                found = await self._driver.run(fleet(self._keys, by_slot(self._transport.slot), self._known))
        except (ServerError, TimeoutError):
            return None
        self._known = found.read
        return found


STATES = ("waiting", "ready", "running", "retrying", "dead")
SCHEDULED = ("created", "kept", "replaced", "refused")
FINISHED = ("done", "retried", "buried", "expired", "cancelled")
HISTOGRAMS = {
    Measured.PROMOTION: ("wheelq_promotion_lateness_seconds", "From a job's due time to its promotion."),
    Measured.START: ("wheelq_start_lateness_seconds", "From the due time of a run to the start of its handler."),
    Measured.HANDLER: ("wheelq_handler_seconds", "How long handlers ran."),
}
Labels = Mapping[str, str] | str
"""Samples as text, for speed where there are very many; a topic's name needs no escaping."""
Sample = tuple[Labels, float]


def expose(fleet: Fleet | None, version: str, may_read: Callable[[str], bool] = lambda topic: True) -> str:
    """Returns the metrics of the fleet, for topics that may be read; without a fleet, only that Redis is away."""
    lines: list[str] = []
    info = {} if fleet is None else fleet.info
    server = {"server": "valkey" if "valkey_version" in info else "redis"} if info else {"server": ""}
    number = info.get("valkey_version", info.get("redis_version", ""))
    _add(
        lines,
        "wheelq_build_info",
        "gauge",
        "Versions of wheelq and of the server.",
        [({"version": version, **server, "server_version": number}, 1)],
    )
    _add(lines, "wheelq_redis_up", "gauge", "Whether Redis answers.", [({}, float(fleet is not None))])
    if fleet is not None:
        topics = [topic for topic in fleet.topics if may_read(topic)]
        _counters(lines, fleet, topics)
        _gauges(lines, fleet, topics)
        _groups(lines, fleet, topics)
        _recurring(lines, fleet, topics)
        _server(lines, fleet)
        _histograms(lines, fleet, set(topics))
    return "".join(lines)


def _add(lines: list[str], name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
    lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
    lines += [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples]


def _labels(labels: Labels) -> str:
    if isinstance(labels, str):
        return labels
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    if '"' not in value and "\\" not in value and "\n" not in value:
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return repr(int(value) if value == int(value) else value)


def _counters(lines: list[str], fleet: Fleet, topics: list[str]) -> None:
    counted = {topic: Counter[tuple[str, str]]() for topic in topics}
    for topic in topics:
        for one in fleet.shards[topic]:
            counted[topic].update(one.counted)

    def total(outcome: str) -> Iterator[Sample]:
        for topic in topics:
            if value := counted[topic][outcome, ""]:
                yield f'{{topic="{topic}"}}', value

    def by_group(outcomes: Iterable[str], *, named: bool) -> Iterator[Sample]:
        for topic in topics:
            for (outcome, group), value in counted[topic].items():
                if outcome in outcomes:
                    labels = {"topic": topic, "group": group}
                    yield (labels | {"outcome": outcome} if named else labels), value

    scheduled = (
        ({"topic": topic, "outcome": outcome}, counted[topic][outcome, ""])
        for topic in topics
        for outcome in SCHEDULED
        if counted[topic][outcome, ""]
    )
    _add(lines, "wheelq_scheduled_total", "counter", "Jobs of schedule calls, by outcome.", scheduled)
    _add(lines, "wheelq_promoted_total", "counter", "Jobs that became ready, retries among them.", total("promoted"))
    swept = "Jobs promoted by a sweep, because their hint was lost or late."
    _add(lines, "wheelq_swept_total", "counter", swept, total("swept"))
    finished = "Deliveries that ended; a job that was cancelled while it waited has no group."
    _add(lines, "wheelq_finished_total", "counter", finished, by_group(FINISHED, named=True))
    recovered = "Deliveries taken over from workers that are gone."
    _add(lines, "wheelq_recovered_total", "counter", recovered, by_group(("recovered",), named=False))
    _add(
        lines,
        "wheelq_leader_changes_total",
        "counter",
        "How often another node became the leader of a shard.",
        total("led"),
    )


def _gauges(lines: list[str], fleet: Fleet, topics: list[str]) -> None:
    shards = fleet.shards
    jobs = (
        (f'{{topic="{topic}",state="{state}"}}', sum(getattr(one.counts, state) for one in shards[topic]))
        for topic in topics
        for state in STATES
    )
    _add(lines, "wheelq_jobs", "gauge", "Jobs by state; each counts once.", jobs)
    due = (
        (f'{{topic="{topic}",within="{within}"}}', sum(one.due[n] for one in shards[topic]))
        for topic in topics
        for n, within in enumerate(WITHIN_MS)
    )
    _add(lines, "wheelq_due_jobs", "gauge", "Jobs that are due within this time, including overdue ones.", due)
    overdue = ((f'{{topic="{topic}"}}', _overdue_s(fleet, topic)) for topic in topics)
    _add(lines, "wheelq_overdue_seconds", "gauge", "How long the first waiting job has been due.", overdue)
    paused = ((f'{{topic="{topic}"}}', int(fleet.topics[topic].paused)) for topic in topics)
    _add(lines, "wheelq_topic_paused", "gauge", "1 for a topic that is paused.", paused)
    leaderless = ((f'{{topic="{topic}"}}', fleet.without_leader(topic)) for topic in topics)
    text = "Shards with a job that is due within half a second, or overdue, and no leader."
    _add(lines, "wheelq_shards_without_leader", "gauge", text, leaderless)
    _add(lines, "wheelq_schedulers", "gauge", "Live scheduler nodes.", [({}, fleet.schedulers)])


def _overdue_s(fleet: Fleet, topic: str) -> float:
    late = [
        one.counts.server_us / 1000 - one.counts.first_due_ms
        for one in fleet.shards[topic]
        if one.counts.first_due_ms is not None
    ]
    return round(max(0.0, *late) / 1000, 3) if late else 0.0


def _groups(lines: list[str], fleet: Fleet, topics: list[str]) -> None:
    lag: Counter[tuple[str, str]] = Counter()
    oldest: dict[tuple[str, str], float] = {}
    for topic in topics:
        for one in fleet.shards[topic]:
            for group in one.counts.groups:
                place = topic, group.name
                lag[place] += group.lag
                since_ms = group.oldest_ms or one.counts.server_us // 1000
                age = max(0.0, one.counts.server_us / 1000 - since_ms) / 1000
                oldest[place] = max(oldest.get(place, 0.0), age)
    names = ("topic", "group")
    lags = ((dict(zip(names, place, strict=True)), value) for place, value in lag.items())
    _add(lines, "wheelq_group_lag_jobs", "gauge", "Entries not yet delivered to the group.", lags)
    ages = ((dict(zip(names, place, strict=True)), round(age, 3)) for place, age in oldest.items())
    text = "How long the oldest entry that the group has not finished has been ready. Scale workers by this."
    _add(lines, "wheelq_group_oldest_seconds", "gauge", text, ages)
    readable = set(topics)
    known = dict.fromkeys(lag, 0) | {place: n for place, n in fleet.workers.items() if place[0] in fleet.topics}
    workers = ((dict(zip(names, place, strict=True)), n) for place, n in known.items() if place[0] in readable)
    _add(lines, "wheelq_workers", "gauge", "Live workers of each group that has ever had one.", workers)
    text = "Workers that ended without a word in the last ten minutes."
    _add(lines, "wheelq_lost_workers", "gauge", text, [({}, fleet.lost_workers)])


def _recurring(lines: list[str], fleet: Fleet, topics: list[str]) -> None:
    readable = set(topics)
    told = [(place, times) for place, times in fleet.recurring.items() if place[0] in readable]
    last = (
        ({"topic": topic, "name": name}, times.last_ms / 1000)
        for (topic, name), times in told
        if times.last_ms is not None
    )
    _add(lines, "wheelq_recurring_last_timestamp_seconds", "gauge", "When the last occurrence was due.", last)
    following = (
        ({"topic": topic, "name": name}, times.next_ms / 1000)
        for (topic, name), times in told
        if times.next_ms is not None
    )
    text = "When the next occurrence that is not scheduled yet is due."
    _add(lines, "wheelq_recurring_next_timestamp_seconds", "gauge", text, following)


def _server(lines: list[str], fleet: Fleet) -> None:
    used, limit = _figure(fleet, "used_memory"), _figure(fleet, "maxmemory") or _figure(fleet, "total_system_memory")
    text = "Memory in use, as a share of maxmemory, or of the machine's where there is no limit."
    _add(lines, "wheelq_redis_memory_ratio", "gauge", text, [({}, round(used / limit, 6))] if limit else [])
    policy = fleet.info.get("maxmemory_policy")
    evicts: list[Sample] = [({}, float(policy != "noeviction"))] if policy else []
    _add(lines, "wheelq_redis_evicts", "gauge", "1 if the server throws keys away when memory runs short.", evicts)


def _figure(fleet: Fleet, name: str) -> int:
    text = fleet.info.get(name, "")
    return int(text) if text.isdecimal() else 0


def _histograms(lines: list[str], fleet: Fleet, topics: set[str]) -> None:
    groups = {(topic, group.name) for topic in topics for one in fleet.shards[topic] for group in one.counts.groups}
    for measured, (name, text) in HISTOGRAMS.items():
        lines.append(f"# HELP {name} {text}\n# TYPE {name} histogram\n")
        edges = [repr(bound) for bound in BOUNDS[measured]] + ["+Inf"]
        for (kind, topic, group), (total_us, *counts) in fleet.histograms.items():
            if kind is not measured or topic not in topics:
                continue
            if kind is not Measured.PROMOTION and (topic, group) not in groups:  # it was removed
                continue
            labels = f'topic="{topic}"' + (f',group="{_escaped(group)}"' if kind is not Measured.PROMOTION else "")
            below = 0
            for edge, count in zip(edges, counts, strict=True):
                below += count
                lines.append(f'{name}_bucket{{{labels},le="{edge}"}} {below}\n')
            lines.append(f"{name}_sum{{{labels}}} {total_us / 1_000_000}\n{name}_count{{{labels}}} {below}\n")
