"""Job ids made by the producer, so that a call repeated with the same id can never make two jobs.

48 bits of milliseconds, 50 bits that belong to this process alone, 30 bits of counting: 26 Crockford base32 characters
that sort by creation time, like a ULID (github.com/ulid/spec).
"""

from __future__ import annotations

import itertools
import os
import re
import secrets

from wheelq.clock import wall_ms

# Ten bits at a time from a table, because bulk producers make one for every microsecond.
_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _BASE32 for b in _BASE32]


class _IdMaker:
    def __init__(self) -> None:
        self.seed()

    def seed(self) -> None:
        self._process = "".join(_PAIRS[secrets.randbelow(1024)] for _ in range(5))
        self._numbers = itertools.count(secrets.randbelow(1 << 20))
        self._ms = -1
        self._stem = ""

    def make(self) -> str:
        ms = wall_ms()
        if ms != self._ms:
            stem = "".join(_PAIRS[ms >> shift & 1023] for shift in (40, 30, 20, 10, 0)) + self._process
            self._ms, self._stem = ms, stem
        n = next(self._numbers)
        return self._stem + _PAIRS[n >> 20 & 1023] + _PAIRS[n >> 10 & 1023] + _PAIRS[n & 1023]


_ids = _IdMaker()
os.register_at_fork(after_in_child=_ids.seed)


make_id = _ids.make
"""A new job id: 26 characters, sorting by creation time, unique over processes, forks and threads."""

_MADE_ID = re.compile(f"[{_BASE32}]{{26}}")


def made_ms(id: str) -> int | None:
    """When an id was made, by the producer's clock; None of one that looks as if it was given."""
    if not _MADE_ID.fullmatch(id):
        return None
    ms = 0
    for character in id[:10]:
        ms = ms << 5 | _BASE32.index(character)
    return ms
