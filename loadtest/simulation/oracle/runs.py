"""Promises about runs: in order, once unless a worker fails, and again soon if it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from loadtest.simulation.ledger import Promotion, Run
from loadtest.simulation.oracle.seen import JobId, Seen, promise

DEAD_S = 6.0
"""A dead worker's jobs run again within this time: 5 s are promised, and a pool may be full for a moment."""


@promise("leased")
def leased(seen: Seen) -> Iterator[str]:
    """No job is leased again before its lease has ended, and none after it was acknowledged."""
    leases: defaultdict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in seen.ledger.runs:
        came_too_late = run.outcome == "dropped" and run.leased_until < run.began  # its turn came after its lease
        if run.group == "http.lessees" and not came_too_late:
            leases[run.topic, run.id, run.entry].append(run)
    for (topic, id, _), runs in leases.items():
        for first, again in pairwise(sorted(runs, key=lambda run: run.began)):
            is_early = again.began < first.leased_until and not seen.ledger.undone
            if is_early and not seen.ledger.is_explained(first.began - 1, again.began, but=("clock", "pause")):
                left = first.leased_until - again.began
                yield f"{topic}/{id} was leased again {left:.2f} s before its lease ended ({first.outcome})"


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
                if not seen.ledger.is_explained(first.began - 15, again.began, but=("pause", "clock")):
                    where = f"on {first.worker} and {again.worker}"
                    yield f"{topic}/{id} ran again after {again.began - first.began:.2f} s, {where}"


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
    return seen.ledger.is_explained(run.began - 15, run.began)


@promise("abandoned")
def abandoned(seen: Seen) -> Iterator[str]:
    """The jobs of a killed worker run again within five seconds, or thirty if the clock was set."""
    for name, died in seen.ledger.deaths:
        for run in seen.ledger.runs:
            if run.worker != name or run.began > died or (run.ended is not None and run.ended <= died):
                continue
            same = [one for one in seen.ledger.runs if (one.topic, one.id, one.entry) == (run.topic, run.id, run.entry)]
            again = [one for one in same if one.began > died and one is not run]
            least = min((one.began for one in again), default=None)
            if least is not None and least - died > _patience(seen, died, least):
                yield f"{run.topic}/{run.id} of {name}, killed at {died:.2f}, ran again {least - died:.2f} s later"


def _patience(seen: Seen, died: float, again: float) -> float:
    """Returns how long a job of a dead worker may wait; other faults may explain more."""
    others = [one for one in seen.ledger.troubles if one.kind not in ("kill-worker", "reshard")]
    until = max((one.ends for one in others if one.begins <= again and one.ends >= died), default=died)
    return max(DEAD_S, until - died)
