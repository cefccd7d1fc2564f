"""The attempts of a job in its record: a list of `[start in ms, duration in ms, worker, error or nil]`.

A record holds them under the option `t`; a job that succeeds at its first attempt has none. The attempts of finished
jobs are stored separately: see `keep_done` in `lua/lib/done.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from wheelq.model.state import ATTEMPT_ERROR_BYTES, ATTEMPTS_KEPT, Attempt

_LAST_MS = 2**53


def added(before: Sequence[Attempt], attempt: Attempt) -> list[Attempt]:
    """Returns the last ten attempts after adding one."""
    return [*before, attempt][-ATTEMPTS_KEPT:]


def read(stored: Any) -> tuple[Attempt, ...]:
    """Returns the attempts in an option `t`, without values that are not attempts."""
    return tuple(Attempt(*one) for one in stored if _is_attempt(one)) if type(stored) is list else ()


def pack(attempts: Sequence[Attempt]) -> bytes:
    """Returns the packed attempts; empty if there are none."""
    packed: bytes = msgpack.packb(attempts) if attempts else b""
    return packed


def unpack(packed: bytes) -> tuple[Attempt, ...]:
    """Returns the attempts that `pack` packed; none if another program wrote it."""
    try:
        return read(msgpack.unpackb(packed)) if packed else ()
    except ValueError:
        return ()


def cut_error(error: str) -> str:
    """Returns the beginning of an error, as an attempt keeps it: at most 200 bytes of UTF-8."""
    return error.encode(errors="replace")[:ATTEMPT_ERROR_BYTES].decode(errors="ignore")


def _is_attempt(one: Any) -> bool:
    match one:
        case [int(start), int(ms), str(), str() | None]:
            return 0 <= start < _LAST_MS and 0 <= ms < _LAST_MS
    return False
