"""Numbers in sentences."""

from __future__ import annotations

import pytest

from wheelq.base.plural import counted
from wheelq.errors import BatchFailed


@pytest.mark.parametrize(("number", "said"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1_200, "1,200 jobs")])
def test_one_is_not_many(number: int, said: str) -> None:
    assert counted(number, "job") == said


def test_the_verb_goes_along() -> None:
    assert [counted(number, "job waits", "jobs wait") for number in (1, 2)] == ["1 job waits", "2 jobs wait"]


def test_an_error_about_one_job_says_so() -> None:
    assert str(BatchFailed({"a": ValueError()})) == "1 job of a batch failed: a"
