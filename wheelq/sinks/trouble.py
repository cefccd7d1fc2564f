"""What to do when the database refuses a batch: classifies its errors, and stores the good rows alone.

Drivers do not agree on classes: PyMySQL raises OperationalError both for a violated CHECK and for a lost server. So the
error codes of the three databases decide. An unknown error counts as one of the rows, so that it shows as a failure of
its jobs and is not waited out for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

from sqlalchemy import exc

T = TypeVar("T")


class Trouble(Enum):
    """The kinds of errors."""

    AWAY = "away"
    """The database cannot be used now: wait for it."""
    CONFLICT = "conflict"
    """Another transaction was in the way: repeat."""
    ROWS = "rows"
    """The rows are at fault."""


# MySQL and MariaDB: error numbers
_MYSQL_CONFLICT = {1205, 1213, 1020, 3572}  # lock wait timeout, deadlock, record changed since last read, NOWAIT
_MYSQL_AWAY = {
    *(
        1021,
        1040,
        1041,
        1053,
        1114,
        1158,
        1159,
        1160,
        1161,
        1203,
        1226,
    ),  # disk, connections, memory, shut down, network
    *(1290, 1317, 1836, 1927, 3024),  # read-only, interrupted, killed
    *range(2000, 2100),  # errors of the client: cannot connect, gone away
}
# PostgreSQL: SQLSTATE, whose first two characters are the class
_POSTGRES_CONFLICT = {"40001", "40P01", "55P03"}  # serialization failure, deadlock, lock not available
_POSTGRES_AWAY = {"08", "53", "57", "58"}  # connection, resources, operator (shut down, cancelled), system
_POSTGRES_READ_ONLY = "25006"
# SQLite: primary result codes
_SQLITE_CONFLICT = {5, 6}  # busy, locked
_SQLITE_AWAY = {7, 8, 10, 13, 14}  # memory, read-only, I/O, full, cannot open


def trouble_of(error: Exception) -> Trouble:
    """Returns the kind of `error`, raised by SQLAlchemy or by the user's code."""
    if isinstance(error, exc.TimeoutError):  # no connection of the pool was free
        return Trouble.AWAY
    if not isinstance(error, exc.DBAPIError):
        return Trouble.ROWS
    if error.connection_invalidated:
        return Trouble.AWAY
    return _of_code(error.orig)


def _of_code(error: object) -> Trouble:
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str):
        if sqlstate in _POSTGRES_CONFLICT:
            return Trouble.CONFLICT
        is_away = sqlstate[:2] in _POSTGRES_AWAY or sqlstate == _POSTGRES_READ_ONLY
        return Trouble.AWAY if is_away else Trouble.ROWS
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    if isinstance(sqlite_code, int):
        return _of_number(sqlite_code & 0xFF, _SQLITE_CONFLICT, _SQLITE_AWAY)
    args = getattr(error, "args", ())
    if args and isinstance(args[0], int):
        return _of_number(args[0], _MYSQL_CONFLICT, _MYSQL_AWAY)
    return Trouble.ROWS


def _of_number(code: int, conflict: set[int], away: set[int]) -> Trouble:
    if code in conflict:
        return Trouble.CONFLICT
    return Trouble.AWAY if code in away else Trouble.ROWS


def store_in_parts(
    items: Sequence[T], store: Callable[[Sequence[T]], object], is_about_rows: Callable[[Exception], bool]
) -> list[Exception | None]:
    """Stores the good rows of a batch that is refused because of some bad ones; pure except for `store`.

        500 ✗ ─┬─ 250 ✓
               └─ 250 ✗ ─┬─ 125 ✗ ─ … ─ 1 ✗  the bad row
                         └─ 125 ✓

    One bad row among n costs about 2·log2(n) further attempts. Returns for each item the error with which it was
    refused, or None.

    `store` stores all given items or none. Its errors that are not about the rows are raised; items stored before that
    stay stored.
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
