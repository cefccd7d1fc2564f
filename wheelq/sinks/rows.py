"""Stores what can be stored when a batch is refused because of some of its rows. Pure but for `store`.

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
    """Per item the error with which it was refused, or None.

    `store` stores all it is given or nothing. An error of it that is not about the rows comes out as it is; what was
    stored before stays stored.
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
