"""The judge of the herd: by ids, not by how many have started."""

from __future__ import annotations

from loadtest.herd import wrong

PROMISED = {"a", "b", "c"}


def test_a_start_for_each_job_is_right() -> None:
    assert not any(wrong(PROMISED, ["c", "a", "b"], [0.0, 5.0, 3.0]).values())


def test_a_job_that_is_doubled_makes_up_for_none_that_is_lost() -> None:
    assert wrong(PROMISED, ["a", "b", "b"], [0.0, 1.0, 1.0]) == {"lost": 1, "early": 0, "doubled": 1}


def test_a_start_more_than_the_clocks_error_before_the_due_time_is_early() -> None:
    assert wrong(PROMISED, ["a", "b", "c"], [-0.9, -1.1, 0.0])["early"] == 1
