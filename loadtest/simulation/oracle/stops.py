"""Promises about workers that stop and about outboxes, judged where nothing else is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loadtest.simulation.ledger import Call
from loadtest.simulation.oracle.seen import Seen, promise
from loadtest.simulation.oracle.times import NEARLY_S
from loadtest.simulation.plan import WEB

HANDLING = ("single", "result")
KEEPING = ("aside", "outages", "keeping")
"""The traits whose jobs an outbox keeps, and nothing else moves."""
DELIVERED_S = 2.0
"""While its producer reaches the server, an outbox delivers a job within this time."""
PAST_S = 5.0
"""What was wrong so long before a call may still hold up its outbox."""


@promise("settled")
def settled(seen: Seen) -> Iterator[str]:
    """A worker that stops while nothing else is wrong has acknowledged all that it has run."""
    topics = {one.name for one in seen.plan.topics if one.handling in HANDLING}
    for name, at in seen.ledger.stops:
        own = [one for one in seen.ledger.troubles if one.kind == "restart-worker" and one.whom == name]
        asked = max((one.begins for one in own if one.begins <= at), default=at)
        others = [
            one for one in seen.ledger.troubles if one not in own and one.kind not in ("node", "reshard", "pause")
        ]
        if seen.ledger.undone or any(one.begins <= at and one.ends >= asked - 1.0 for one in others):
            continue
        for run in seen.ledger.runs:
            if run.worker != name or run.topic not in topics or run.outcome != "done" or run.ended is None:
                continue
            acked = seen.ledger.acks.get((run.group, run.topic, run.entry), math.inf)
            if asked - 1.0 <= run.ended <= at < acked:
                yield f"{run.topic}/{run.id} has run in {name}, which left at {at:.2f} and did not say so"


@promise("dated")
def dated(seen: Seen) -> Iterator[str]:
    """The delay of a kept job counts from its call, to the millisecond, where its producer knows the server's clock."""
    wrong = {one.whom for one in seen.ledger.troubles if one.kind == "lasting"}
    slow = min((one.begins for one in seen.ledger.troubles if one.kind == "slow-network"), default=math.inf)
    heard: dict[str, float] = {}
    for one in seen.ledger.calls if len(seen.ledger.clock) == 1 else ():
        who = one.step.who
        if one.outcome in ("created", "replaced"):
            heard.setdefault(who, one.answered)
        if one.outcome != "kept" or "delay" not in one.step.args or who in (WEB, *wrong):
            continue  # the service may look at the topic first, before the delay counts
        has_died = any(name == who and at < one.sent for name, at in seen.ledger.deaths)
        if has_died or one.sent <= heard.get(who, math.inf):
            continue
        yield from _wrong(one, most_ms=NEARLY_S * 1000 if one.sent < slow else math.inf)


def _wrong(one: Call, most_ms: float) -> Iterator[str]:
    passed_us = one.due_ms * 1000 - round(one.step.args["delay"] * 1000) * 1000 - one.asked_us
    if not 0 <= passed_us <= most_ms * 1000:
        yield f"{one.topic}/{one.id} was kept {one.answered - one.sent:.2f} s after its call, and is {passed_us} µs off"


@promise("held up")
def held_up(seen: Seen) -> Iterator[str]:
    """An outbox whose producer reaches the server delivers soon, whatever becomes of the jobs of other topics."""
    topics = {one.name for one in seen.plan.topics if one.trait in KEEPING}
    for (topic, id), history in seen.jobs.items():
        if topic not in topics or [one.outcome for one in history.calls] != ["kept"] or not history.promotions:
            continue
        call, stored = history.calls[0], history.promotions[0].waits_since
        troubles = [one for one in seen.ledger.troubles if one.whom in ("", call.step.who, topic)]
        was_wrong = any(one.begins <= stored and one.ends >= call.sent - PAST_S for one in troubles)
        if stored - call.answered > DELIVERED_S and not was_wrong and not seen.ledger.undone:
            yield f"{topic}/{id} was kept for {stored - call.answered:.2f} s, and nothing was wrong"
