"""Promises about dead jobs, kept entries, expiry, priority, misfires, and what callers over HTTP repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from loadtest.simulation.ledger import Promotion
from loadtest.simulation.oracle import Seen, promise

MOMENT_S = 0.3
"""The longest time from the last look at a job's terms to the start of its handler."""
WRONG_CLOCK_S = 0.6
"""The same for a worker whose clock runs wrong for good."""


def _again(promotions: list[Promotion]) -> list[Promotion]:
    """Returns the promotions for one group that are first attempts: replays and reruns."""
    return [one for one in promotions if one.group and one.attempt == 1]


@promise("replayed")
def replayed(seen: Seen) -> Iterator[str]:
    """A replayed job is promoted once for each replay, and never more often than it has died."""
    for (topic, id), history in seen.jobs.items():
        if topic != "grave" or seen.ledger.undone:
            continue
        again, deaths = len(_again(history.promotions)), len(seen.ledger.dead.get((topic, id), []))
        answered = sum(one.outcome == "replayed" for one in history.calls)
        if again > deaths:
            yield f"{topic}/{id} has died {deaths} times, and was run again {again} times"
        if again < answered:
            yield f"{topic}/{id} was replayed {answered} times, and was run again {again} times"


@promise("rerun")
def rerun(seen: Seen) -> Iterator[str]:
    """A rerun promotes an entry once, for its group alone."""
    reruns = sum(step.kind == "rerun" for step in seen.plan.steps)
    for (topic, id), history in seen.jobs.items():
        entries = sum(not one.group for one in history.promotions)
        if topic == "lives" and not seen.ledger.undone and len(_again(history.promotions)) > reruns * entries:
            yield f"{topic}/{id} has {entries} entries, and ran again {len(_again(history.promotions))} times"


@promise("expired")
def expired(seen: Seen) -> Iterator[str]:
    """No job begins its first attempt after it has expired."""
    wrong = {one.whom for one in seen.ledger.troubles if one.kind == "lasting"}  # perhaps its clock
    for (topic, id), history in seen.jobs.items():
        for call in history.calls:
            own: Mapping[str, Any] = next((job for job in call.step.args.get("jobs", ()) if job["id"] == id), {})
            if call.outcome != "may expire" or "expires" not in own:
                continue
            last_us = call.due_ms * 1000 + own["expires"] * 1_000_000
            for run in history.runs:
                late_s, is_first = (run.server_us - last_us) / 1e6, run.attempt == 1 and len(seen.ledger.clock) == 1
                if is_first and late_s > (WRONG_CLOCK_S if run.worker in wrong else MOMENT_S):
                    yield f"{topic}/{id} began {late_s:.2f} s after it had expired"


@promise("misfired")
def misfired(seen: Seen) -> Iterator[str]:
    """Where late jobs are buried, no job begins its first attempt later than its grace allows."""
    grace = {one.name: one.settings["grace_ms"] for one in seen.plan.topics if one.settings.get("misfire") == "bury"}
    for run in seen.ledger.runs:
        if run.topic in grace and run.attempt == 1 and len(seen.ledger.clock) == 1:
            late_ms = run.server_us / 1000 - run.due_ms - grace[run.topic]
            if late_ms > MOMENT_S * 1000:
                yield f"{run.topic}/{run.id} began {late_ms:.0f} ms after the grace of its topic"


@promise("ranked")
def ranked(seen: Seen) -> Iterator[str]:
    """Of the jobs of one call that are due at the same time, those of higher priority are promoted first."""
    places = ("high", "normal", "low")
    ranks = {
        (step.args["topic"], job["id"]): places.index(job["priority"])
        for step in seen.plan.steps
        if step.kind in ("ranked", "ranked-moves")
        for job in step.args["jobs"]
    }
    by_time: defaultdict[tuple[str, int, int], list[Promotion]] = defaultdict(list)
    for one in seen.ledger.promotions:
        if (one.topic, one.id) in ranks and one.attempt == 1 and not one.group:
            by_time[one.topic, one.shard, one.due_ms].append(one)
    for together in by_time.values():
        least = min(one.at for one in together)
        in_order = [one for one in together if one.waits_since < least]  # the others came from an outbox, too late
        found = [ranks[one.topic, one.id] for one in sorted(in_order, key=lambda one: one.place)]
        if found == sorted(found) or seen.excuses.explain_at("ranked", least, seen.nodes):  # not all were heard of
            continue
        if not seen.ledger.undone:
            yield f"{together[0].topic}: {[one.id for one in in_order]} were promoted with the priorities {found}"


@promise("once")
def once(seen: Seen) -> Iterator[str]:
    """A request repeated with its Idempotency-Key makes its jobs once, and has one answer; refused, it makes none."""
    for one in seen.ledger.keyed if not seen.ledger.undone else ():
        told = [one.ids_in(answer) for status, answer in one.answers if status < 300]
        is_refused = len(one.answers) == len(one.step.args["again"]) and all(
            400 <= status < 504 for status, _ in one.answers
        )
        for place, mark in enumerate(one.marks):
            ids = {ids[place] for ids in told if ids[place]}
            seen_ids = seen.ledger.marked[mark]
            if len(ids | seen_ids) > 1:
                yield f"{one.step} has made {sorted(ids | seen_ids)} of one job; its answers name {sorted(ids)}"
            if is_refused and seen_ids:
                yield f"{one.step} was refused {len(one.answers)} times, and made {sorted(seen_ids)}"
        answers = [answer for status, answer in one.answers if status < 300 and all(one.ids_in(answer))]
        if any(job.get("in_outbox") for answer in answers for job in answer.get("outcomes", [answer])):
            answers = [_without_estimates(answer) for answer in answers]
        if any(answer != answers[0] for answer in answers):
            yield f"{one.step} has several answers: {answers}"


def _without_estimates(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what answers have in common if jobs were kept, and the first answer could not be stored."""
    if "outcomes" in answer:
        return {**answer, "outcomes": [_without_estimates(one) for one in answer["outcomes"]]}
    return {name: value for name, value in answer.items() if name not in ("due", "due_ms", "in_outbox")}


@promise("acknowledged")
def acknowledged(seen: Seen) -> Iterator[str]:
    """A leased job is acknowledged once, whoever says it, and however often."""
    for (topic, id, entry), times in seen.ledger.acknowledged.items():
        if times > 1 and not seen.ledger.undone:
            yield f"{topic}/{id} ({entry}) was acknowledged {times} times"
