"""Recurring jobs: when one occurs, which occurrences a scheduler makes now, and what callers see. Pure: now is given.

An *occurrence* is a moment of the rule. Its *due time* is that moment plus jitter: a delay computed from the name and
the moment, so that every node computes the same. An interval counts from `start`, or else from the Unix epoch, never
from the last run: so it cannot drift, and putting the same rule again does not move it.

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

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Self, TypedDict, get_args

from wheelq.errors import InvalidInput
from wheelq.model.checks import check_id, span_ms, to_ms
from wheelq.model.cron import Cron, zone_of
from wheelq.model.job import Outcome, Payload, Priority, from_ms

Missed = Literal["coalesce", "skip", "all"]
"""Which missed occurrences run: the latest, none or all."""

LAST_MS = 253_402_300_799_000
"""The end of the year 9999, the last moment that a datetime can hold."""
SHORTEST_MS = 1_000
OF_THE_MACHINE = ("localtime", "posixrules", "posix/", "right/")
"""Files among the time zones that are no zones of their own."""
LONGEST_MS = 3_660 * 86_400_000
SKIP_GRACE_MS = 60_000
"""With "skip": how late an occurrence may be made, by default."""
MOST_MISSED = 100
"""The most missed occurrences that run with "all"."""
MOST_STEPS = 200
"""How many occurrences are computed at a time, besides those wanted: each takes a cron expression some 25 µs."""
GAPS = 50
"""How many occurrences are compared to find the shortest gap."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a recurring job occurs. `Rule.of` makes and checks one; times are milliseconds."""

    cron: str | None = None
    every_ms: int | None = None
    tz: str = "UTC"
    """IANA time zone of the cron expression."""
    start_ms: int | None = None
    """No occurrence is earlier; an interval counts from here."""
    end_ms: int | None = None
    """No occurrence is later."""
    jitter_ms: int = 0
    missed: Missed = "coalesce"
    grace_ms: int | None = None
    """Missed occurrences that are later than this do not run; None: no limit."""

    @classmethod
    def of(
        cls,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: float | timedelta = 0,
        missed: Missed = "coalesce",
        grace: float | timedelta | None = None,
    ) -> Self:
        """Returns the rule for a caller's arguments; numbers are seconds. Raises: InvalidInput, ConfigurationError."""
        if (cron is None) == (every is None):
            raise InvalidInput("cron", "give either cron (an expression) or every (seconds or a timedelta)")
        if cron is not None and not isinstance(cron, str):
            raise InvalidInput("cron", f"must be an expression like '30 2 * * *', not {type(cron).__name__}")
        if missed not in get_args(Missed):
            raise InvalidInput("missed", f"must be 'coalesce', 'skip' or 'all', not {missed!r}")
        every_ms = None if every is None else span_ms(every, LONGEST_MS, "every")
        if every_ms is not None and every_ms < SHORTEST_MS:
            raise InvalidInput("every", f"must be at least 1 second, not {every!r}")
        rule = cls(
            cron,
            every_ms,
            tz,
            None if start is None else to_ms(start, "start"),
            None if end is None else to_ms(end, "end"),
            span_ms(jitter, LONGEST_MS, "jitter"),
            missed,
            None if grace is None else span_ms(grace, LONGEST_MS, "grace"),
        )
        rule._check()
        return rule

    def next(self, after_ms: int) -> int | None:
        """Returns the first occurrence after a moment; None if there is none."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        if self.every_ms is not None:
            anchor_ms = self.start_ms or 0
            found: int | None = anchor_ms + ((after_ms - anchor_ms) // self.every_ms + 1) * self.every_ms
        else:
            found = _cron(self.cron or "", self.tz).after(after_ms)
        return None if found is None or (self.end_ms is not None and found > self.end_ms) else found

    def latest(self, until_ms: int, since_ms: int, most: int) -> list[int]:
        """Returns the last `most` occurrences from `since_ms` to `until_ms`, in order.

        Looks back in growing spans, and in smaller ones where occurrences are dense.
        """
        found: list[int] = []
        end_ms, span_ms = until_ms, (self.every_ms or 1_000) * most
        while len(found) < most and end_ms >= since_ms:
            from_ms = max(end_ms - span_ms, since_ms - 1)
            part = self._between(from_ms, end_ms, MOST_STEPS + most)
            if part is None:
                span_ms //= 2
                continue
            found = [*part, *found][-most:]
            end_ms, span_ms = from_ms, span_ms * 8
        return found

    def _between(self, after_ms: int, until_ms: int, most: int) -> list[int] | None:
        """Returns the occurrences after one moment up to another; None if there are more than `most`."""
        found: list[int] = []
        following = self.next(after_ms)
        while following is not None and following <= until_ms:
            if len(found) == most:
                return None
            found.append(following)
            following = self.next(following)
        return found

    def due_ms(self, name: str, occurrence_ms: int) -> int:
        """Returns when an occurrence of the recurring job with this name is due."""
        if not self.jitter_ms:
            return occurrence_ms
        draw = blake2b(f"{name}@{occurrence_ms}".encode(), digest_size=8).digest()
        return occurrence_ms + int.from_bytes(draw, "big") % (self.jitter_ms + 1)

    def _check(self) -> None:
        zone_of(self.tz)
        if self.tz.startswith(OF_THE_MACHINE):
            raise InvalidInput(
                "tz", f"{self.tz!r} is not the same on each machine: use an IANA name like Europe/Berlin"
            )
        if self.start_ms is not None and self.end_ms is not None and self.end_ms < self.start_ms:
            raise InvalidInput("end", "must not be before start")
        first = self.next(self.start_ms - 1 if self.start_ms is not None else 0)
        if first is None:
            raise InvalidInput("end" if self.end_ms is not None else "cron", "there is no occurrence, ever")
        gap_ms = self._shortest_gap(first)
        if gap_ms is not None and self.jitter_ms > gap_ms:
            raise InvalidInput(
                "jitter", f"{self.jitter_ms / 1000:g} s, but occurrences come {gap_ms / 1000:g} s apart: at most that"
            )

    def _shortest_gap(self, first: int) -> int | None:
        """Returns the shortest gap between the first occurrences; None for a cron rule without jitter."""
        if self.every_ms is not None or not self.jitter_ms:
            return self.every_ms
        gaps: list[int] = []
        following = self.next(first)
        while following is not None and len(gaps) < GAPS:
            gaps.append(following - first)
            first, following = following, self.next(following)
        return min(gaps, default=None)

    def to_map(self) -> dict[str, Any]:
        """Returns the fields that differ from the defaults, as they are stored."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default}

    @classmethod
    def from_map(cls, stored: dict[str, Any]) -> Self:
        """Returns a stored rule, without fields that only a newer release knows. Raises: ValueError."""
        known = {item.name: stored[item.name] for item in fields(cls) if item.name in stored}
        for name, value in known.items():
            kind = str if name in ("cron", "tz", "missed") else int
            if type(value) is not kind or (type(value) is int and not -LAST_MS <= value <= LAST_MS):
                raise ValueError(f"{name} of a recurring job cannot be {value!r:.60}")
        rule = cls(**known)
        if (rule.cron is None) == (rule.every_ms is None) or rule.missed not in get_args(Missed):
            raise ValueError("not the rule of a recurring job")
        if (rule.every_ms or 1) < 1 or rule.jitter_ms < 0:
            raise ValueError("the interval and the jitter must not be negative")
        return rule


@lru_cache(maxsize=1_000)
def _cron(expression: str, tz: str) -> Cron:
    return Cron(expression, zone_of(tz))


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
    made = tuple(occurrence for occurrence in missed if not is_too_late(rule, name, occurrence, now_ms))
    return Plan(made, rule.next(missed[-1]), is_late=True)


def is_too_late(rule: Rule, name: str, occurrence: int, now_ms: int) -> bool:
    """Whether it was due longer ago than an occurrence that was missed may be."""
    grace_ms = SKIP_GRACE_MS if rule.grace_ms is None and rule.missed == "skip" else rule.grace_ms
    return grace_ms is not None and rule.due_ms(name, occurrence) < now_ms - grace_ms


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


NAME_BYTES_LIMIT = 200
"""An occurrence's job id, of at most 256 bytes, is the name, "@" and a moment."""


class RecurringOutcome(Outcome):
    """The outcome of a change to a recurring job."""

    CREATED = "created"
    """It is new."""
    UPDATED = "updated"
    """It existed and was changed; its waiting occurrence was withdrawn and is made again."""
    UNCHANGED = "unchanged"
    """It was the same already; nothing was changed."""
    PAUSED = "paused"
    """It does not occur until `resume`; its waiting occurrence was withdrawn."""
    RESUMED = "resumed"
    """It occurs again from now on; occurrences missed during the pause do not run."""
    REMOVED = "removed"
    """It was removed, with its waiting occurrence."""
    NOT_FOUND = "not_found"
    """The topic has no recurring job with this name."""


class RecurringOptions(TypedDict, total=False):
    """The arguments of `client.recurring.put` besides the job itself."""

    cron: str | None
    every: float | timedelta | None
    tz: str
    start: datetime | None
    end: datetime | None
    jitter: float | timedelta
    missed: Missed
    grace: float | timedelta | None
    headers: Mapping[str, str] | None
    priority: Priority
    expires: float | timedelta | None
    attempts: int | None
    timeout: float | timedelta | None


class RecurringReceipt(NamedTuple):
    """The answer to `put`."""

    name: str
    outcome: RecurringOutcome
    """CREATED, UPDATED or UNCHANGED."""
    next_ms: int | None
    """When it is next due; None while it is paused, or past its end."""

    @property
    def next(self) -> datetime | None:
        """`next_ms` as an aware datetime in UTC."""
        return None if self.next_ms is None else from_ms(self.next_ms)


@dataclass(frozen=True, slots=True)
class RecurringInfo:
    """A recurring job and its next and last occurrence."""

    topic: str
    name: str
    rule: Rule
    """When it occurs."""
    payload: Payload
    headers: Mapping[str, str]
    priority: Priority
    is_paused: bool
    """Whether it makes no jobs until `resume`."""
    next_ms: int | None
    """When it is next due; None while it is paused, or past its end."""
    last_ms: int | None
    """When the last occurrence made is due, which may be a few seconds ahead; None before the first."""
    max_attempts: int | None = None
    """The `attempts` of its jobs; None: their handler decides alone."""
    timeout: float | None = None
    """The `timeout` of its jobs, in seconds; None: their handler decides alone."""

    @property
    def next(self) -> datetime | None:
        """`next_ms` as an aware datetime in UTC."""
        return None if self.next_ms is None else from_ms(self.next_ms)

    @property
    def last(self) -> datetime | None:
        """`last_ms` as an aware datetime in UTC."""
        return None if self.last_ms is None else from_ms(self.last_ms)


def check_name(name: str) -> str:
    """Returns the name if it is valid. Raises: InvalidInput."""
    if len(check_id(name, "name").encode()) > NAME_BYTES_LIMIT:
        raise InvalidInput("name", f"{len(name.encode())} bytes long, the limit is {NAME_BYTES_LIMIT}")
    return name
