"""Promises about failures: the pause before the next attempt, how many there are, and that the last one is the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from loadtest.simulation.ledger import Run
from loadtest.simulation.oracle.seen import SOON_S, Seen, promise
from loadtest.simulation.plan import TopicPlan
from loadtest.simulation.world import EPOCH_S

AGAIN_S = 0.4
"""The pause that a handler asks for itself."""
TOLD_S = 0.6
"""A worker has told that a job has failed after this time, if nothing is wrong."""
COUNTED = ("ValueError", "Misbehaved")
ENDED = ("done", "Bury")


@promise("put off")
def put_off(seen: Seen) -> Iterator[str]:
    """In order, a failed job waits out its pause with the next holder, too, if nothing was wrong when it failed."""
    delays = {one.name: one.retry_delays for one in seen.plan.topics if one.handling == "ordered"}
    runs: defaultdict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in seen.ledger.runs if not seen.ledger.undone else ():
        if run.topic in delays:
            runs[run.topic, run.id, run.entry].append(run)
    for (topic, id, _), attempts in runs.items():
        for first, again in pairwise(attempts):
            if first.outcome not in COUNTED or first.ended is None or first.attempt > len(delays[topic]):
                continue
            if any(first.began <= since <= again.began for since, _, _ in seen.ledger.clock[1:]):
                continue
            passed, pause = again.began - first.ended, delays[topic][first.attempt - 1]
            was_told = not seen.ledger.is_explained(
                first.began, first.ended + TOLD_S, but=("reshard", "pause"), whom=first.worker
            )
            if TOLD_S < passed < pause - SOON_S and was_told:
                where = f"on {again.worker} after {first.worker}"
                yield f"{topic}/{id} ran again {passed:.2f} s after it had failed, {where}, instead of {pause} s"


@promise("retried")
def retried(seen: Seen) -> Iterator[str]:
    """A job that fails runs again after its topic's pause, as the next attempt, until it has none left."""
    topics = {one.name: one for one in seen.plan.topics if one.handling not in ("leased", "called")}
    runs: defaultdict[tuple[str, str, str, int], list[Run]] = defaultdict(list)
    shards = {(one.topic, one.id, one.entry): one.shard for one in seen.ledger.promotions}
    for run in seen.ledger.runs if not seen.ledger.undone else ():
        if run.topic in topics:  # after a reshard, two shards may have a job with one id; a retry stays in its shard
            runs[run.topic, run.id, run.group, shards.get((run.topic, run.id, run.entry), 0)].append(run)
    for (topic, id, group, _), attempts in runs.items():
        failed = {run.attempt for run in attempts if run.outcome not in ENDED}
        for first, again in pairwise(attempts):
            if first.outcome in ENDED and again.attempt > first.attempt and again.attempt - 1 not in failed:
                yield f"{topic}/{id} in {group} ran again as attempt {again.attempt} although it was {first.outcome}"
            if any(
                _has_failed_before(one, first) for one in attempts
            ):  # it ran twice, and the other run was told first
                continue
            for what in _wrong(seen, topics[topic], first, again):
                yield f"{topic}/{id} in {group} {what}"


def _has_failed_before(one: Run, other: Run) -> bool:
    if (one.entry, one.attempt) != (other.entry, other.attempt) or one.ended is None or other.ended is None:
        return False
    return one.ended < other.ended


def _wrong(seen: Seen, topic: TopicPlan, first: Run, again: Run) -> Iterator[str]:
    is_same = again.entry == first.entry  # an ordered job keeps its entry; with its due time it is a repeated delivery
    is_retry = again.due_ms != first.due_ms if is_same else (again.topic, again.entry) in seen.retries
    if first.ended is None or first.ended > again.began or not is_retry:
        return  # it was abandoned, or this is another life
    if any(first.ended <= died <= again.began for died in seen.ledger.dead.get((first.topic, first.id), ())):
        return  # it was buried meanwhile, and replayed
    if again.attempt > len(topic.retry_delays) + 1:
        yield f"ran {again.attempt} times"
    if first.outcome in COUNTED and again.attempt == first.attempt + 1:
        pause = topic.retry_delays[min(first.attempt, len(topic.retry_delays)) - 1]
    elif first.outcome == "RetryAfter" and again.attempt == first.attempt:
        pause = AGAIN_S
    else:
        return
    waited = again.due_ms / 1000 - EPOCH_S - seen.server_time(first.ended)
    if any(first.ended <= since <= again.began for since, _, _ in seen.ledger.clock[1:]):
        return
    if waited < pause - 0.002:
        yield f"waits {waited:.3f} s for attempt {again.attempt} instead of {pause} s"
    whom = (first.worker, *seen.holders(first))
    if not seen.excuses.explain("retried", first.ended + SOON_S, first.ended + waited - pause, whom):
        yield f"waits {waited:.3f} s for attempt {again.attempt} instead of {pause} s, and nothing was wrong"
