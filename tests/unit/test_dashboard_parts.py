"""The pure parts of the dashboard: cron in words, errors that are alike, axes, charts, rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from wheelq.admin.figures import Flow, NodeInfo, Processes
from wheelq.base.metrics import Lateness
from wheelq.errors import InvalidInput
from wheelq.model.state import Attempt, GroupInfo, JobInfo, JobState
from wheelq.model.topic import TopicMinute
from wheelq.protocol.calls.dead import DeadSummary
from wheelq.server.dashboard import charts, words
from wheelq.server.dashboard.charts import AxisMark, Bar, BarPart, TimeWindow, scale
from wheelq.server.dashboard.pages.dead import alike, key_of
from wheelq.server.dashboard.pages.jobs import _delays
from wheelq.server.dashboard.pages.topics import _milliseconds
from wheelq.server.dashboard.timeline import RECORDED_MS, series
from wheelq.server.dashboard.visit import moment
from wheelq.server.dashboard.words import in_words


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15th minute of every hour"),
        ("0 * * * *", "at the start of every hour"),
        ("30 2 * * MON-FRI", "at 02:30 on Monday through Friday"),
        ("0 9,17 * * *", "at 09:00 and 17:00 every day"),
        ("0 9 1 */3 *", "at 09:00 on the first day of every third month"),
        ("0 0 L * *", "at 00:00 on the last day of every month"),
        ("0 8 * * MON#2", "at 08:00 on the second Monday of the month"),
        ("@daily", "at 00:00 every day"),
        ("*/10 * * * * *", "every 10th second of every minute"),
        ("no cron at all", "no cron at all"),
    ],
)
def test_a_cron_expression_in_words(expression: str, said: str) -> None:
    assert in_words(expression) == said


@given(st.text(max_size=60))
def test_no_text_is_too_strange_to_be_put_into_words(text: str) -> None:
    assert isinstance(in_words(text), str)


def dead_job(error: str, reason: str = "failed") -> DeadSummary:
    return DeadSummary("1-0:0", "a", "g", reason, error, 1, 1)


def test_errors_that_differ_in_numbers_ids_and_quotes_are_alike() -> None:
    found = alike(
        [
            dead_job("order 42 of 'ada' has no price"),
            dead_job("order 7 of 'bob' has no price"),
            dead_job("key 0x1f of 5b2c1d3e4f5a is gone"),
            dead_job("order 42 of 'ada' has no price", "expired"),
        ]
    )
    assert [len(group.jobs) for group in found] == [2, 1, 1]
    assert found[0].error == "order 42 of 'ada' has no price", "the newest stands for all"
    assert key_of("failed", "order 9 of 'eve' has no price") == found[0].key


@given(st.floats(min_value=0, max_value=1e9))
def test_a_scale_reaches_its_highest_value_with_few_round_marks(highest: float) -> None:
    top, marks = scale(highest)
    assert top >= highest
    assert 2 <= len(marks) <= 7
    assert (marks[0].share, marks[-1].share) == (0.0, 1.0)


def test_a_part_of_the_future_is_divided_into_bars_of_a_second_or_more() -> None:
    assert TimeWindow.between(1_000, 61_000).bars == 60
    assert TimeWindow.between(1_000, 4_000).bars == 3
    week = TimeWindow.of_span("week", 5)
    assert (week.bars, week.bar_ms, week.bar(1)) == (84, 7_200_000, (7_200_005, 14_400_005))
    assert [mark.text for mark in TimeWindow.of_span("minute", 0).marks(0)][:2] == ["now", "+10s"]


def test_charts_escape_what_they_are_given_and_set_no_style() -> None:
    evil = "<script>alert(1)</script>"
    bar = Bar([BarPart(3, 0), BarPart(1, 1)], evil, '/x"onload="y')
    drawn = charts.bars([bar], [AxisMark(0, evil)], evil)
    drawn += charts.lane([0, 2], 1, [evil, evil], ['/"', '/"'])
    drawn += charts.lines([("k0", [1, 2, 3])], [AxisMark(0, evil)], evil)
    assert isinstance(drawn, Markup)
    assert "<script" not in drawn
    assert 'onload="' not in drawn
    assert "style=" not in drawn
    assert drawn.count('class="c0"') == 1


def test_an_empty_chart_has_no_bars() -> None:
    assert "<a " not in charts.bars([Bar([], "none")], [], "empty")


def node(name: str, promoted: int, *late: int) -> NodeInfo:
    return NodeInfo(name, 0, 1, 1, promoted, 0, Lateness(sum(late), late))


def test_a_flow_is_what_grew_and_a_process_that_began_again_counts_from_nothing() -> None:
    before = Processes(0, [node("a", 100, 90, 10), node("b", 50, 50)], [])
    after = Processes(10_000, [node("a", 130, 110, 20), node("b", 5, 5), node("c", 2, 2)], [])
    found = Flow.between(before, after)
    assert (found.promoted, found.seconds) == (37, 10.0)
    assert found.lateness.counts == (27, 10)


def test_the_past_ends_with_the_last_whole_minute() -> None:
    minutes = {at * 60_000: TopicMinute(at * 60_000, scheduled=at, retried=1, buried=1) for at in range(10)}
    found = series(minutes, 9 * 60_000 + 30_000, 60_000, 4)
    assert (found.scheduled, found.failed) == ([5, 6, 7, 8], [2, 2, 2, 2])
    assert series(minutes, 10 * 60_000 + RECORDED_MS, 5 * 60_000, 2).scheduled == [10, 35]


def test_the_first_figures_of_a_job_are_its_delays() -> None:
    mail = GroupInfo(JobState.DONE, attempt=1, started_ms=1_010, finished_ms=1_250)
    done = JobInfo("a", "orders", JobState.DONE, 1_000, None, {}, 1, promoted_ms=1_003, groups={"mail": mail})
    assert [(one.what, one.ms) for one in _delays(done)] == [
        ("Due → promoted", 3),
        ("Promoted → started", 7),
        ("Started → done", 240),
    ]
    run = Attempt(9_020, 100, "w", "no address")
    dead = GroupInfo(JobState.DEAD, due_ms=9_000, attempt=2, finished_ms=9_120, attempts=[run])
    again = replace(done, state=JobState.DEAD, due_ms=9_000, groups={"mail": mail, "audit": dead})
    assert [(one.what, one.ms, one.note) for one in _delays(again)] == [
        ("Due again → started", 20, "in audit"),
        ("Started → dead", 100, "in audit"),
    ]
    assert _delays(replace(done, promoted_ms=None, groups={})) == []


def test_a_duration_without_a_unit_could_be_milliseconds_or_seconds() -> None:
    assert [_milliseconds(text, "grace_ms") for text in ("0", "1.5h", "250ms")] == [0, 5_400_000, 250]
    with pytest.raises(InvalidInput, match="has no unit: write 90d, 12h"):
        _milliseconds("7776000000", "grace_ms")


def test_a_moment_without_a_time_zone_is_in_utc() -> None:
    assert moment("2030-01-31 09:00", "at").isoformat() == "2030-01-31T09:00:00+00:00"
    assert moment("2030-01-31T09:00:00+01:00", "at").utcoffset() is not None
    with pytest.raises(InvalidInput):
        moment("soon", "at")


def test_numbers_times_and_payloads_are_short() -> None:
    assert [words.short(value) for value in (0, 999, 1_000, 1_234, 45_600, 2_500_000)] == [
        "0",
        "999",
        "1k",
        "1.2k",
        "46k",
        "2.5M",
    ]
    assert [words.relative(at, 10_000) for at in (None, 10_000, 70_000, 4_000)] == ["–", "now", "in 1m", "6s ago"]
    assert words.moment(10**17) == f"{10**17} ms"
    assert "0x00ff" in words.pretty({"raw": b"\x00\xff"})
    assert len(words.pretty("x" * 100_000)) < 21_000
