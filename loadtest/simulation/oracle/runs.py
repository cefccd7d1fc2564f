"""Promises about runs: in order, once unless a worker fails, and again soon if it does."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.simulation.ledger import Promotion, Run, part_of
from loadtest.simulation.oracle.seen import ALONE, SOON_S, JobId, Seen, promise
from loadtest.simulation.plan import WEB
from loadtest.simulation.receiver import NAME
from wheelq.worker.delivery.recovery import LOOK_EVERY

DEAD_S = 6.0
"""A dead worker's jobs run again within this time: 5 s are promised, and a pool may be full for a moment."""

SENT_S = 1.0
"""A call that takes deliveries was sent no longer ago than this, so its worker knew what it had read before."""
SILENT_S = 3.48
"""A worker whose heartbeat has not changed for `abandoned_ms` is gone; clocks differ a little."""
LEASING = ("http.lessees", "http.askers")
"""The groups of lessees."""
NOT_REPEATED = ("pause", "clock", "reshard")


@promise("leased")
def leased(seen: Seen) -> Iterator[str]:
    """No job is leased again before its lease has ended, and none after it was acknowledged."""
    leases: defaultdict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in seen.ledger.runs:
        came_too_late = run.outcome == "dropped" and run.leased_until < run.began  # its turn came after its lease
        if run.group in LEASING and not came_too_late:
            leases[run.topic, run.id, run.entry].append(run)
    for (topic, id, _), runs in leases.items():
        for first, again in pairwise(sorted(runs, key=lambda run: run.began)):
            is_early = again.began < first.leased_until and not seen.ledger.undone
            ended = again.began if first.ended is None else min(first.ended + 1.0, again.began)
            if is_early and not seen.excuses.explain_at("leased", ended, (WEB,), but=("clock", "pause", "reshard")):
                left = first.leased_until - again.began
                yield f"{topic}/{id} was leased again {left:.2f} s before its lease ended ({first.outcome})"


@promise("taken")
def taken(seen: Seen) -> Iterator[str]:
    """No worker takes a delivery from another that it has seen alive in the last seconds."""
    beats, left = seen.ledger.beats, seen.ledger.left
    for hand in seen.ledger.hands:
        if not beats.get(hand.before) or hand.was_given or left.get(hand.before, float("inf")) <= hand.at:
            continue
        looked = _last(beats[hand.consumer], hand.at - SENT_S)
        beaten = _last(beats[hand.before], looked)
        silent = hand.at - beaten
        if any(one.kind == "lasting" and one.whom == hand.worker for one in seen.ledger.troubles):
            continue  # its clock may be wrong
        if silent < SILENT_S and not any(
            one.begins <= hand.at and one.ends >= beaten - 15 for one in seen.ledger.undone
        ):
            what = f"{hand.topic}/{hand.entry} of {part_of(hand.before)}"
            yield f"{hand.worker} took {what} at {hand.at:.2f}, {silent:.2f} s after its last heartbeat"


def _last(times: Sequence[float], before: float) -> float:
    """Returns the last of some times before another one."""
    place = bisect_left(times, before)
    return times[place - 1] if place else float("-inf")


@promise("repeated")
def repeated(seen: Seen) -> Iterator[str]:
    """A delivery runs again only after a fault of its worker."""
    for (topic, id), history in seen.jobs.items():
        by_entry: defaultdict[tuple[str, str, int], list[Run]] = defaultdict(list)
        for run in history.runs:
            by_entry[run.group, run.entry, run.attempt].append(run)
        for runs in by_entry.values():
            for first, again in pairwise(runs):
                has_ended = first.ended is not None and first.ended <= again.began
                if has_ended and first.outcome in ("RetryAfter", "ValueError"):  # an ordered job keeps its entry
                    continue
                if not _is_known_to_repeat(seen, first, again):
                    where = f"on {first.worker} and {again.worker}"
                    yield f"{topic}/{id} ran again after {again.began - first.began:.2f} s, {where}"


def _is_known_to_repeat(seen: Seen, first: Run, again: Run) -> bool:
    """Whether a fault explains that a delivery ran again: from the end of its first run on, if it has ended."""
    whom = (first.worker, again.worker, *((NAME, WEB) if first.group == "callbacks" else ()))
    moments = (first.ended or again.began, first.began, seen.delivered(first))
    undone = max(map(seen.undone_until, moments))
    if undone and undone <= again.began:
        if first.worker == again.worker and again.began <= undone + LOOK_EVERY + DEAD_S:
            return True  # it was told that it is acknowledged, and finds out at its next look
        if seen.excuses.explain("repeated", undone, again.began, whom, but=NOT_REPEATED):
            return True
        # Its worker still has it without knowing that, and lost it to another one by a later fault.
        return _is_by_a_fault(seen, again, whom)
    if first.ended is None or first.ended >= again.began or first.outcome == "CancelledError":
        return _is_by_a_fault(seen, again, whom)
    return seen.excuses.explain("repeated", first.ended + SOON_S, again.began, whom, but=NOT_REPEATED)


def _is_by_a_fault(seen: Seen, run: Run, whom: Sequence[str]) -> bool:
    """Whether there was a fault when a run began, or before the pause that held it up.

    Deliveries of a paused topic are not taken over.
    """
    pauses = [one for one in seen.ledger.troubles if one.kind == "pause" and one.whom == run.topic]
    begins = [run.began, *(one.begins for one in pauses if one.begins <= run.began <= one.ends)]
    return any(seen.excuses.explain_at("repeated", at, whom, but=NOT_REPEATED) for at in (run.began, min(begins)))


@promise("order")
def order(seen: Seen) -> Iterator[str]:
    """In an ordered topic no job starts before the previous one has ended for good."""
    topic = next((one for one in seen.plan.topics if one.handling in ("ordered", "keyed")), None)
    if topic is None or seen.ledger.undone:
        return
    lanes: defaultdict[tuple[int, str], list[Promotion]] = defaultdict(list)
    keys = {one.id: one.partition_key for one in _drawn(seen)}
    for one in seen.ledger.promotions:
        if one.topic == topic.name:
            lanes[one.shard, (keys.get(one.id) or one.id) if topic.handling == "keyed" else ""].append(one)
    runs: defaultdict[JobId, list[Run]] = defaultdict(list)  # two shards may have entries of the same name
    for run in seen.ledger.runs:
        if run.topic == topic.name:
            runs[run.id, run.entry].append(run)
    for promotions in lanes.values():
        for before, after in pairwise(promotions):
            if after.due_ms < before.due_ms:  # the clock was set back between them, and order is by due time
                continue
            if runs[before.id, before.entry] and runs[after.id, after.entry]:
                last, first = runs[before.id, before.entry][-1], runs[after.id, after.entry][0]
                if first.began < last.began and not _was_hurt(seen, last):
                    ahead = last.began - first.began
                    yield f"{topic.name}/{after.id} began {ahead:.3f} s before {before.id} began last"


@dataclass(frozen=True, slots=True)
class _Keyed:
    id: str
    partition_key: str | None


def _drawn(seen: Seen) -> Iterator[_Keyed]:
    for step in seen.plan.steps:
        if "payload" in step.args:
            yield _Keyed(step.args["id"], step.args["partition_key"])
        for job in step.args.get("jobs", ()):
            yield _Keyed(job["id"], job["partition_key"])


def _was_hurt(seen: Seen, run: Run) -> bool:
    return seen.excuses.explain_at("order", run.began, (run.worker, *seen.holders(run), run.topic))


@promise("abandoned")
def abandoned(seen: Seen) -> Iterator[str]:
    """The jobs of a worker that was killed or has stopped run again soon."""
    gone = [(*one, "killed") for one in seen.ledger.deaths] + [(*one, "stopped") for one in seen.ledger.stops]
    in_order = {topic.name for topic in seen.plan.topics if topic.handling == "ordered"}
    for name, at, how in gone:
        for run in seen.ledger.runs:
            if run.worker != name or run.began > at or _has_ended(run, at):
                continue
            same = [one for one in seen.ledger.runs if (one.topic, one.id, one.entry) == (run.topic, run.id, run.entry)]
            again = [one for one in same if one.began > at and one is not run and one.group == run.group]
            least = min(again, key=lambda one: one.began, default=None)
            is_alone = run.group in ALONE
            soon_s = DEAD_S + (0.0 if is_alone else seen.full_s(at))
            if least is None or least.began - at <= soon_s:
                continue
            if run.topic in in_order and _goes_on(seen, run, at) <= at + soon_s:
                continue
            own = ("reshard",) if is_alone else ("reshard", "kill-worker", "restart-worker")
            whom = (name, least.worker, run.topic)
            due = at + soon_s
            if not seen.excuses.explain("abandoned", due, least.began, whom, but=own, is_alone=is_alone):
                yield f"{run.topic}/{run.id} of {name}, {how} at {at:.2f}, ran again {least.began - at:.2f} s later"


def _goes_on(seen: Seen, run: Run, at: float) -> float:
    """Returns when the first job began that runs before this one in order, after a worker had gone."""
    before = [one for one in seen.ledger.runs if one.topic == run.topic and one.due_ms <= run.due_ms]
    return min((one.began for one in before if one.group == run.group and one.began > at), default=float("inf"))


def _has_ended(run: Run, at: float) -> bool:
    """Whether a run had ended by itself then."""
    return run.ended is not None and run.ended <= at and run.outcome != "CancelledError"
