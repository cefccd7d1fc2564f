"""Promises about times: never early, soon after the due time, started at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from loadtest.simulation.ledger import Call, Promotion, Run
from loadtest.simulation.oracle.excuses import TAKEN_S
from loadtest.simulation.oracle.seen import ALONE, GROUPS, RUNS_NOW, SOON_S, History, Seen, promise
from loadtest.simulation.world import EPOCH_S

NEARLY_S = 0.25
"""The largest error of an outbox's estimate of the server's clock."""
WRONG_MS = 5.0
"""By how much the wall clock of a producer is wrong that has not heard the server since it was started."""
AT_ONCE = {"single": SOON_S, "thread": SOON_S, "batch": 2.0}
"""By kind of handler, how soon a job starts; a batch waits for the one before."""
NEARLY_SOON_S = 0.6
"""What a job may wait besides for a place."""
HEDGED_S = 1.0
"""A leader that is slow, or whose clock is wrong, is helped by its standby."""
SLOW_S = 6.0
"""Leader and standby may both have a slow network: a packet of theirs takes up to 2.4 s."""
NEW_S = 4.0
"""How much longer it takes then until a topic is served that was made again: they read and assign it first."""
SETS_DUE = ("created", "replaced", "rescheduled", "moved")


@promise("early")
def early(seen: Seen) -> Iterator[str]:
    """No job is promoted or started before it is due by the server's clock."""
    for (topic, id), history in seen.jobs.items():
        for one in history.promotions:
            if one.server_us < one.due_ms * 1000:
                yield f"{topic}/{id} was promoted {one.due_ms - one.server_us / 1000:.1f} ms before it was due"
        for run in history.runs:
            early_ms = run.due_ms - run.server_us / 1000
            if early_ms > 0 and early_ms > 1000 * _set_back_s(seen, history, run):
                yield f"{topic}/{id} attempt {run.attempt} started {early_ms:.1f} ms early"
        yield from _before_the_promise(seen, topic, id, history)


def _set_back_s(seen: Seen, history: History, run: Run) -> float:
    """Returns by how many seconds the server's clock was set back between the promotion of an entry and its run."""
    promoted = next((one.at for one in history.promotions if one.entry == run.entry), 0.0)
    steps = [(at, before - after) for (_, before, _), (at, after, _) in pairwise(seen.ledger.clock)]
    return sum(max(by, 0.0) for at, by in steps if promoted <= at <= run.began)


def _before_the_promise(seen: Seen, topic: str, id: str, history: History) -> Iterator[str]:
    """No job is promoted before the earliest time that a producer was promised."""
    if seen.ledger.undone or any(one.outcome in ("promoted", "paused", "held_back") for one in history.calls):
        return
    least = [bound for one in _in_force(history) if (bound := _earliest_ms(seen, one)) is not None]
    first = [one for one in history.promotions if one.attempt == 1 and not one.group]
    if least and first and first[0].server_us / 1000 < min(least) - 1:
        yield f"{topic}/{id} was promoted {min(least) - first[0].server_us / 1000:.0f} ms before what was promised"


def _in_force(history: History) -> list[Call]:
    """Returns the calls that may have set the first due time; only the last if their order is known."""
    if history.is_muddled or not history.promotions:
        return history.calls
    promoted = min(one.at for one in history.promotions)
    during = [one for one in history.calls if one.sent <= promoted <= one.answered]
    before = [one for one in history.calls if one.answered < promoted and one.outcome in SETS_DUE]
    return before[-1:] if before and not during else history.calls


def _earliest_ms(seen: Seen, call: Call) -> float | None:
    """Returns the earliest due time that a call asked for; None if it asked for none."""
    if call.outcome == "moved":
        return call.due_ms
    if call.step.kind in RUNS_NOW and call.outcome in ("unknown", "unanswered"):
        return call.asked_us / 1000  # it may have promoted the job
    if call.step.kind == "due-range" and call.outcome == "unanswered":
        return call.asked_us / 1000  # it may have moved the job, for instance a job that the outbox delivered late
    if "delay" in call.step.args or "jobs" in call.step.args:
        delay = next(
            (job["delay"] for job in call.step.args.get("jobs", ()) if job["id"] == call.id),
            call.step.args.get("delay"),
        )
        if call.outcome.startswith("refused"):
            return None
        if seen.was_clock_stepped(call):
            return 0.0
        return call.asked_us / 1000 + float(delay or 0) * 1000
    return None


def _arrived(seen: Seen, call: Call) -> float:
    """Returns when a call has reached the server at the latest.

    A call that was sent while the producer was cut off arrives afterwards, although its job is in the outbox by then.
    """
    cut = [one for one in seen.excuses.troubles if one.kind == "partition" and one.whom == call.step.who]
    during = [one.over for one in cut if one.begins <= call.answered and call.sent <= one.over]
    return max([call.answered, *during]) if call.outcome == "kept" else call.answered


@promise("misdated")
def misdated(seen: Seen) -> Iterator[str]:
    """A delay counts from the call, by the server's clock, also where an outbox has kept the job."""
    heard: dict[str, float] = {}  # when each producer first heard the server
    for one in seen.ledger.calls:
        if one.outcome in ("created", "replaced"):
            heard.setdefault(one.step.who, one.answered)
        if one.outcome not in ("created", "replaced", "kept") or "delay" not in one.step.args:
            continue
        if seen.was_clock_stepped(one):
            continue
        due_ms, history = one.due_ms, seen.jobs[one.topic, one.id]
        if one.outcome == "kept" and history.calls == [one] and history.promotions:
            due_ms = history.promotions[0].due_ms  # the receipt's is an estimate, which the delivery has corrected
        passed_ms = due_ms - one.step.args["delay"] * 1000 - one.asked_us / 1000
        has_died = any(name == one.step.who and at < one.sent for name, at in seen.ledger.deaths)
        is_new = has_died or one.sent <= heard.get(one.step.who, math.inf)
        least_ms, most_ms = (
            -WRONG_MS if is_new and one.outcome == "kept" else -1.0,
            (_arrived(seen, one) - one.sent + NEARLY_S) * 1000,
        )
        if not least_ms <= passed_ms <= most_ms:
            yield f"{one.topic}/{one.id} ({one.outcome}) is due {passed_ms:.0f} ms later than was asked for"


def _limited(seen: Seen) -> set[str]:
    """Returns the topics whose limits hold jobs back; see also `starved`."""
    limits = {"max_rate", "key_concurrency"}
    return {one.name for one in seen.plan.topics if one.name == "limit" or limits & one.settings.keys()}


@promise("late")
def late(seen: Seen) -> Iterator[str]:
    """Jobs are promoted when they are due, and started soon after; a fault explains lateness for its time."""
    limited = _limited(seen)
    for one in seen.ledger.promotions:
        due = seen.reached(one.due_ms, _due_since(seen, one))
        for begins, _, _ in seen.ledger.clock:  # perhaps set back before it was promoted
            if due < begins <= one.at and seen.excuses.explain("late", due + SOON_S, begins, (*seen.nodes, one.topic)):
                due = seen.reached(one.due_ms, begins)
        if one.topic in limited or (one.topic, one.id) in seen.ledger.unannounced or one.at - due <= SOON_S:
            continue
        undone = seen.undone_until(due)  # a promotion in time may have been undone
        if seen.excuses.explain("late", max(due + SOON_S, undone), one.at, (*seen.nodes, one.topic)):
            continue
        yield f"{one.topic}/{one.id} was promoted {one.at - due:.2f} s late, at {one.at:.2f}"


def _due_since(seen: Seen, one: Promotion) -> float:
    """Returns since when the job has had its due time: since it waits, or since a `run_now` that promoted it."""
    in_force = [
        sent
        for sent in seen.asked_now((one.topic, one.id))
        if sent <= one.at and (seen.server_time(sent) + EPOCH_S) * 1000 <= one.due_ms + 1
    ]
    return max([one.waits_since, *in_force])


@promise("slow")
def slow(seen: Seen) -> Iterator[str]:
    """A promoted job starts at once if workers have room."""
    easy = {topic.name: AT_ONCE[topic.handling] for topic in seen.plan.topics if topic.handling in AT_ONCE}
    first: dict[tuple[str, str, str, str], Run] = {}
    for run in seen.ledger.runs:
        first.setdefault((run.group, run.topic, run.id, run.entry), run)
    for one in seen.ledger.promotions:
        for group in GROUPS if one.topic in easy else ():
            begun, soon = first.get((group, one.topic, one.id, one.entry)), one.at + easy[one.topic]
            is_alone = group in ALONE
            full_s = 0.0 if is_alone else seen.full_s(one.at)
            if begun is None or begun.began <= soon + max(full_s, NEARLY_SOON_S):
                continue
            whom = seen.holders(begun)
            parts = (*whom, one.topic)
            spans = (soon, begun.began - full_s), (soon + full_s, begun.began)  # a place was missing last, or first
            if not any(seen.excuses.explain("slow", *span, parts, is_alone=is_alone) for span in spans):
                took, held = begun.began - one.at, " and ".join(whom) or "none"
                yield f"{one.topic}/{one.id} was started {took:.2f} s after it was promoted; {held} had it"


@promise("stuck")
def stuck(seen: Seen) -> Iterator[str]:
    """Beside a healthy node and healthy workers, faults that stay cost a job a moment, once the fleet knows of them."""
    lasting = [one for one in seen.ledger.troubles if one.kind == "lasting" and not one.whom]
    limited = _limited(seen)
    easy = {topic.name: AT_ONCE[topic.handling] for topic in seen.plan.topics if topic.handling in AT_ONCE}
    are_slow = bool(seen.ledger.slow.intersection(seen.nodes))
    made_again = {step.args["topic"] for step in seen.plan.steps if step.kind == "remake" and are_slow}
    helped_s = HEDGED_S + (SLOW_S if are_slow else 0.0)
    first: dict[tuple[str, str, str, str], Run] = {}
    for run in seen.ledger.runs if lasting else ():
        first.setdefault((run.group, run.topic, run.id, run.entry), run)
    for one in seen.ledger.promotions if lasting else ():
        due = seen.reached(one.due_ms, _due_since(seen, one))
        if due < lasting[0].ends or one.topic in limited:
            continue
        by, whom = due + helped_s + (NEW_S if one.topic in made_again else 0.0), (one.topic,)
        if one.at > by and not seen.excuses.explain("stuck", by, one.at, whom, but=("lasting",)):
            yield f"{one.topic}/{one.id} was promoted {one.at - due:.2f} s late beside a healthy node"
        for group in GROUPS if one.topic in easy else ():
            begun, by = first.get((group, one.topic, one.id, one.entry)), one.at + easy[one.topic] + TAKEN_S
            if begun is None or begun.began <= by:
                continue
            if not seen.excuses.explain("stuck", by, begun.began, whom, but=("lasting",)):
                yield f"{one.topic}/{one.id} was started {begun.began - one.at:.2f} s after it was promoted"
