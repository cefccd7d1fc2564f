"""What the server refuses is said once, then each minute, however many loops meet it."""

from __future__ import annotations

import logging

import pytest

from wheelq import reminders
from wheelq.base.clock import ManualClock
from wheelq.errors import NotPermitted, OutcomeUnknown, Refused, Unavailable
from wheelq.reminders import Reminders

logger = logging.getLogger("wheelq.test")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_an_outage_is_said_once_and_then_each_minute(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    told = Reminders(clock)
    for _ in range(130):
        told.warn(logger, "orders is not read", Unavailable("nobody there"))
        told.warn(logger, "acks wait", OutcomeUnknown("no reply"))
        clock.advance(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "orders is not read: nobody there",
        "still, after 60 s: orders is not read: nobody there",
        "still, after 120 s: orders is not read: nobody there",
    ]


def test_an_outage_that_was_over_is_said_again(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    told = Reminders(clock)
    for _ in range(2):
        told.warn(logger, "orders is not read", Unavailable("nobody there"))
        clock.advance(30.0)
    assert [record.getMessage() for record in caplog.records] == ["orders is not read: nobody there"] * 2


def test_the_end_of_an_outage_is_said_once(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    told = Reminders(clock)
    with caplog.at_level(logging.INFO, "wheelq.test"):
        for _ in range(43):
            told.warn(logger, "orders is not read", Unavailable("nobody there"))
            clock.advance(1.0)
        for _ in range(60):
            clock.advance(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "orders is not read: nobody there",
        "over, it lasted 42 s: orders is not read",
    ]


def test_refusals_differ_by_their_kind_and_missing_rights_by_their_words(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    told = Reminders(clock)
    for _ in range(2):
        for error in (
            Refused("MISCONF of script 1"),
            Refused("MISCONF of script 2"),
            Refused("NOREPLICAS"),
            NotPermitted("no xack"),
            NotPermitted("no xadd"),
        ):
            told.warn(logger, "waits", error)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["waits: MISCONF of script 1", "waits: NOREPLICAS", "waits: no xack", "waits: no xadd"]


def test_each_process_says_it_for_itself(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with reminders.kept(clock):
            for _ in range(3):
                reminders.warn(logger, "waits", Unavailable("nobody there"))
    assert len(caplog.records) == 2
