"""The consequence of an answer for the job and its receiver. Pure.

| answer                                     | the job …                          | the receiver …        |
|--------------------------------------------|------------------------------------|-----------------------|
| 2xx                                        | is done                            | is healthy            |
| 429                                        | is retried, when it says           | is healthy, but paused |
| 408, 425, 5xx                              | is retried; 503: when it says      | fails                 |
| no connection, no answer in time           | is retried                         | fails                 |
| 3xx (redirects are not followed), other 4xx | is buried                          | is healthy            |
| an address that is refused                 | is buried                          | –                     |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

LONGEST_WAIT_S = 3_600.0
TRY_AGAIN = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Accepted:
    """Done."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The job is worth another attempt."""

    why: str
    after: float | None = None
    """The seconds until the next attempt, if the receiver has named them."""
    is_failure: bool = True
    """Whether this answer counts as a failure of the receiver."""


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Another attempt would fail in the same way."""

    why: str
    is_answer: bool = True
    """Whether this was the receiver's own answer."""


Verdict = Accepted | TryAgain | Hopeless


def of_answer(status: int, headers: Mapping[str, str], now_s: float) -> Verdict:
    """Returns the verdict for an answer; `now_s` is the time, for a Retry-After that names a date."""
    if 200 <= status < 300:
        return Accepted()
    if status in TRY_AGAIN or status >= 500:
        after = retry_after(headers.get("retry-after"), now_s) if status in (429, 503) else None
        return TryAgain(f"answered {status}", after, is_failure=status != 429)
    if 300 <= status < 400:
        return Hopeless(f"answered {status}; redirects are not followed")
    return Hopeless(f"answered {status}")


def retry_after(written: str | None, now_s: float) -> float | None:
    """Returns the seconds that a Retry-After header asks for, at most an hour; None if it cannot be read."""
    if not written:
        return None
    try:
        seconds = min(int(written), LONGEST_WAIT_S)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(written).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), LONGEST_WAIT_S)
