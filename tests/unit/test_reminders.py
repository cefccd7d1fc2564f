"""What the server refuses is said once, then each minute, however many loops meet it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.waiting import until
from wheelq import reminders
from wheelq.base.clock import ManualClock
from wheelq.errors import NotPermitted, NotPrimary, OutcomeUnknown, Refused, Unavailable
from wheelq.reminders import Loop, Reminders

logger = logging.getLogger("wheelq.test")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def told(clock: ManualClock) -> Reminders:
    return Reminders(clock)


def test_an_outage_is_said_once_and_then_each_minute(
    told: Reminders, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(130):
        told.warn(logger, "orders is not read", Unavailable("nobody there"))
        told.warn(logger, "acks wait", OutcomeUnknown("no reply"))
        clock.advance(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "orders is not read: nobody there",
        "still, after 60 s: orders is not read: nobody there",
        "still, after 120 s: orders is not read: nobody there",
    ]


def test_an_outage_that_was_over_is_said_again(
    told: Reminders, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        told.warn(logger, "orders is not read", Unavailable("nobody there"))
        clock.advance(30.0)
    assert [record.getMessage() for record in caplog.records] == ["orders is not read: nobody there"] * 2


def test_the_end_of_an_outage_is_said_once(
    told: Reminders, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_an_outage_goes_on_while_the_same_loop_fails_for_another_reason(
    told: Reminders, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that becomes a replica ends the waiting read, and then refuses all others."""
    with caplog.at_level(logging.INFO, "wheelq.test"):
        told.warn(logger, "orders is not read", Refused("UNBLOCKED master -> replica"))
        for _ in range(42):
            clock.advance(1.0)
            told.warn(logger, "orders is not read", NotPrimary("not the primary"))
            told.warn(logger, "mails are not read", NotPermitted("no xack"))
        for _ in range(60):
            clock.advance(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "orders is not read: UNBLOCKED master -> replica",
        "orders is not read: not the primary",
        "mails are not read: no xack",
        "over, it lasted 42 s: orders is not read",
        "over, it lasted 41 s: mails are not read",
    ]


def test_refusals_differ_by_their_kind_and_missing_rights_by_their_words(
    told: Reminders, caplog: pytest.LogCaptureFixture
) -> None:
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


# Loop


class Steps:
    """What a loop does: each step takes the next outcome, an error to raise or the seconds until the next step."""

    def __init__(self, clock: ManualClock, *outcomes: Exception | float) -> None:
        self._clock = clock
        self._outcomes = list(outcomes)
        self.done = 0
        self.paused: list[float] = []
        clock.sleep = self._sleep  # type: ignore[method-assign]

    async def _sleep(self, seconds: float) -> None:
        self.paused.append(seconds)
        self._clock.advance(seconds)

    @property
    def is_over(self) -> bool:
        return not self._outcomes

    async def step(self) -> float:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        self.done += 1
        return outcome


AWAY = Unavailable("nobody there")


async def test_a_loop_pauses_longer_after_each_failure_and_as_it_is_told_after_a_success(clock: ManualClock) -> None:
    steps = Steps(clock, AWAY, AWAY, AWAY, 5.0, AWAY, 0.0)
    await Loop(clock, logger, "it waits", 0.1, 0.3).run(steps.step, is_over=lambda: steps.is_over)
    assert steps.paused == [0.1, 0.2, 0.3, 5.0, 0.1]


async def test_a_loop_says_once_that_it_fails(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(clock, AWAY, AWAY, 0.0)
    with reminders.kept(clock):
        await Loop(clock, logger, lambda: f"step {steps.done + 1} waits").run(steps.step, is_over=lambda: steps.is_over)
    assert [record.getMessage() for record in caplog.records] == ["step 1 waits until the server is back: nobody there"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AWAY, "it waits until the server is back: nobody there"),
        (NotPermitted("no xack"), "it waits until the server permits it: no xack"),
        (Refused("MISCONF"), "it waits: MISCONF"),
    ],
)
async def test_a_loop_says_until_when_by_the_kind_of_its_error(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    """A worker used to say "until this worker may listen" while the server was merely away."""
    steps = Steps(clock, error, 0.0)
    await Loop(clock, logger, "it waits").run(steps.step, is_over=lambda: steps.is_over)
    assert [record.getMessage() for record in caplog.records] == [said]


async def test_a_pause_of_a_loop_ends_when_it_is_woken(clock: ManualClock) -> None:
    wake = asyncio.Event()
    steps = Steps(clock, 60.0, 0.0)
    running = asyncio.create_task(Loop(clock, logger, "it waits").run(steps.step, wake, lambda: steps.is_over))
    await until(lambda: steps.done == 1)
    wake.set()
    await until(lambda: steps.done == 2)
    clock.advance(0.0)
    await running


async def test_an_unexpected_error_ends_a_loop_unless_it_has_words_for_it(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyError):
        await Loop(clock, logger, "it waits").attempt(Steps(clock, KeyError("x")).step)
    loop = Loop(clock, logger, "it waits", 0.1, 3.0, unexpected="it starts afresh")
    assert await loop.attempt(Steps(clock, KeyError("x")).step) == 3.0
    assert [(record.getMessage(), record.exc_info is not None) for record in caplog.records] == [
        ("it starts afresh", True)
    ]


async def test_insisting_ends_with_the_answer(clock: ManualClock) -> None:
    steps = Steps(clock, RuntimeError("no thread"), RuntimeError("no thread"), 7.0)
    assert await Loop(clock, logger, "it waits", 0.1, errors=RuntimeError).insist(steps.step) == 7.0
    assert steps.paused == [0.1, 0.2]
