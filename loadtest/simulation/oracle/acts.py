"""The records of one job as acts, whose order `linear` searches: calls, promotions, and the ends of lives.

A refused call is no act, because it has done nothing. The end of a life is seen from outside: the id is free at some
time after every group has run the job to its end, or somebody has found it dead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from loadtest.simulation.ledger import Call, Promotion
from loadtest.simulation.oracle.linear import ANY, INFINITE, MOST_CALLS, UNKNOWN, Act, Span
from loadtest.simulation.oracle.seen import History, Seen

OTHERS = ("grave", "lives", "fleeting", "leased", "called")
"""Topics whose jobs live again by calls that are not about one id, or end without a run of a worker."""
DUPLICATE = "refused: DuplicateJob"
SAME = {DUPLICATE: "there", "may expire": "created", "moved": "rescheduled"}
"""Outcomes that say the same of one id as others."""
ENDED = ("done", "Bury")


def acts_of(seen: Seen, topic: str, history: History) -> list[Act]:
    """Returns the acts about a job; none if they cannot be judged.

    Writes were lost, or answers were forgotten before a call was repeated, or there are too many calls.
    """
    calls = [one for one in history.calls if one.outcome == DUPLICATE or not one.outcome.startswith("refused")]
    if topic in OTHERS or len(calls) > MOST_CALLS or _was_undone(seen, history) or any(map(seen.may_be_new, calls)):
        return []
    acts = [_call(seen, one, calls) for one in calls]
    for one in (one for one in history.promotions if not one.group):
        acts.append(Act("promotion", one.at, one.at, "", (one.due_ms, one.due_ms)))
        acts += _end(seen, history, one)
    return acts


def _was_undone(seen: Seen, history: History) -> bool:
    spans = [(one.sent, seen.ended if one.answered == INFINITE else one.answered) for one in history.calls]
    spans += [(one.waits_since, one.at) for one in history.promotions]
    return bool(spans) and seen.ledger.was_undone(min(spans)[0] - 1.0, max(end for _, end in spans) + 1.0)


def _call(seen: Seen, call: Call, calls: list[Call]) -> Act:
    is_change = any(one.step is call.step and one.sent < call.sent for one in calls)  # of many jobs, by their due time
    does = ("reschedule" if call.step.args["is_move"] else "cancel") if is_change else _verb(call)
    due = ANY if is_change and call.outcome != "moved" else _due(seen, call)
    if not call.is_known:
        return Act(
            does,
            call.sent,
            INFINITE,
            UNKNOWN,
            due,
            call.step.who,
            call.answered if call.outcome == "kept" else INFINITE,
        )
    outcome = SAME.get(call.outcome, call.outcome)
    return Act(does, call.sent, call.answered, outcome, due, call.step.who)


def _verb(call: Call) -> str:
    kind = re.sub(r"^(blunt|http|rival|asked|share|kept\d|outage\d?|aside\d)-", "", call.step.kind)
    return ("replace" if kind == "replace" else "schedule") if call.makes else kind


def _due(seen: Seen, call: Call) -> Span:
    """Returns in which milliseconds the due time lies that a call gives its job, or has read."""
    if call.outcome in ("created", "replaced", "moved", "may expire", "waiting"):
        return call.due_ms, call.due_ms
    if seen.was_clock_stepped(call):
        return ANY
    until = call.answered if call.is_known else INFINITE
    jobs = call.step.args.get("jobs", ())
    delay = next((job["delay"] for job in jobs if job["id"] == call.id), call.step.args.get("delay", 0.0))
    asked_ms = call.asked_us / 1000 + delay * 1000
    return asked_ms - 6.0, asked_ms + (until - call.sent) * 1010 + 2.0


def _end(seen: Seen, history: History, one: Promotion) -> Iterator[Act]:
    """Yields the end of the life that a promotion has begun, if it was seen: not before each group has finished it."""
    died = [at for at in seen.ledger.dead.get((one.topic, one.id), ()) if at >= one.at]
    groups = next((topic.groups for topic in seen.plan.topics if topic.name == one.topic), ())
    is_vague = bool(seen.ledger.undone) or any(call.step.kind == "expiring" for call in history.calls)
    ends: list[float] = []
    for group in groups:
        runs = [run for run in history.runs if run.group == group and run.began >= one.at and run.outcome in ENDED]
        found = [run.ended for run in runs if run.ended is not None] + died
        ends += [min(found)] if found else [one.at] if is_vague else [INFINITE]
    if ends and max(ends) < INFINITE:
        yield Act("end", max(ends), INFINITE, "")
