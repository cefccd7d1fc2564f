"""Decides which occurrences of a recurring job a scheduler makes now. Pure.

The next occurrence is made a little ahead of its time, one at a time. While no scheduler runs, occurrences are missed,
and the rule says what happens to them:

    next ─────┬───────┬───────┬────────┬ now ────┬──▶
           missed  missed  missed   missed    following

    coalesce   the last of them runs, at once
    skip       the last runs only if it is at most `grace` late (by default a minute)
    all        each runs, in order; at most the last hundred

With a `grace`, missed occurrences that are later than this do not run.
"""

from __future__ import annotations

from typing import NamedTuple

from wheelq.model.recurring.rule import SKIP_GRACE_MS, Rule

MOST_MISSED = 100
"""The most missed occurrences that run with "all"."""


class Plan(NamedTuple):
    """The occurrences to make."""

    made: tuple[int, ...]
    """Occurrences to make now, in order; empty if the missed ones are dropped."""
    following: int | None
    """The occurrence after these; None if there is none."""
    is_late: bool
    """Whether their time has passed: then the last replaces the earlier ones, unless all must run."""


def plan(rule: Rule, name: str, next_ms: int, now_ms: int) -> Plan:
    """Returns what to make at `now_ms` of the recurring job `name`, whose next occurrence is `next_ms`."""
    if rule.due_ms(name, next_ms) > now_ms:
        return Plan((next_ms,), rule.next(next_ms), is_late=False)
    missed = _missed(rule, name, next_ms, now_ms, MOST_MISSED if rule.missed == "all" else 1)
    oldest_ms = now_ms - _grace_ms(rule, now_ms)
    made = tuple(occurrence for occurrence in missed if rule.due_ms(name, occurrence) >= oldest_ms)
    return Plan(made, rule.next(missed[-1]), is_late=True)


def _missed(rule: Rule, name: str, next_ms: int, now_ms: int, most: int) -> list[int]:
    """Returns the last `most` occurrences, from the next one to the last whose time has passed."""
    looked_at = most
    while True:
        found = rule.latest(now_ms, next_ms, looked_at)
        is_all = len(found) < looked_at
        while found and rule.due_ms(name, found[-1]) > now_ms:  # jitter puts it off
            found.pop()
        if is_all or len(found) >= most:
            return found[-most:]
        looked_at *= 2


def _grace_ms(rule: Rule, now_ms: int) -> int:
    if rule.grace_ms is not None:
        return rule.grace_ms
    return SKIP_GRACE_MS if rule.missed == "skip" else now_ms
