"""Which histories of calls about one job can be explained, and which cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.simulation.oracle.linear import INFINITE, UNKNOWN, Act, misfit

T4: tuple[float, float] = (4_000.0, 4_000.0)
T9: tuple[float, float] = (9_000.0, 9_000.0)


def act(does: str, start: float, end: float, outcome: str = "", due: tuple[float, float] = T4, who: str = "") -> Act:
    return Act(does, start, end, outcome or (UNKNOWN if end == INFINITE else ""), due, who)


CREATED = act("schedule", 1.0, 1.1, "created")
PROMOTED = act("promotion", 4.0, 4.0)
ENDED = act("end", 5.0, INFINITE)
CANCELLED = act("cancel", 2.0, 2.1, "cancelled")
LOST = act("schedule", 1.0, INFINITE, UNKNOWN)
CALLED = act("run-now", 2.0, 2.1, "promoted", (2_000, 2_100))
AT_NINE = act("promotion", 9.0, 9.0, due=T9), act("end", 9.5, INFINITE)
NOT_FOUND = act("cancel", 2.0, 2.1, "not_found", who="producer-1")
KEPT = replace(LOST, who="producer-4", kept_at=1.2)

RIGHT = {
    "a job is promoted and ends": [CREATED, PROMOTED, ENDED],
    "a job is cancelled": [CREATED, CANCELLED],
    "a cancelled job is made again": [CREATED, CANCELLED, act("schedule", 3.0, 3.1, "created"), PROMOTED, ENDED],
    "calls at the same time have any order": [
        act("cancel", 1.0, 1.5, "not_found"),
        act("schedule", 1.0, 1.5, "created"),
        act("cancel", 1.0, 1.5, "cancelled"),
        act("get", 1.0, 1.5, "nothing"),
        act("schedule", 1.0, 1.5, "there"),
        act("get", 1.0, 1.5, "waiting"),
    ],
    "a lost call has made the job": [LOST, act("schedule", 2.0, 2.1, "there"), PROMOTED, ENDED],
    "a lost call has done nothing": [LOST, act("get", 2.0, 2.1, "nothing"), act("cancel", 3.0, 3.1, "not_found")],
    "a lost call takes effect long afterwards": [LOST, act("get", 2.0, 2.1, "nothing"), PROMOTED, ENDED],
    "a lost cancellation has hit": [CREATED, act("cancel", 2.0, INFINITE), act("get", 3.0, 3.1, "nothing")],
    "a lost reschedule has hit": [CREATED, act("reschedule", 2.0, INFINITE, due=T9), *AT_NINE],
    "a job that is run now": [CREATED, CALLED, act("promotion", 2.05, 2.05, due=(2_050, 2_050)), ENDED],
    "a finished id is free": [CREATED, PROMOTED, ENDED, act("schedule", 6.0, 6.1, "created", T9), *AT_NINE],
    "a promoted job is not replaced": [CREATED, PROMOTED, act("replace", 4.5, 4.6, "there", T9), ENDED],
    "an outbox delivers before the next call": [KEPT, act("cancel", 2.0, 2.1, "cancelled", who="producer-4")],
    "another producer knows nothing of an outbox": [KEPT, NOT_FOUND, PROMOTED, ENDED],
}  # fmt: skip

WRONG = {
    "a cancelled job is promoted": [CREATED, CANCELLED, PROMOTED, ENDED],
    "a job is promoted twice": [CREATED, PROMOTED, act("promotion", 4.5, 4.5), ENDED, ENDED],
    "a job that was never made is promoted": [PROMOTED, ENDED],
    "a job is not found": [CREATED, act("get", 2.0, 2.1, "nothing"), PROMOTED, ENDED],
    "a job is made where one waits": [CREATED, act("schedule", 2.0, 2.1, "created"), PROMOTED, ENDED],
    "an id is free before its job has ended": [CREATED, PROMOTED, act("schedule", 4.2, 4.3, "created"), ENDED],
    "a due time is not the last one": [CREATED, act("reschedule", 2.0, 2.1, "rescheduled", T9), PROMOTED, ENDED],
    "a job was called and is not promoted": [CREATED, CALLED],
    "a job waits for ever": [CREATED],
    "a job never ends": [CREATED, PROMOTED],
    # these were skipped, because an outcome was unknown, or because calls were in progress at the same time
    "one of two lost calls would have to come twice": [LOST, CANCELLED, act("cancel", 3.0, 3.1, "cancelled")],
    "a lost call does not make a job that is cancelled and runs": [LOST, CANCELLED, PROMOTED, ENDED],
    "two cancellations at the same time both win": [CREATED, CANCELLED, CANCELLED],
    "a job is promoted beside a cancellation": [CREATED, act("cancel", 3.9, 4.1, "cancelled"), PROMOTED, ENDED],
    "a replacement of a promoted job is confirmed": [LOST, PROMOTED, act("replace", 4.5, 4.6, "replaced"), ENDED],
    "two calls at the same time both make the job": [CREATED, CREATED, PROMOTED, ENDED],
    "an outbox forgets its job": [KEPT, replace(NOT_FOUND, who="producer-4")],
    "a kept job is promoted at another time": [KEPT, act("get", 2.0, 2.1, "waiting"), *AT_NINE],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_is_explained(name: str) -> None:
    assert misfit(RIGHT[name], at_rest=True) is None


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_is_not(name: str) -> None:
    assert misfit(WRONG[name], at_rest=True)


def test_it_is_told_how_far_the_best_order_comes() -> None:
    found = misfit([CREATED, CANCELLED, PROMOTED])
    assert found == (
        "schedule at 1.000 (created), cancel at 2.000 (cancelled): it is absent, and then none of these can be: "
        "promotion at 4.000"
    )


def test_a_history_may_end_before_its_job() -> None:
    assert misfit([CREATED]) is None
    assert misfit([CREATED, PROMOTED]) is None


def test_twenty_calls_of_which_none_was_answered_are_judged_in_a_moment() -> None:
    """Every order of them is possible, and a pair of a set and a state is tried once."""
    lost = [act(does, n / 10, INFINITE) for n, does in enumerate(("schedule", "cancel", "reschedule", "run-now") * 4)]
    certain = [act("get", 3.0, 3.1, "waiting"), act("get", 3.2, 3.3, "nothing"), act("get", 3.4, 3.5, "waiting")]
    assert misfit([*lost, *certain]) is None


def test_a_search_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.simulation.oracle.linear.MOST_STEPS", 2)
    with pytest.raises(ValueError, match="too many orders"):
        misfit([CREATED, CANCELLED, PROMOTED, ENDED, act("get", 8.0, 8.1, "dead")])
