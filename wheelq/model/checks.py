"""Checks callers' arguments and converts them to what the scripts take. Pure.

Every function raises `InvalidInput`, which names the field and the remedy. Times are given as seconds, `timedelta` or
aware `datetime`, and returned as whole milliseconds, rounded up: never early.
"""

from __future__ import annotations

import inspect
import re
import zlib
from datetime import UTC, datetime, timedelta
from typing import get_args

from wheelq.errors import InvalidInput
from wheelq.model.job import SECOND, OnDuplicate
from wheelq.settings.components import ON_DEAD, ON_DEAD_PROBLEM

TOPIC_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ID_BYTES_LIMIT = 256
DOTS_PATTERN = r"(^|/)\.\.?(/|$)"
"""Matches names that no URL's path can hold, because clients and proxies remove such parts from paths."""
_DOTS = re.compile(DOTS_PATTERN)
C1_PATTERN = r"[\x80-\x9f]"
"""Matches the control characters that only ids of other programs have; some terminals obey them."""
_C1 = re.compile(C1_PATTERN)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HAS_CONTROL = "holds control characters, which are not allowed here"
MOST_ATTEMPTS = 1_000_000
LONGEST_RUN_MS = 366 * 86_400_000
PAGE_LIMIT = 500
"""The most jobs on one page."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999 in UTC: `from_ms` has none later."""


def check_runs(function: object) -> None:
    """Raises: InvalidInput for a generator function, because a call runs nothing of it."""
    called = function, getattr(type(function), "__call__", None)  # noqa: B004  # of an object that is called
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in called):
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidInput("function", f"{name} contains `yield`, so a call of it runs nothing: return a value instead")


def check_topic(topic: str) -> str:
    """Returns the topic's name if it is valid. Raises: InvalidInput."""
    if callable(topic):
        name = getattr(topic, "__name__", "task")
        problem = (
            f"is the function {name}, not a topic name: write schedule({name}.job(…)) for a job of a task, "
            f'{name}.topic for its topic, and @worker.handler("orders") above a handler'
        )
        raise InvalidInput("topic", problem)
    if not isinstance(topic, str) or not TOPIC_PATTERN.fullmatch(topic):
        raise InvalidInput(
            "topic",
            f"{topic!r} is not a topic name: use 1 to 100 letters, digits, '.', '_' or '-', a letter or digit first",
        )
    _check_text(topic, "topic")
    return topic


def _check_text(text: str, field: str) -> None:
    """Refuse a string whose text is not its value, such as a member of `class Topics(str, Enum)`."""
    if type(text) is not str and format(text) != (value := str.__str__(text)):
        raise InvalidInput(field, f"{text!r} is written as {format(text)!r}: give its value, {value!r}")


def check_flag(flag: bool, field: str) -> None:
    """Check a yes or no. Raises: InvalidInput."""
    if type(flag) is not bool:
        raise InvalidInput(field, f"must be True or False, not {shown(flag)}")


def shown(value: object) -> str:
    """Returns at most 60 characters that show a value in an error, also if its `repr` fails."""
    try:
        return f"{value!r:.60}"
    except Exception:  # noqa: BLE001  # of a huge number, of a deep list, of its own __repr__
        return f"this {type(value).__name__}"


def check_id(id: str, field: str = "key") -> str:
    """Returns the job id if it is valid. Raises: InvalidInput."""
    if not isinstance(id, str) or not id:
        raise InvalidInput(field, f"must be a non-empty string, not {shown(id)}")
    if _CONTROL.search(id):
        raise InvalidInput(field, f"{id!r} {_HAS_CONTROL}")
    try:
        id_bytes = len(id.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(field, f"{id!r} is not valid Unicode text ({error.reason})") from error
    if id_bytes > ID_BYTES_LIMIT:
        raise InvalidInput(field, f"{id_bytes} bytes long, the limit is {ID_BYTES_LIMIT}")
    _check_text(id, field)
    return id


def check_new_id(id: str, field: str = "key") -> str:
    """Returns the id if a new job may have it. Raises: InvalidInput."""
    if not check_id(id, field).isascii() and _C1.search(id):
        raise InvalidInput(field, f"{id!r} {_HAS_CONTROL}")
    if "." in id and _DOTS.search(id):
        raise InvalidInput(field, f"{id!r} is '.' or '..', or has one between slashes: no URL can hold such an id")
    return id


def check_limit(limit: int) -> None:
    """Check the length of a page."""
    if type(limit) is not int or not 1 <= limit <= PAGE_LIMIT:
        raise InvalidInput("limit", f"must be 1 to {PAGE_LIMIT}, not {shown(limit)}")


def check_most(most: int | None, field: str) -> None:
    """Check how many there may be at most; None: any number."""
    if most is not None and (type(most) is not int or most < 1):
        raise InvalidInput(field, f"must be a whole number from 1 on, or left out for no limit, not {shown(most)}")


def check_on_dead(on_dead: str) -> str:
    """Returns where a dead job is told of, if it is valid. Raises: InvalidInput."""
    if not isinstance(on_dead, str) or not ON_DEAD.fullmatch(on_dead):
        raise InvalidInput("on_dead", f"{ON_DEAD_PROBLEM}, not {shown(on_dead)}")
    return on_dead


_ON_DUPLICATE = get_args(OnDuplicate)


def check_on_duplicate(on_duplicate: str) -> None:
    """Check `on_duplicate`. Raises: InvalidInput."""
    if on_duplicate not in _ON_DUPLICATE:
        raise InvalidInput("on_duplicate", f"must be 'keep', 'replace' or 'raise', not {on_duplicate!r}")


_SUFFIXES = {"high": "h", "normal": "", "low": "l"}


def shifted(due: str, id: str, priority: str, spread: float | timedelta | None, max_delay_ms: int) -> str:
    """Add a job's spread and priority to its due argument, for the schedule script. Raises: InvalidInput."""
    if not isinstance(priority, str) or priority not in _SUFFIXES:
        raise InvalidInput("priority", f"must be {', '.join(_SUFFIXES)}, not {priority!r}")
    if spread is not None:
        # The high bits of the hash: the low bits choose the shard.
        offset_ms = zlib.crc32(id.encode()) * (span_ms(spread, max_delay_ms, "spread", _NEARER) + 1) >> 32
        due = due[: due.startswith("+")] + str(int(due) + offset_ms)
    return due + _SUFFIXES[priority]


def check_spread(due: str, spread: float | timedelta, now_ms: int, max_delay_ms: int) -> None:
    """Check that a job with this due argument is due in time wherever its spread puts it. Raises: InvalidInput."""
    delay_ms = int(due) if due.startswith("+") else max(0, int(due) - now_ms)
    if delay_ms + span_ms(spread, max_delay_ms, "spread", _NEARER) > max_delay_ms:
        limit = f"the limit of {max_delay_ms / 1000:,.0f} s"
        raise InvalidInput("spread", f"{spread!r} s after its due time is beyond {limit}{_NEARER}")


def expiry(expires: float | timedelta | datetime, max_delay_ms: int) -> tuple[str, int]:
    """Returns a job's `expires` as its record holds it: an option and its milliseconds. Raises: InvalidInput."""
    if isinstance(expires, datetime):
        return "X", _due_ms(expires, 0, 2**62, "expires")
    return "x", _more_than_0(expires, span_ms(expires, max_delay_ms, "expires", _NEARER), "expires")


def limits(attempts: int | None, timeout: float | timedelta | None) -> tuple[int | None, int | None]:
    """Returns a job's `attempts`, and its `timeout` in ms, as its record holds them. Raises: InvalidInput."""
    if attempts is not None and (type(attempts) is not int or not 1 <= attempts <= MOST_ATTEMPTS):
        raise InvalidInput("attempts", f"must be a whole number from 1 to {MOST_ATTEMPTS:,}, not {shown(attempts)}")
    if timeout is None:
        return attempts, None
    return attempts, _more_than_0(timeout, span_ms(timeout, LONGEST_RUN_MS, "timeout"), "timeout")


def _more_than_0(span: object, ms: int, field: str) -> int:
    if ms == 0:
        raise InvalidInput(field, f"must be more than 0 seconds, not {span!r}")
    return ms


def most_wait(max_wait: float | timedelta, key: str | None, on_duplicate: str, due: str, max_delay_ms: int) -> int:
    """Returns a job's `max_wait` in ms, as its record holds it; `due` is its due argument. Raises: InvalidInput."""
    wait_ms = _more_than_0(max_wait, span_ms(max_wait, max_delay_ms, "max_wait", _NEARER), "max_wait")
    if key is None:
        raise InvalidInput("max_wait", "needs a key, by which later calls find the job")
    if on_duplicate != "replace":
        raise InvalidInput("max_wait", f'needs on_duplicate="replace", not {on_duplicate!r}')
    if due.startswith("+") and int(due) > wait_ms:
        raise InvalidInput(
            "max_wait", f"is shorter than the delay: give at least {int(due) / 1000:g} s, or a shorter delay"
        )
    if key.endswith(SECOND) or len(key.encode()) + len(SECOND) > ID_BYTES_LIMIT:
        limit = ID_BYTES_LIMIT - len(SECOND)
        raise InvalidInput("max_wait", f"needs a key of at most {limit} bytes that does not end with {SECOND}")
    return wait_ms


_NEARER = "; schedule it nearer, or raise max_delay_ms"


def due_argument(delay: float | timedelta | None, at: datetime | None, now_ms: int, max_delay_ms: int) -> str:
    """Returns a due time for the schedule script: "+ms" after the server's now, or "ms" since the epoch.

    `now_ms` (this machine's clock) is used only to refuse an absurd `at`. Raises: InvalidInput.
    """
    if at is not None:
        if delay is not None:
            raise InvalidInput("at", "give either delay or at, not both")
        return str(_due_ms(at, now_ms, max_delay_ms))
    if delay is None:
        raise InvalidInput("delay", "missing: give delay (seconds or timedelta) or at (aware datetime)")
    return "+" + str(span_ms(delay, max_delay_ms, "delay", _NEARER))


def span_ms(span: float | timedelta, longest_ms: float, field: str, remedy: str = "") -> int:
    """Returns a duration in whole milliseconds, rounded up. Raises: InvalidInput, with `remedy` if it is too long."""
    if isinstance(span, timedelta):
        span = span.total_seconds()
    if isinstance(span, bool) or not isinstance(span, (int, float)):
        raise InvalidInput(field, f"must be seconds (a number) or a timedelta, not {type(span).__name__}")
    if not span >= 0:  # catches NaN too
        raise InvalidInput(field, f"must not be negative, not {shown(span)}; 0 means at once")
    if span * 1000 > longest_ms:
        raise InvalidInput(field, f"{shown(span)} s is beyond the limit of {longest_ms / 1000:,.0f} s{remedy}")
    ms = int(span * 1000)
    # Never early: a fraction of a millisecond is rounded up. A rounding error of the multiplication (0.29 s is
    # 290.00000000000006 ms) is not a fraction.
    return ms if span * 1000 - ms < 1e-6 else ms + 1


def to_ms(at: datetime, field: str = "at") -> int:
    """Returns an aware datetime as milliseconds since the Unix epoch, rounded up. Raises: InvalidInput."""
    if not isinstance(at, datetime):
        raise InvalidInput(field, f"must be an aware datetime, not {type(at).__name__}")
    if at.utcoffset() is None:
        raise InvalidInput(field, f"{at.isoformat()} has no time zone: use datetime.now(UTC) or add tzinfo")
    microseconds = (at - _EPOCH) // timedelta(microseconds=1)
    ms = -(-microseconds // 1000)
    if ms > LAST_MS:
        raise InvalidInput(field, f"{at.isoformat()} lies after the year 9999 in UTC")
    return ms


def moment_ms(at: datetime | None, field: str) -> int | None:
    """Returns a filter's time in ms since the epoch, rounded up, or None if there is none. Raises: InvalidInput."""
    return None if at is None else _due_ms(at, 0, 1 << 62, field)


def _due_ms(at: datetime, now_ms: int, max_delay_ms: int, field: str = "at") -> int:
    ms = to_ms(at, field)
    if ms < 0:
        raise InvalidInput(field, f"{at.isoformat()} lies before 1970")
    if ms - now_ms > max_delay_ms:
        raise InvalidInput(
            field, f"{at.isoformat()} is beyond the limit of {max_delay_ms / 1000:,.0f} s from now{_NEARER}"
        )
    return ms
