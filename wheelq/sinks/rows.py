"""Stores the good rows of a batch that is refused because of some bad ones. Pure except for `store`.

    500 ✗ ─┬─ 250 ✓
           └─ 250 ✗ ─┬─ 125 ✗ ─ … ─ 1 ✗  the bad row
                     └─ 125 ✓

One bad row among n costs about 2·log2(n) further attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def store_in_parts(
    items: Sequence[T], store: Callable[[Sequence[T]], object], is_about_rows: Callable[[Exception], bool]
) -> list[Exception | None]:
    """Returns for each item the error with which it was refused, or None.

    `store` stores all given items or none. Its errors that are not about the rows are raised; items stored before that
    stay stored.
    """
    try:
        store(items)
    except Exception as error:
        if not is_about_rows(error):
            raise
        if len(items) == 1:
            return [error]
    else:
        return [None] * len(items)
    half = len(items) // 2
    return [
        *store_in_parts(items[:half], store, is_about_rows),
        *store_in_parts(items[half:], store, is_about_rows),
    ]
