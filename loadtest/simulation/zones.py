"""Time zones whose clocks change a minute after the beginning of a run, and when a cron expression occurs in them.

    Sim/Spring    00:01:00 becomes 01:01:00, so an hour is skipped
    Sim/Autumn    00:01:00 becomes 23:01:00, so an hour comes twice

`occurrences` does not use the product's cron: it looks at every second, and knows the guide's rules only. What is
skipped runs once, in the minute of the change; a repeated one runs the first time; an expression for every hour follows
elapsed time.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from loadtest.simulation.world import EPOCH_S

SHIFTS_S = {"Sim/Spring": 3_600, "Sim/Autumn": -3_600}
"""By how many seconds the clocks of each zone change."""
CHANGE_AT = 60
"""The second of the run in which they do."""


def zone_info(name: str) -> ZoneInfo:
    """Returns a zone of the run, or a real one. Raises: what ZoneInfo raises."""
    if name not in SHIFTS_S:
        return ZoneInfo(name)
    counts = struct.pack(">6l", 0, 0, 0, 1, 2, 4)
    change = struct.pack(">lB", int(EPOCH_S) + CHANGE_AT, 1)
    kinds = struct.pack(">lBBlBB", 0, 0, 0, SHIFTS_S[name], 0, 0)
    return ZoneInfo.from_file(io.BytesIO(b"TZif" + bytes(16) + counts + change + kinds + b"SIM\0"), key=name)


def occurrences(expression: str, name: str, begins: int, ends: int) -> Iterator[int]:
    """Yields the seconds of a run, from `begins` to before `ends`, in which an expression of six fields occurs."""
    shift_s = SHIFTS_S.get(name, 0)
    fields = expression.split()[:3]
    names_hours = fields[2] != "*"
    skipped = (at for at in range(CHANGE_AT, CHANGE_AT + shift_s) if names_hours and _matches(fields, at))
    moved = next((CHANGE_AT + at % 60 for at in skipped), None)
    for second in range(begins, ends):
        local_s = second + (shift_s if second >= CHANGE_AT else 0)
        came_before = names_hours and shift_s < 0 and second >= CHANGE_AT > local_s
        if second == moved or (_matches(fields, local_s) and not came_before):
            yield second


def _matches(fields: Sequence[str], local_s: int) -> bool:
    """Whether a second of the wall clock matches, counted from the beginning of the run."""
    wall = datetime.fromtimestamp(EPOCH_S, UTC) + timedelta(seconds=local_s)
    return all(map(_is_in, fields, (wall.second, wall.minute, wall.hour)))


def _is_in(field: str, value: int) -> bool:
    if field.startswith("*"):
        return value % int(field[2:] or 1) == 0
    return value in map(int, field.split(","))
