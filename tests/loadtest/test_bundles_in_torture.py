"""What torture promises about bundles: the counts, and that no member begins after the follower was made."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.judge import Disruption, JobRun, Promotion
from loadtest.torture.bundles import Bundled, wrong
from wheelq import Bundle, BundleState

MADE_MS = 1_000


def problems(found: Bundle | None, *runs: JobRun, disruptions: tuple[Disruption, ...] = (), **given: Any) -> list[str]:
    one = Bundled("after:b1", {"a", "b"}, **given)
    made = Promotion(one.follower, MADE_MS, MADE_MS)
    return list(wrong([one], lambda _: found, [made], runs, disruptions))


def bundle(state: BundleState = BundleState.ENDED, members: int = 2, left: int = 0) -> Bundle:
    return Bundle("after:b1", state, "all_done", "after", "bundle-b1", members, members - left, left=left)


def run(id: str, started_ms: float, entry: str = "1-0") -> JobRun:
    return JobRun(id, entry, started_ms)


def test_a_bundle_whose_members_ran_before_its_follower_is_right() -> None:
    assert problems(bundle(), run("a", 900), run("b", 950)) == []


@pytest.mark.parametrize(
    ("found", "given", "is_wrong"),
    [
        (bundle(members=3), {}, True),
        (bundle(members=3), {"perhaps": {"c"}}, False),
        (bundle(left=1), {}, True),
        (bundle(BundleState.CLOSED), {}, True),
        (bundle(BundleState.CLOSED), {"is_sure": False}, False),
        (None, {}, True),
    ],
)
def test_its_state_and_its_counts_are_compared(found: Bundle | None, given: dict[str, Any], is_wrong: bool) -> None:
    assert bool(problems(found, **given)) == is_wrong


def test_a_member_that_begins_after_the_follower_was_made_is_found() -> None:
    [problem] = problems(bundle(), run("a", 1_500))
    assert problem == "a began 500 ms after bundle-b1, which follows it, was made"


def test_a_repeated_run_is_none_of_its_beginnings() -> None:
    assert problems(bundle(), run("a", 1_500), run("a", 900)) == []
    assert problems(bundle(), run("a", 1_500, "2-0"), run("a", 900)) != []


def test_a_failover_may_let_a_member_run_again() -> None:
    failover = Disruption("fail-over", "", 1_200, 1_300, may_undo=True)
    assert problems(bundle(), run("a", 1_500), disruptions=(failover,)) == []
