"""Numbers in sentences: 1 job, 1,200 jobs."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Returns the number with its noun; `many` is the plural, if that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
