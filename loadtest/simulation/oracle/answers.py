"""Promises about answers: what a producer was told is true, and what it was promised happens, once."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.simulation.oracle.acts import acts_of
from loadtest.simulation.oracle.linear import misfit
from loadtest.simulation.oracle.seen import Seen, promise

DELIVERED_S = 15.0
"""An outbox delivers its jobs within this time."""


@promise("lost")
def lost(seen: Seen) -> Iterator[str]:
    """Every acknowledged job that was not cancelled has run to its end in every group."""
    groups = {topic.name: topic.groups for topic in seen.plan.topics}
    for (topic, id), history in seen.jobs.items():
        made = [one for one in history.calls if one.outcome in ("created", "replaced", "kept")]
        if not made or any(one.outcome in ("cancelled", "unknown", "unanswered") for one in history.calls):
            continue
        last = made[-1]
        if last.step.kind == "expiring":  # in an outbox it may expire, too
            continue
        is_replicated = last.step.args.get("durability") is not None
        stored_by = last.answered + (DELIVERED_S if last.outcome == "kept" else 0.0)
        if seen.ledger.was_undone(last.sent - 1.0, stored_by, though_replicated=is_replicated):
            continue
        for group in groups.get(topic, ()):
            if group != "default" and seen.ledger.undone:
                continue
            runs = [run for run in history.runs if run.group == group]
            if not any(run.outcome in ("done", "Bury") for run in runs) and not seen.ledger.dead.get((topic, id)):
                yield f"{topic}/{id} ({last.outcome} by {last.step}) has not run in {group}; {len(runs)} attempts"


@promise("doubled")
def doubled(seen: Seen) -> Iterator[str]:
    """Each life of a job is promoted once, and each of its attempts once in each group."""
    for (topic, id), history in seen.jobs.items():
        if not history.calls:  # recurring
            continue
        normal = [one for one in history.promotions if not one.group]
        first = max(
            ([one for one in normal if one.attempt == n] for n in {one.attempt for one in normal}), key=len, default=[]
        )
        lives = history.lives + sum(map(seen.may_be_new, history.calls))
        if len(first) > max(lives, 1):
            yield f"{topic}/{id} was promoted {len(first)} times in {lives} lives"


@promise("untrue")
def untrue(seen: Seen) -> Iterator[str]:
    """The answers to producers are true."""
    for (topic, id), history in seen.jobs.items():
        if not history.calls:
            continue
        if (acts := acts_of(seen, topic, history)) and (wrong := misfit(acts, at_rest=True)):
            yield f"{topic}/{id}: no order explains its {len(history.calls)} calls; {wrong}"
        if seen.ledger.undone:
            continue
        if all(one.outcome.startswith("refused") for one in history.calls) and history.promotions:
            yield f"{topic}/{id} ran although its producer was told that it was refused"


@promise("miscounted")
def miscounted(seen: Seen) -> Iterator[str]:
    """A change of many jobs counts each job once, and moves each by the requested time."""
    for call, counted, there in seen.ledger.counted:
        if counted != there and not seen.ledger.undone:
            yield f"{call.topic}: {call.step.kind} has {call.outcome} {counted} jobs of {there}"
    for (topic, id), history in seen.jobs.items():
        moved = [one for one in history.calls if one.outcome == "moved"]
        if moved and history.promotions and not seen.ledger.undone and history.promotions[0].due_ms != moved[-1].due_ms:
            yield f"{topic}/{id} was due at {history.promotions[0].due_ms}, and was moved to {moved[-1].due_ms}"


@promise("shards")
def shards(seen: Seen) -> Iterator[str]:
    """A topic keeps the number of shards of its last `set_shards` that was answered."""
    for topic, found in seen.ledger.shards.items():
        calls = [one for one in seen.ledger.calls if one.step.kind == "set-shards" and one.topic == topic]
        done = [
            one for one in calls if one.outcome == "done" and not seen.ledger.was_undone(one.sent - 1, one.answered)
        ]
        last = max(done, key=lambda one: one.answered, default=None)
        if last is None:
            continue
        since = {one.step.args["shards"] for one in calls if one.answered > last.sent}
        if found not in since:
            yield f"{topic} has {found} shards; {last.step} asked for others, and was answered at {last.answered:.2f}"
