"""Errors of what a caller has given: arguments, payloads, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wheelq.errors.base import WheelqError


class InvalidInput(WheelqError, ValueError):
    """An argument is not acceptable; `field` names it and the message says how to correct it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class PayloadTooLarge(InvalidInput):
    """The packed payload exceeds the limit; `payload_bytes` and `limit_bytes` tell by how much."""

    def __init__(self, payload_bytes: int, limit_bytes: int, setting: str = "payload_max_bytes") -> None:
        super().__init__(
            "payload",
            f"{payload_bytes:,} bytes packed, the limit is {limit_bytes:,}; store the data elsewhere and send "
            f"a reference to it, or raise {setting}",
        )
        self.payload_bytes = payload_bytes
        self.limit_bytes = limit_bytes


class InvalidJob(InvalidInput):
    """One of many jobs is not acceptable. `place` is its index, `receipts` (index → receipt) are the jobs scheduled.

    Correct the job and schedule those whose index is missing in `receipts`: they were not sent.
    """

    def __init__(self, place: int, error: InvalidInput, receipts: Mapping[int, Any]) -> None:
        super().__init__(f"jobs[{place}].{error.field}", error.problem)
        self.place = place
        self.receipts = receipts


class PayloadMismatch(WheelqError):
    """A payload, argument or result does not fit its type; `field` names the part. A worker buries the job at once."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ConfigurationError(WheelqError):
    """A setting, URL, binary or module is wrong; nothing was started."""


class InvalidSetting(ConfigurationError):
    """A setting has a value it cannot have. `setting` names it, `problem` says what it must be."""

    def __init__(self, setting: str, problem: str, where: str = "") -> None:
        super().__init__(f"{where}{setting} {problem}")
        self.setting = setting
        self.problem = problem
