"""What callers say, checked and put into the words of the scripts. Pure.

Every function raises `InvalidInput`, which names the field and the remedy. Times come as seconds, `timedelta` or aware
`datetime`, and leave as whole milliseconds, rounded up: never early.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime, timedelta
from typing import get_args

from wheelq.errors import InvalidInput
from wheelq.job import OnDuplicate

TOPIC_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ID_BYTES_LIMIT = 256
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_topic(topic: str) -> str:
    """The topic's name, if it is one. Raises: InvalidInput."""
    if not isinstance(topic, str) or not TOPIC_PATTERN.fullmatch(topic):
        raise InvalidInput(
            "topic",
            f"{topic!r} is no topic name: use 1 to 100 letters, digits, '.', '_' or '-', a letter or digit first",
        )
    return topic


def check_id(id: str, field: str = "key") -> str:
    """The job id, if it can be one. Raises: InvalidInput."""
    if not isinstance(id, str) or not id:
        raise InvalidInput(field, f"a job id is a non-empty string, not {id!r}")
    if _CONTROL.search(id):
        raise InvalidInput(field, f"{id!r} holds control characters, which a job id may not")
    try:
        id_bytes = len(id.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(field, f"{id!r} is not valid Unicode text ({error.reason})") from error
    if id_bytes > ID_BYTES_LIMIT:
        raise InvalidInput(field, f"{id_bytes} bytes long, the limit is {ID_BYTES_LIMIT}")
    return id


def check_on_duplicate(on_duplicate: str) -> None:
    """Raises: InvalidInput, unless it is one of the three words."""
    if on_duplicate not in get_args(OnDuplicate):
        raise InvalidInput("on_duplicate", f"must be 'keep', 'replace' or 'raise', not {on_duplicate!r}")


_SUFFIXES = {"high": "h", "normal": "", "low": "l"}


def shifted(due: str, id: str, priority: str, spread: float | timedelta | None, max_delay_ms: int) -> str:
    """A due argument with a job's spread and priority, as the schedule script reads it. Raises: InvalidInput."""
    if priority not in _SUFFIXES:
        raise InvalidInput("priority", f"must be {', '.join(_SUFFIXES)}, not {priority!r}")
    if spread is not None:
        # The high bits of the hash: the low ones have chosen the shard.
        offset_ms = zlib.crc32(id.encode()) * (delay_ms(spread, max_delay_ms, "spread") + 1) >> 32
        due = due[: due.startswith("+")] + str(int(due) + offset_ms)
    return due + _SUFFIXES[priority]


def expiry(expires: float | timedelta | datetime, max_delay_ms: int) -> tuple[str, int]:
    """A job's `expires` as its record holds it: an option and its milliseconds. Raises: InvalidInput."""
    if isinstance(expires, datetime):
        return "X", _due_ms(expires, 0, 2**62, "expires")
    return "x", delay_ms(expires, max_delay_ms, "expires")


_MAX_DELAY_HINT = "schedule it nearer, or raise max_delay_ms"


def due_argument(delay: float | timedelta | None, at: datetime | None, now_ms: int, max_delay_ms: int) -> str:
    """When a job is due, as the schedule script reads it: "+ms" after the server's now, or "ms" since the epoch.

    `now_ms` (this machine's clock) serves only to refuse an absurd `at`. Raises: InvalidInput.
    """
    if at is not None:
        if delay is not None:
            raise InvalidInput("at", "give either delay or at, not both")
        return str(_due_ms(at, now_ms, max_delay_ms))
    if delay is None:
        raise InvalidInput("delay", "missing: give delay (seconds or timedelta) or at (aware datetime)")
    return "+" + str(delay_ms(delay, max_delay_ms))


def delay_ms(delay: float | timedelta, max_delay_ms: int, field: str = "delay") -> int:
    """A length of time in whole milliseconds, rounded up. Raises: InvalidInput."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, (int, float)):
        raise InvalidInput(field, f"must be seconds (a number) or a timedelta, not {type(delay).__name__}")
    if not delay >= 0:  # catches NaN too
        raise InvalidInput(field, f"must not be negative, not {delay!r}; 0 means at once")
    if delay * 1000 > max_delay_ms:
        raise InvalidInput(field, f"{delay!r} s is beyond the limit of {max_delay_ms / 1000:,.0f} s; {_MAX_DELAY_HINT}")
    ms = int(delay * 1000)
    # Never early: a fraction of a millisecond is rounded up. Multiplying may miss a whole number by a hair (0.29 s is
    # 290.00000000000006 ms), and such a hair is not a fraction.
    return ms if delay * 1000 - ms < 1e-6 else ms + 1


def to_ms(at: datetime, field: str = "at") -> int:
    """An aware datetime as milliseconds since the Unix epoch, rounded up. Raises: InvalidInput."""
    if not isinstance(at, datetime):
        raise InvalidInput(field, f"must be an aware datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise InvalidInput(field, f"{at.isoformat()} has no time zone: use datetime.now(UTC) or add tzinfo")
    microseconds = (at - _EPOCH) // timedelta(microseconds=1)
    return -(-microseconds // 1000)


def _due_ms(at: datetime, now_ms: int, max_delay_ms: int, field: str = "at") -> int:
    ms = to_ms(at, field)
    if ms < 0:
        raise InvalidInput(field, f"{at.isoformat()} lies before 1970")
    if ms - now_ms > max_delay_ms:
        raise InvalidInput(
            field, f"{at.isoformat()} is beyond the limit of {max_delay_ms / 1000:,.0f} s from now; {_MAX_DELAY_HINT}"
        )
    return ms
