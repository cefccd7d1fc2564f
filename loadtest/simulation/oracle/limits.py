"""Promises about what a topic's settings hold back: a pause, a rate; and about how long finished jobs are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from loadtest.simulation.ledger import Call, Promotion
from loadtest.simulation.oracle.seen import Seen, promise
from loadtest.simulation.plan import PAUSES

BURST_S, MOST_SHARDS = 0.1, 4
CHANGES = ("configure", "share-limits")
STARTED_S = 4.0
"""From then on the settings of the plan are in force, unless they were changed before."""
Span = tuple[float, float]


@promise("paused")
def paused(seen: Seen) -> Iterator[str]:
    """Nothing is promoted from when a pause was answered until its topic is resumed; see also `late`."""
    for topic in seen.plan.topics:
        spans = list(_pauses(seen, topic.name))
        for one in seen.ledger.promotions if spans else ():
            if one.topic == topic.name and (held := [span for span in spans if span[0] < one.at < span[1]]):
                yield f"{one.topic}/{one.id} was promoted {one.at - held[0][0]:.3f} s after its topic was paused"


def _pauses(seen: Seen, topic: str) -> Iterator[Span]:
    """Yields when a topic was certainly paused. A step pauses it first, and later resumes it."""
    calls = [one for one in seen.ledger.calls if one.step.kind in PAUSES and one.topic == topic]
    began: set[int] = set()
    pauses: list[Call] = []
    resumes: list[Call] = []
    for one in sorted(calls, key=lambda one: one.sent):
        (resumes if one.step.number in began else pauses).append(one)
        began.add(one.step.number)
    for one in pauses:
        may_end = [other.sent for other in resumes if other.answered > one.sent]
        if one.outcome == "done" and not seen.ledger.was_undone(one.sent - 1, one.answered):
            yield one.answered, min(may_end, default=float("inf"))


@promise("faster")
def faster(seen: Seen) -> Iterator[str]:
    """A topic with `max_rate` promotes no more than that, apart from a burst of a tenth of a second in each shard."""
    for topic in seen.plan.topics:
        for rate, (begins, ends) in in_force(seen, topic.name, topic.settings, "max_rate"):
            burst = MOST_SHARDS * max(1, int(rate * BURST_S))
            found = [one for one in _limited(seen, topic.name) if begins < one.at < ends] if rate else []
            yield from (f"{topic.name} promoted {what}" for what in _above(found, rate, burst))


def _above(found: list[Promotion], rate: float, burst: int) -> Iterator[str]:
    """Yields the first stretch of promotions that is above the rate."""
    for n, first in enumerate(found):
        for count, last in enumerate(found[n + burst + 1 :], start=burst + 1):
            seconds = (last.server_us - first.server_us) / 1_000_000
            if count > rate * seconds + burst:
                yield f"{count} jobs in {seconds:.2f} s from {first.at:.2f}, with {rate} a second"
                return


@promise("crowded")
def crowded(seen: Seen) -> Iterator[str]:
    """No job is promoted beside `max_ready` unread ones, or stored beside `max_pending` waiting ones."""
    resharded = {one.topic for one in seen.ledger.calls if one.step.kind == "set-shards"}
    for topic in seen.plan.topics:
        shards = 1 if topic.name in resharded else topic.settings.get("shards", 1)
        # A topic is made with one shard. Until that number is drained, each number has half of a limit.
        share = (1 + 1 / shards) / 2
        for most, (begins, ends) in in_force(seen, topic.name, topic.settings, "max_ready"):
            for one in _limited(seen, topic.name) if most else ():
                if begins < one.at < ends and one.unread > max(1, int(most * share)):
                    yield f"{topic.name}/{one.id} was promoted at {one.at:.2f} as the {one.unread}. unread job"
        for most, (begins, ends) in in_force(seen, topic.name, topic.settings, "max_pending"):
            for name, _, at, count in seen.ledger.waiting if most and topic.name not in resharded else ():
                if name == topic.name and begins < at < ends and count > max(1, most // shards):
                    yield f"{topic.name} has taken a job at {at:.2f}: {count} jobs wait in its shard"


def _limited(seen: Seen, topic: str) -> list[Promotion]:
    """Returns the promotions of a topic, without those that a call has asked for."""
    return [one for one in seen.ledger.promotions if one.topic == topic and not seen.asked_now((topic, one.id))]


def in_force(
    seen: Seen, topic: str, settings: Mapping[str, Any], name: str, *, perhaps: bool = False
) -> Iterator[tuple[float, Span]]:
    """Yields the values of a setting, each with a time in which it was in force and the server's clock ran on.

    `perhaps`: the time in which it may have been in force, from when a change was sent until the next one was answered.
    """
    changes = [one for one in seen.ledger.calls if one.step.kind in CHANGES and name in one.step.args["change"]]
    changes = sorted((one for one in changes if one.topic == topic), key=lambda one: one.sent)
    steps = [since for since, _, _ in seen.ledger.clock[1:]]
    begins = min([STARTED_S, *(one.sent for one in changes)]) if perhaps else STARTED_S
    values = [(begins, float(settings.get(name, 0)))]
    values += [(one.sent if perhaps else one.answered, float(one.step.args["change"][name])) for one in changes]
    ends = [*(one.answered if perhaps else one.sent for one in changes), float("inf")]
    has_crossed = any(one.answered > other.sent for one, other in pairwise(changes))
    if has_crossed or seen.ledger.undone or any(one.outcome != "done" for one in changes):
        return
    for (begins, value), end in zip(values, ends, strict=True):
        marks = [begins, *(at for at in steps if begins < at < end), end]
        yield from ((value, span) for span in pairwise(marks))


@promise("forgotten")
def forgotten(seen: Seen) -> Iterator[str]:
    """A finished job is kept for `keep_done_ms`, if the setting has not changed."""
    for topic in seen.plan.topics:
        kept_s = topic.settings.get("keep_done_ms", 0) / 1000
        if any(_keeps_less(one, topic.name) for one in seen.ledger.calls) or len(seen.ledger.clock) > 1:
            continue
        for one in seen.ledger.forgotten:
            if one.topic == topic.name and one.seconds < kept_s and not seen.undone_until(one.ended):
                what = f"{one.topic}/{one.id} was forgotten at {one.at:.2f}"
                yield f"{what}, after {one.seconds:.2f} s instead of {kept_s:.0f} s"


def _keeps_less(call: Call, topic: str) -> bool:
    return call.step.kind == "configure" and call.topic == topic and "keep_done_ms" in call.step.args["change"]
