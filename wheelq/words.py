"""Numbers in sentences: 1 job, 1,200 jobs."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """The number and what it counts; `many`, unless it is `one` with an s, says more than one, or none."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
