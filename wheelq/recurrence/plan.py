"""What a scheduler makes of a recurring job now. Pure.

The next occurrence is made a little ahead of its time, one at a time. Where nobody was there to do so, occurrences have
been missed, and the rule says what becomes of them:

    next ─────┬───────┬───────┬────────┬ now ────┬──▶
           missed  missed  missed   missed    following

    coalesce   the last of them runs, at once
    skip       so, but only if it is at most `grace` late (a minute, unless said)
    all        each runs, in order, of a great many the last hundred

With a `grace`, those that are later do not run.
"""

from __future__ import annotations

from typing import NamedTuple

from wheelq.recurrence.rule import SKIP_GRACE_MS, Rule

MOST_MISSED = 100
"""Most missed occurrences that run, with "all"."""


class Plan(NamedTuple):
    """What is to be made."""

    made: tuple[int, ...]
    """Occurrences to be made now, in order; none when those that were missed are dropped."""
    following: int | None
    """The one after these; None when there is none."""
    is_late: bool
    """Whether their time has passed: then the last stands for those before it, unless all are to run."""


def plan(rule: Rule, name: str, next_ms: int, now_ms: int) -> Plan:
    """What to make of the recurring job `name` whose next occurrence is `next_ms`, at `now_ms`."""
    if rule.due_ms(name, next_ms) > now_ms:
        return Plan((next_ms,), rule.next(next_ms), is_late=False)
    late: int | None = rule.last(now_ms, next_ms)
    while late is not None and rule.due_ms(name, late) > now_ms:  # jitter puts it off
        late = rule.last(late - 1, next_ms)
    assert late is not None, "the next one itself is late"
    following = rule.next(late)
    oldest_ms = now_ms - _grace_ms(rule, now_ms)
    made: list[int] = []
    while late is not None and rule.due_ms(name, late) >= oldest_ms:
        made.insert(0, late)
        if rule.missed != "all" or len(made) == MOST_MISSED:
            break
        late = rule.last(late - 1, next_ms)
    return Plan(tuple(made), following, is_late=True)


def _grace_ms(rule: Rule, now_ms: int) -> int:
    if rule.grace_ms is not None:
        return rule.grace_ms
    return SKIP_GRACE_MS if rule.missed == "skip" else now_ms
