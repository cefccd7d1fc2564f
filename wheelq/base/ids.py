"""Makes the ids of jobs and the tags of calls.

While a job is alive, a call with its id makes no second one. A call repeated with its tag makes none even later.

An id has 48 bits of milliseconds, 50 random bits of the process and a 30-bit counter: 26 Crockford base32 characters
that sort by creation time, like a ULID (github.com/ulid/spec).
"""

from __future__ import annotations

import itertools
import os
import random
import secrets

from wheelq.base.clock import wall_ms

# A table of ten bits at a time: bulk producers make about one id per microsecond.
_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _BASE32 for b in _BASE32]


class _IdMaker:
    def __init__(self) -> None:
        self.seed()

    def seed(self) -> None:
        self._process = "".join(_PAIRS[secrets.randbelow(1024)] for _ in range(5))
        self._numbers = itertools.count(secrets.randbelow(1 << 20))
        self._last = -1, -1, ""

    def make(self) -> str:
        ms, n = wall_ms(), next(self._numbers)
        last_ms, last_high, stem = self._last  # at once: threads share it
        if last_ms != ms or last_high != n >> 10:
            pairs = [_PAIRS[ms >> shift & 1023] for shift in (40, 30, 20, 10, 0)]
            stem = "".join((*pairs, self._process, _PAIRS[n >> 20 & 1023], _PAIRS[n >> 10 & 1023]))
            self._last = ms, n >> 10, stem
        return stem + _PAIRS[n & 1023]


_ids = _IdMaker()
os.register_at_fork(after_in_child=_ids.seed)


make_id = _ids.make
"""A new job id: 26 characters, sorting by creation time, unique over processes, forks and threads."""

_random = random.Random()
os.register_at_fork(after_in_child=_random.seed)

random_bits = _random.getrandbits
"""Returns a number of so many random bits. Seeded by the system, but not for secrets; it takes a third of the time."""


def make_tag() -> bytes:
    """Returns the tag of a call: twelve random bytes."""
    return random_bits(96).to_bytes(12, "big")
