"""When recurring jobs occur: cron in time zones whose clocks change, intervals, start and end, jitter."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.cron import Cron
from wheelq.model.recurring import Rule
from wheelq.producer.recurring import _updated
from wheelq.protocol.calls.recurring import FoundRecurring
from wheelq.protocol.recurring_codec import StoredRecurring

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def ms(text: str) -> int:
    """Milliseconds of an ISO time."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def between(rule: Rule, first: str, last: str) -> list[str]:
    """The occurrences from one moment to another, in the zone of the rule."""
    found, at = [], rule.next(ms(first) - 1)
    while at is not None and at <= ms(last):
        found.append(datetime.fromtimestamp(at / 1000, ZoneInfo(rule.tz)).isoformat(timespec="minutes"))
        at = rule.next(at)
    return found


# Clocks that change: (zone, the day in spring, what is skipped, when it runs; the day in autumn, what comes twice)

CHANGES = [
    ("Europe/Berlin", "2026-03-29", 2, "03:00+02:00", "2026-10-25", 2, "+02:00"),
    ("America/New_York", "2026-03-08", 2, "03:00-04:00", "2026-11-01", 1, "-04:00"),
    ("Australia/Sydney", "2026-10-04", 2, "03:00+11:00", "2026-04-05", 2, "+11:00"),
    ("America/Santiago", "2026-09-06", 0, "01:00-03:00", "2026-04-04", 23, "-03:00"),
    ("Europe/London", "2026-03-29", 1, "02:00+01:00", "2026-10-25", 1, "+01:00"),
]
zones = pytest.mark.parametrize(("zone", "spring", "skipped", "moved", "autumn", "doubled", "before"), CHANGES)


@zones
def test_a_time_that_spring_skips_runs_once_when_the_clocks_change(
    zone: str, spring: str, skipped: int, moved: str, autumn: str, doubled: int, before: str
) -> None:
    rule = Rule.of(cron=f"30 {skipped} * * *", tz=zone)
    day = [at for at in between(rule, f"{spring}T00:00{moved[5:]}", f"{spring}T23:59{moved[5:]}") if spring in at]
    assert day == [f"{spring}T{moved}"]


@zones
def test_a_time_that_spring_skips_is_found_by_a_search_that_begins_just_after_the_change(
    zone: str, spring: str, skipped: int, moved: str, autumn: str, doubled: int, before: str
) -> None:
    """A rule may be put, resumed or read by another node in that minute."""
    rule = Rule.of(cron=f"10 30 {skipped} * * *", tz=zone)
    change = int(datetime.fromisoformat(f"{spring}T{moved}").timestamp())
    found = {rule.next((change + second) * 1000) for second in (-3_600, -1, 0, 9)}
    assert found == {(change + 10) * 1000}
    later = rule.next((change + 10) * 1000)
    assert later is not None
    assert later > (change + 3_600) * 1000


@zones
def test_skipped_times_that_fall_together_are_one_occurrence(
    zone: str, spring: str, skipped: int, moved: str, autumn: str, doubled: int, before: str
) -> None:
    rule = Rule.of(cron=f"0,20,40 {skipped},{skipped + 1} * * *", tz=zone)
    day = [at for at in between(rule, f"{spring}T00:00{moved[5:]}", f"{spring}T23:59{moved[5:]}") if spring in at]
    after = f"{spring}T{skipped + 1:02}"
    assert day == [f"{after}:{minute}{moved[5:]}" for minute in ("00", "20", "40")]


@zones
def test_a_time_that_autumn_repeats_runs_the_first_time_only(
    zone: str, spring: str, skipped: int, moved: str, autumn: str, doubled: int, before: str
) -> None:
    rule = Rule.of(cron=f"30 {doubled} * * *", tz=zone)
    found = between(rule, f"{autumn}T00:00{before}", f"{autumn}T23:59{before}")
    assert [at for at in found if autumn in at] == [f"{autumn}T{doubled:02}:30{before}"]


@pytest.mark.parametrize("hours", ["*", "*/1", "0-23", "0-11,12-23"])
@zones
def test_every_quarter_of_an_hour_goes_on_as_time_passes(
    zone: str, spring: str, skipped: int, moved: str, autumn: str, doubled: int, before: str, hours: str
) -> None:
    rule = Rule.of(cron=f"*/15 {hours} * * *", tz=zone)
    for day in (spring, autumn):
        at, moments = ms(f"{day}T00:00Z") - DAY_MS, []
        while at < ms(f"{day}T00:00Z") + 2 * DAY_MS:
            at = rule.next(at) or 0
            moments.append(at)
        assert {later - earlier for earlier, later in pairwise(moments)} == {15 * MINUTE_MS}


def test_half_an_hour_is_skipped_and_repeated_on_lord_howe_island() -> None:
    """02:00 becomes 02:30 in October; 02:00 becomes 01:30 in April."""
    spring = Rule.of(cron="15 2 * * *", tz="Australia/Lord_Howe")
    assert between(spring, "2026-10-04T00:00+11:00", "2026-10-05T00:00+11:00") == ["2026-10-04T02:30+11:00"]
    autumn = Rule.of(cron="45 1 * * *", tz="Australia/Lord_Howe")
    assert between(autumn, "2026-04-05T00:00+11:00", "2026-04-06T00:00+10:30") == ["2026-04-05T01:45+11:00"]
    quarters = Rule.of(cron="15,45 * * * *", tz="Australia/Lord_Howe")
    assert between(quarters, "2026-04-05T01:30+11:00", "2026-04-05T02:30+10:30") == [
        "2026-04-05T01:45+11:00",
        "2026-04-05T01:45+10:30",
        "2026-04-05T02:15+10:30",
    ]


def test_a_minute_of_every_hour_is_left_out_once_when_the_clocks_change_by_half_an_hour() -> None:
    """As the guide says: not at 02:45 in October, nor at 01:45 for the second time in April."""
    hourly = Rule.of(cron="45 * * * *", tz="Australia/Lord_Howe")
    assert between(hourly, "2026-10-04T01:00+10:30", "2026-10-04T04:00+11:00") == [
        "2026-10-04T01:45+10:30",
        "2026-10-04T03:45+11:00",
    ]
    assert between(hourly, "2026-04-05T01:00+11:00", "2026-04-05T02:59+10:30") == [
        "2026-04-05T01:45+11:00",
        "2026-04-05T02:45+10:30",
    ]


def test_a_day_that_was_skipped_runs_when_the_next_begins() -> None:
    """Samoa had no 30 December 2011."""
    rule = Rule.of(cron="0 12 30 12 *", tz="Pacific/Apia")
    assert between(rule, "2011-12-01T00:00Z", "2012-01-31T00:00Z") == ["2011-12-31T00:00+14:00"]


def test_a_zone_without_changes_and_with_odd_minutes() -> None:
    rule = Rule.of(cron="0 9 * * MON-FRI", tz="Asia/Kathmandu")
    assert between(rule, "2026-11-20T00:00Z", "2026-11-23T23:00Z") == [
        "2026-11-20T09:00+05:45",
        "2026-11-23T09:00+05:45",
    ]


# An oracle: every minute that passes, one by one

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Australia/Sydney", "America/Havana"]


class Plain:
    """Cron for numbers: looks at a clock on the wall every minute."""

    def __init__(self, minutes: set[int], hours: set[int] | None, weekdays: set[int] | None, zone: str) -> None:
        self.minutes, self.hours, self.weekdays = minutes, hours, weekdays
        self.zone = ZoneInfo(zone)

    @property
    def expression(self) -> str:
        fields = (self.minutes, self.hours, None, None, self.weekdays)
        return " ".join("*" if field is None else ",".join(map(str, sorted(field))) for field in fields)

    def shows(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minutes
            and (self.hours is None or wall.hour in self.hours)
            and (self.weekdays is None or wall.isoweekday() % 7 in self.weekdays)
        )

    def occurrences(self, first: int, last: int) -> list[int]:
        found, seen = [], self.wall(first - DAY_MS)
        for at in range(first - DAY_MS, last + 1, MINUTE_MS):
            wall = self.wall(at)
            if self.hours is None:
                occurs = self.shows(wall)
            else:  # any time that the clock shows for the first time, or has gone past
                passed = int((wall - seen) / timedelta(minutes=1))
                occurs = any(self.shows(wall - timedelta(minutes=back)) for back in range(passed))
                seen = max(seen, wall)
            if occurs and at >= first:
                found.append(at)
        return found

    def wall(self, at: int) -> datetime:
        return datetime.fromtimestamp(at // 1000, self.zone).replace(tzinfo=None)


@st.composite
def clock_changes(draw: st.DrawFn) -> tuple[str, int]:
    """A zone, and a moment at which its clocks change."""
    zone = draw(st.sampled_from(ZONES))
    return zone, draw(st.sampled_from(changes_of(zone, draw(st.integers(2015, 2035)))))


@cache
def changes_of(zone: str, year: int) -> list[int]:
    """The moments of a year at which the clocks of a zone change; all are whole hours in UTC, or half ones."""
    start, half_hour = int(datetime(year, 1, 1, tzinfo=UTC).timestamp()), 1800
    moments = range(start, start + 366 * 86_400, half_hour)
    offsets = [datetime.fromtimestamp(at, ZoneInfo(zone)).utcoffset() for at in moments]
    return [at * 1000 for at, (before, after) in zip(moments[1:], pairwise(offsets), strict=True) if before != after]


@pytest.mark.long
@settings(deadline=None, max_examples=150)
@given(
    change=clock_changes(),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hours=st.one_of(st.none(), st.sets(st.sampled_from([0, 1, 2, 3, 4, 12, 22, 23]), min_size=1, max_size=4)),
    weekdays=st.one_of(st.none(), st.sets(st.integers(0, 6), min_size=1, max_size=3)),
    hours_before=st.integers(1, 30),
)
def test_cron_agrees_with_a_look_at_the_clock_every_minute(
    change: tuple[str, int], minutes: set[int], hours: set[int] | None, weekdays: set[int] | None, hours_before: int
) -> None:
    zone, at = change
    assume(zone != "Australia/Lord_Howe" or hours is not None or len(minutes) > 1)  # see `model.cron`
    plain = Plain(minutes, hours, weekdays, zone)
    first, last = at - hours_before * HOUR_MS, at + 30 * HOUR_MS
    cron, found = Cron(plain.expression, ZoneInfo(zone)), []
    following = cron.after(first - 1)
    while following is not None and following <= last:
        found.append(following)
        following = cron.after(following)
    assert found == plain.occurrences(first, last)


@settings(deadline=None)
@given(change=clock_changes(), minutes=st.sets(st.integers(0, 59), min_size=1, max_size=2), hour=st.integers(0, 5))
def test_the_next_occurrence_does_not_depend_on_the_time_of_the_question(
    change: tuple[str, int], minutes: set[int], hour: int
) -> None:
    zone, at = change
    cron = Cron(f"{','.join(map(str, sorted(minutes)))} {hour} * * *", ZoneInfo(zone))
    following = cron.after(at - 2 * HOUR_MS)
    for asked in range(at - 2 * HOUR_MS, at + 2 * HOUR_MS, 7 * MINUTE_MS):
        while following is not None and asked >= following:
            following = cron.after(following)
        assert cron.after(asked) == following


# Intervals


@given(
    every=st.integers(1, 100_000),
    start=st.one_of(st.none(), st.integers(0, 2_000_000_000)),
    after=st.integers(0, 2_000_000_000),
)
def test_an_interval_keeps_to_its_anchor(every: int, start: int | None, after: int) -> None:
    first = None if start is None else datetime.fromtimestamp(start, UTC)
    rule = Rule.of(every=every, start=first)
    found = rule.next(after * 1000)
    assert found is not None
    assert found > after * 1000
    assert (found - (start or 0) * 1000) % (every * 1000) == 0
    assert found == (start or 0) * 1000 or found - every * 1000 <= after * 1000


def test_an_interval_begins_at_its_start() -> None:
    rule = Rule.of(every=timedelta(hours=5), start=datetime(2026, 1, 1, 7, tzinfo=UTC))
    assert rule.next(0) == ms("2026-01-01T07:00Z")
    assert rule.next(ms("2026-01-01T07:00Z")) == ms("2026-01-01T12:00Z")


def test_nothing_occurs_before_start_or_after_end() -> None:
    start, end = datetime(2026, 1, 2, 9, tzinfo=UTC), datetime(2026, 1, 4, 9, tzinfo=UTC)
    rule = Rule.of(cron="@daily", start=start, end=end)
    assert between(rule, "2025-12-01T00:00Z", "2026-12-01T00:00Z") == [
        "2026-01-03T00:00+00:00",
        "2026-01-04T00:00+00:00",
    ]
    on_the_dot = Rule.of(cron="0 9 * * *", start=start, end=end)
    assert len(between(on_the_dot, "2025-12-01T00:00Z", "2026-12-01T00:00Z")) == 3


@settings(deadline=None)
@given(
    said=st.sampled_from([{"cron": "*/7 * * * *"}, {"cron": "30 2 * * *"}, {"cron": "0 0 1 * *"}, {"every": 61}]),
    until=st.integers(0, 200 * DAY_MS),
    back=st.integers(-DAY_MS, 3 * DAY_MS),
    most=st.integers(1, 130),
)
def test_the_latest_occurrences_are_the_last_of_all(said: dict[str, object], until: int, back: int, most: int) -> None:
    rule = Rule.of(**said, tz="Europe/Berlin")  # type: ignore[arg-type]
    origin, since = ms("2026-01-01T00:00Z"), until - back
    found = rule.latest(origin + until, origin + since, most)
    following = rule.next(origin + since - 1)
    expected = []
    while following is not None and following <= origin + until:
        expected.append(following)
        following = rule.next(following)
    assert found == expected[-most:]


def test_the_latest_are_found_in_few_steps_where_seconds_come_in_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """86,400 occurrences on one day of the year, and none on the others."""
    steps = 0
    after = Cron.after

    def counted(cron: Cron, at: int) -> int | None:
        nonlocal steps
        steps += 1
        return after(cron, at)

    monkeypatch.setattr(Cron, "after", counted)
    rule = Rule.of(cron="* * * 1 1 *")
    last = ms("2026-01-01T23:59:59Z")
    assert rule.latest(ms("2026-12-01T00:00Z"), ms("2020-01-01T00:00Z"), 100) == [
        last - n * 1000 for n in reversed(range(100))
    ]
    assert steps < 15_000


# Jitter


@given(st.text(min_size=1), st.integers(0, 10**13), st.integers(1, 86_400))
def test_jitter_is_the_same_for_the_same_occurrence_and_never_early(name: str, at: int, jitter: int) -> None:
    rule = Rule(cron="@daily", jitter_ms=jitter * 1000)
    assert at <= rule.due_ms(name, at) <= at + jitter * 1000
    assert rule.due_ms(name, at) == rule.due_ms(name, at)


def test_jitter_spreads_those_of_the_same_moment() -> None:
    rule = Rule.of(every=60, jitter=30)
    dues = {rule.due_ms(f"tenant-{n}", 0) for n in range(200)}
    assert len(dues) > 150
    assert min(dues) < 3_000
    assert max(dues) > 27_000


def test_jitter_may_not_be_longer_than_occurrences_are_apart() -> None:
    Rule.of(cron="0 2 * * *", jitter=timedelta(hours=3))
    with pytest.raises(InvalidInput, match="jitter: 61 s, but occurrences come 60 s apart"):
        Rule.of(every=60, jitter=61)
    with pytest.raises(InvalidInput, match="1800 s apart"):
        Rule.of(cron="0,30 9 * * *", jitter=1801)


# What is refused, and how it is said


@pytest.mark.parametrize(
    ("said", "field", "words"),
    [
        ({}, "cron", "either cron .* or every"),
        ({"cron": "* * * * *", "every": 1}, "cron", "either"),
        ({"cron": "61 * * * *"}, "cron", "'61' is not a valid minute: use 0 to 59"),
        ({"cron": "0 24 * * *"}, "cron", "'24' is not a valid hour: use 0 to 23"),
        ({"cron": "0 0 32 * *"}, "cron", "'32' is not a valid day-of-month"),
        ({"cron": "0 0 30 2 *"}, "cron", "'30' is not a valid day-of-month: .* a day that the months have"),
        ({"cron": "0 0 1 13 *"}, "cron", "'13' is not a valid month: use 1 to 12 or JAN to DEC"),
        ({"cron": "0 0 * * MOO"}, "cron", "'MOO' is not a valid day-of-week"),
        ({"cron": "60 0 0 * * *"}, "cron", "'60' is not a valid second"),
        ({"cron": "0 2 * *"}, "cron", "has 4 fields, and needs five: minute hour day-of-month month day-of-week"),
        ({"cron": "@never"}, "cron", "a name like @daily"),
        ({"cron": ""}, "cron", "has 0 fields"),
        ({"cron": 5}, "cron", "must be an expression"),
        ({"cron": "@daily", "tz": "Europe/Munchen"}, "tz", "not a time zone: .*IANA"),
        ({"cron": "@daily", "tz": "Berlin"}, "tz", "did you mean Europe/Berlin"),
        ({"cron": "@daily", "tz": "europe/berlim"}, "tz", "did you mean Europe/Berlin"),
        ({"cron": "@daily", "tz": "New York"}, "tz", "did you mean America/New_York"),
        ({"cron": "@daily", "tz": "Europe"}, "tz", "not a time zone"),
        ({"cron": "@daily", "tz": "../etc/passwd"}, "tz", "not a time zone"),
        ({"cron": "@daily", "tz": None}, "tz", "not a time zone"),
        ({"cron": "@daily", "tz": "localtime"}, "tz", "not the same on each machine|not a time zone"),
        ({"every": 0.5}, "every", "at least 1 second"),
        ({"every": float("nan")}, "every", "must not be negative"),
        ({"every": "5m"}, "every", "seconds .* or a timedelta"),
        ({"every": timedelta(days=4000)}, "every", "beyond the limit of 316,224,000 s"),
        ({"every": 5, "start": datetime(2026, 1, 1)}, "start", "no time zone"),  # noqa: DTZ001
        ({"every": 5, "end": "tomorrow"}, "end", "aware datetime"),
        (
            {"every": 5, "start": datetime(2026, 2, 1, tzinfo=UTC), "end": datetime(2026, 1, 1, tzinfo=UTC)},
            "end",
            "not be before start",
        ),
        ({"every": 5, "jitter": -1}, "jitter", "must not be negative"),
        ({"every": 5, "missed": "maybe"}, "missed", "'coalesce', 'skip' or 'all'"),
        ({"every": 5, "grace": -1}, "grace", "must not be negative"),
    ],
)
def test_a_wrong_rule_is_named_with_its_remedy(said: dict[str, object], field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        Rule.of(**said)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_a_missing_cronsim_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'wheelq\[recurring\]'"):
        Rule.of(cron="11 11 * * *")
    assert Rule.of(every=5).next(0) == 5_000, "intervals need nothing"


def test_a_rule_is_stored_without_its_defaults_and_comes_back() -> None:
    rule = Rule.of(cron="0 2 * * *", tz="Europe/Berlin", jitter=2, missed="skip", grace=0)
    stored = rule.to_map()
    assert stored == {"cron": "0 2 * * *", "tz": "Europe/Berlin", "jitter_ms": 2000, "missed": "skip", "grace_ms": 0}
    assert Rule.from_map(stored | {"newer": 1}) == rule


# A change


@pytest.mark.parametrize(("last", "is_withdrawn"), [("2030-01-01T11:59:59Z", False), ("2030-01-01T12:01:00Z", True)])
def test_a_change_withdraws_the_waiting_occurrence_unless_it_is_due(last: str, is_withdrawn: bool) -> None:
    """A job that is due runs as it was defined before."""
    rule, now_ms = Rule(every_ms=MINUTE_MS), ms("2030-01-01T12:00:00Z")
    before = StoredRecurring.new(rule, b"record", ms(last), ms(last) + MINUTE_MS)
    found = FoundRecurring(now_ms * 1000, before, is_waiting=True)
    assert _updated(found, "tick", before, rule, b"another", "normal").takes_back is is_withdrawn
