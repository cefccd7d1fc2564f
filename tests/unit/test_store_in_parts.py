"""A batch with bad rows is stored in parts: all good ones once, the bad ones alone, whatever else comes out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelq.sinks.sql import DatabaseAway, store_in_parts


class Bad(Exception):
    """These rows are refused."""


class Table:
    """Takes all it is given, or nothing."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.rows: list[int] = []
        self.attempts = 0

    def store(self, items: Sequence[int]) -> None:
        self.attempts += 1
        if refused := self.bad & set(items):
            raise Bad(refused)
        self.rows += items


@given(st.integers(1, 300), st.sets(st.integers(0, 299)))
def test_the_good_ones_are_stored_once_in_order_and_each_bad_one_has_its_error(count: int, bad: set[int]) -> None:
    table = Table(bad)
    errors = store_in_parts(range(count), table.store)
    assert table.rows == [n for n in range(count) if n not in bad]
    assert [n for n, error in enumerate(errors) if error is not None] == sorted(bad & set(range(count)))
    assert all(error is None or error.args == ({n},) for n, error in enumerate(errors))


def test_one_bad_row_among_many_costs_few_attempts() -> None:
    table = Table({321})
    store_in_parts(range(500), table.store)
    assert table.attempts <= 1 + 2 * 9


def test_an_error_that_is_not_about_rows_comes_out_at_once() -> None:
    def store(items: Sequence[int]) -> None:
        raise DatabaseAway("gone")

    with pytest.raises(DatabaseAway):
        store_in_parts(range(8), store)
