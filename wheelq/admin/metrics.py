"""`FleetMetrics`: the metrics of the whole fleet in the text format of Prometheus, read from Redis when scraped.

Every process exposes the same figures, because they are kept in Redis: aggregate over the scraped processes with `max`,
not with `sum`. Left out are counters that are zero, and the histograms of removed groups and of topics that ran nothing
in the last hour. The lines are made here because prometheus-client takes three to ten times as long: with 3,000 topics
it would hold the event loop for 0.4 s and more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from wheelq.admin.figures import ASKS_ALWAYS, Fleet, Parts, all_allowed, by_slot, fleet, number, recurring_times
from wheelq.base.clock import Clock
from wheelq.base.fresh import Fresh
from wheelq.base.metrics import BOUNDS, Measured
from wheelq.errors import ServerError
from wheelq.model.topic import TopicInfo
from wheelq.producer.driver import AsyncDriver
from wheelq.producer.operation import Operation, ask
from wheelq.protocol.calls.counts import histograms
from wheelq.protocol.calls.registry import RegisteredTopics
from wheelq.protocol.calls.server import info
from wheelq.protocol.calls.shard_counts import WITHIN_MS
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport

FRESH_S = 4.0
"""How many seconds the same figures are returned after Redis was asked. Nothing is read between scrapes."""
DEADLINE_S = 5.0
"""How long Redis may take to answer."""


class FleetMetrics:
    """Asks Redis at most once in `FRESH_S`, however often it is scraped."""

    def __init__(self, transport: AsyncTransport, keys: Keys, clock: Clock, version: str) -> None:
        self._transport = transport
        self._keys = keys
        self._version = version
        self._driver = AsyncDriver(transport, ASKS_ALWAYS, clock)
        self._known: RegisteredTopics | None = None
        self._reading = Fresh(self._read, FRESH_S, clock)

    async def text(self, may_read: Callable[[str], bool] = lambda topic: True, *, reads_all: bool = True) -> str:
        """Returns the metrics of topics that may be read, in the text format of Prometheus. Never raises."""
        return expose(await self._reading.get(), self._version, may_read, reads_all=reads_all)

    async def _read(self) -> Fleet | None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                found = await self._driver.run(_read_all(self._keys, by_slot(self._transport.slot), self._known))
        except (ServerError, TimeoutError):
            return None
        self._known = found.registered
        return found


def _read_all(keys: Keys, parts: Parts, known: RegisteredTopics | None) -> Operation[Fleet]:
    """Reads the fleet with all that only metrics show."""
    found = yield from fleet(keys, parts, known)
    return replace(
        found,
        histograms=(yield from ask(histograms(keys))),
        recurring=(yield from recurring_times(keys, found)),
        info=(yield from all_allowed(info(section) for section in ("server", "memory"))) or {},
    )


STATES = ("waiting", "ready", "running", "retrying", "dead")
SCHEDULED = ("created", "kept", "replaced", "refused")
FINISHED = ("done", "retried", "mismatched", "buried", "expired", "cancelled")
HISTOGRAMS = {
    Measured.PROMOTION: ("wheelq_promotion_lateness_seconds", "From a job's due time to its promotion."),
    Measured.HELD_BACK: (
        "wheelq_held_back_seconds",
        "From a job's due time to its promotion, if its partition key was at its limit.",
    ),
    Measured.START: ("wheelq_start_lateness_seconds", "From the due time of a run to the start of its handler."),
    Measured.HANDLER: ("wheelq_handler_seconds", "How long handlers ran."),
}
Sample = tuple[str, float]
"""Labels as text, and a value. Where there are very many, the labels are made in place: a topic needs no escaping."""


def expose(
    fleet: Fleet | None,
    version: str,
    may_read: Callable[[str], bool] = lambda topic: True,
    *,
    reads_all: bool = True,
) -> str:
    """Returns the metrics of the fleet, for topics that may be read; without a fleet, only that Redis is away.

    SQL outboxes, nodes and lost workers belong to no topic: they are left out unless the reader `reads_all`.
    """
    page: list[str] = []
    info = {} if fleet is None else fleet.info
    kind = "" if not info else "valkey" if "valkey_version" in info else "redis"
    number = info.get("valkey_version", info.get("redis_version", ""))
    versions = labels_of(version=version, server=kind, server_version=number)
    gauge(page, "wheelq_build_info", "Versions of wheelq and of the server.", [(versions, 1)])
    gauge(page, "wheelq_redis_up", "Whether Redis answers.", [("", float(fleet is not None))])
    if fleet is not None:
        topics = [info for info in fleet.topics if may_read(info.name)]
        readable = {info.name for info in topics}
        _counters(page, fleet, readable)
        _gauges(page, fleet, topics)
        _groups(page, fleet, readable)
        _recurring(page, fleet, readable)
        if reads_all:
            _processes(page, fleet)
            _couriers(page, fleet)
        _server(page, fleet)
        _histograms(page, fleet, readable)
    return "".join(page)


def gauge(page: list[str], name: str, text: str, samples: Iterable[Sample], kind: str = "gauge") -> None:
    """Add the lines of a gauge to a page."""
    page.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
    page += [f"{name}{labels} {_number(value)}\n" for labels, value in samples]


counter = partial(gauge, kind="counter")


def labels_of(**labels: str) -> str:
    """Returns the labels of a sample as text."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    if '"' not in value and "\\" not in value and "\n" not in value:
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return repr(int(value) if value == int(value) else value)


def _counters(page: list[str], fleet: Fleet, topics: Collection[str]) -> None:
    counted = {topic: Counter[tuple[str, str]]() for topic in fleet.shards if topic in topics}
    for topic, sums in counted.items():
        for one in fleet.shards[topic]:
            sums.update(one.counted)

    def of(*outcomes: str) -> Iterator[tuple[str, str, str, int]]:
        for topic, sums in counted.items():
            for (outcome, group), value in sums.items():
                if outcome in outcomes:
                    yield topic, group, outcome, value

    def total(outcome: str) -> Iterator[Sample]:
        return ((f'{{topic="{topic}"}}', value) for topic, _, _, value in of(outcome) if value)

    scheduled = ((f'{{topic="{topic}",outcome="{how}"}}', n) for topic, _, how, n in of(*SCHEDULED) if n)
    counter(page, "wheelq_scheduled_total", "Jobs of schedule calls, by outcome.", scheduled)
    counter(page, "wheelq_promoted_total", "Jobs that became ready, retries among them.", total("promoted"))
    swept = "Jobs promoted by a sweep, because their hint was lost or late."
    counter(page, "wheelq_swept_total", swept, total("swept"))
    text = "Deliveries that ended; a job that was cancelled while it waited has no group."
    finished = ((labels_of(topic=topic, group=group, outcome=how), n) for topic, group, how, n in of(*FINISHED))
    counter(page, "wheelq_finished_total", text, finished)
    recovered = ((labels_of(topic=topic, group=group), n) for topic, group, _, n in of("recovered"))
    counter(page, "wheelq_recovered_total", "Deliveries taken over from workers that are gone.", recovered)
    counter(page, "wheelq_leader_changes_total", "How often another node became the leader of a shard.", total("led"))


def _gauges(page: list[str], fleet: Fleet, topics: Sequence[TopicInfo]) -> None:
    jobs = ((f'{{topic="{info.name}",state="{state}"}}', getattr(info, state)) for info in topics for state in STATES)
    gauge(
        page,
        "wheelq_jobs",
        "Jobs by state; each live one counts once, a dead one for each group that gave it up.",
        jobs,
    )
    left = ((f'{{topic="{info.name}"}}', sum(one.outgoing for one in fleet.shards[info.name])) for info in topics)
    text = "Followers of finished jobs, on their way to their topics."
    gauge(page, "wheelq_outgoing_jobs", text, (sample for sample in left if sample[1]))
    due = (
        (f'{{topic="{info.name}",within="{within}"}}', sum(one.due[n] for one in fleet.shards[info.name]))
        for info in topics
        for n, within in enumerate(WITHIN_MS)
    )
    gauge(page, "wheelq_due_jobs", "Jobs that are due within this time, including overdue ones.", due)

    def each(figure: Callable[[TopicInfo], float]) -> Iterator[Sample]:
        return ((f'{{topic="{info.name}"}}', figure(info)) for info in topics)

    text = "How long the first waiting job has been due."
    gauge(page, "wheelq_overdue_seconds", text, each(lambda info: info.overdue_ms / 1000))
    text = "Due jobs that are held back because their partition keys are at their limits."
    gauge(page, "wheelq_held_back_jobs", text, each(lambda info: info.held_back))
    text = "Partition keys with jobs that are held back; at most 100 are counted in each shard."
    gauge(page, "wheelq_keys_at_limit", text, each(lambda info: info.keys_at_limit))
    text = "How long the first job that is held back has been due."
    gauge(page, "wheelq_held_back_oldest_seconds", text, each(lambda info: info.longest_held_ms / 1000))
    gauge(page, "wheelq_topic_paused", "1 for a topic that is paused.", each(lambda info: int(info.settings.paused)))
    text = "Shards with a job that is due within half a second, or overdue, and no leader."
    gauge(page, "wheelq_shards_without_leader", text, each(lambda info: fleet.without_leader(info.name)))


def _groups(page: list[str], fleet: Fleet, topics: Collection[str]) -> None:
    groups = [(labels_of(topic=one.topic, group=one.name), one) for one in fleet.groups if one.topic in topics]
    lags = ((labels, one.lag) for labels, one in groups)
    gauge(page, "wheelq_group_lag_jobs", "Entries not yet delivered to the group.", lags)
    ages_ms = ((labels, max(0, fleet.at_ms - (one.oldest_ms or fleet.at_ms))) for labels, one in groups)
    text = "How long the oldest entry that the group has not finished has been ready. Scale workers by this."
    gauge(page, "wheelq_group_oldest_seconds", text, ((labels, ms / 1000) for labels, ms in ages_ms))
    workers = {(one.topic, one.name): one.workers for _, one in groups} | {
        place: n for place, n in fleet.serving.items() if place[0] in topics
    }
    told = ((labels_of(topic=topic, group=group), n) for (topic, group), n in workers.items())
    gauge(page, "wheelq_workers", "Live workers of each group that has ever had one.", told)


def _processes(page: list[str], fleet: Fleet) -> None:
    gauge(page, "wheelq_schedulers", "Live scheduler nodes.", [("", len(fleet.processes.nodes))])
    text = "Workers that ended without a word in the last ten minutes."
    gauge(page, "wheelq_lost_workers", text, [("", fleet.processes.lost_workers)])


def _recurring(page: list[str], fleet: Fleet, topics: Collection[str]) -> None:
    times = [
        (labels_of(topic=topic, name=name), one) for (topic, name), one in fleet.recurring.items() if topic in topics
    ]
    last = ((labels, one.last_ms / 1000) for labels, one in times if one.last_ms is not None)
    gauge(page, "wheelq_recurring_last_timestamp_seconds", "When the last occurrence was due.", last)
    following = ((labels, one.next_ms / 1000) for labels, one in times if one.next_ms is not None)
    text = "When the next occurrence that is not scheduled yet is due."
    gauge(page, "wheelq_recurring_next_timestamp_seconds", text, following)


def _couriers(page: list[str], fleet: Fleet) -> None:
    told = [(labels_of(outbox=one.place), one) for one in fleet.processes.couriers]
    if not told:
        return
    text = "1 if the courier of a SQL outbox has reported in the last 15 seconds."
    gauge(page, "wheelq_courier_up", text, ((labels, int(one.lives)) for labels, one in told))
    text = "Calls that wait in a SQL outbox, counted up to 100,000."
    gauge(page, "wheelq_courier_waiting_calls", text, ((labels, one.waiting) for labels, one in told))
    text = "How long the first call of a SQL outbox has waited."
    gauge(page, "wheelq_courier_oldest_seconds", text, ((labels, one.oldest_s) for labels, one in told))
    text = "Calls that were put aside in a SQL outbox."
    gauge(page, "wheelq_courier_aside_calls", text, ((labels, one.aside) for labels, one in told))
    text = "Calls that the courier of a SQL outbox has delivered since it started."
    counter(page, "wheelq_courier_delivered_total", text, ((labels, one.delivered) for labels, one in told))


def _server(page: list[str], fleet: Fleet) -> None:
    used, most, has = (number(fleet.info, name) for name in ("used_memory", "maxmemory", "total_system_memory"))
    limit = most or has
    text = "Memory in use, as a share of maxmemory, else of the machine's; of one master of a cluster."
    gauge(page, "wheelq_redis_memory_ratio", text, [("", round(used / limit, 6))] if limit else [])
    policy = fleet.info.get("maxmemory_policy")
    text = "1 if the server throws keys away when memory runs short; of one master of a cluster."
    gauge(page, "wheelq_redis_evicts", text, [("", float(policy != "noeviction"))] if policy else [])


def _histograms(page: list[str], fleet: Fleet, topics: Collection[str]) -> None:
    groups = {(one.topic, one.name) for one in fleet.groups}
    for measured, (name, text) in HISTOGRAMS.items():
        page.append(f"# HELP {name} {text}\n# TYPE {name} histogram\n")
        edges = [repr(bound) for bound in BOUNDS[measured]] + ["+Inf"]
        for (kind, topic, group), (total_us, *counts) in fleet.histograms.items():
            if kind is not measured or topic not in topics:
                continue
            of_group = kind not in (Measured.PROMOTION, Measured.HELD_BACK)
            if of_group and (topic, group) not in groups:  # it was removed
                continue
            labels = f'topic="{topic}"' + (f',group="{_escaped(group)}"' if of_group else "")
            below = 0
            for edge, count in zip(edges, counts, strict=True):
                below += count
                page.append(f'{name}_bucket{{{labels},le="{edge}"}} {below}\n')
            page.append(f"{name}_sum{{{labels}}} {total_us / 1_000_000}\n{name}_count{{{labels}}} {below}\n")
