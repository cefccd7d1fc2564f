"""The root of all errors."""

from __future__ import annotations


class WheelqError(Exception):
    """Something went wrong in wheelq."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])
