"""`Checked`: the base class of all settings, which checks them when they are made."""

from __future__ import annotations

from dataclasses import fields

from wheelq.errors import InvalidSetting

DAY_MS = 86_400_000


class Checked:
    """Refuses numbers that are too low, and names the setting; subclasses add checks of their own."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, item.name)
            lowest = item.metadata.get("lowest", 1)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not value >= lowest:
                raise self._invalid(item.name, f"must be at least {lowest}, not {value}")

    def _require(self, holds: bool, name: str, problem: str) -> None:
        if not holds:
            raise self._invalid(name, problem)

    def _invalid(self, name: str, problem: str) -> InvalidSetting:
        return InvalidSetting(name, problem, where=f"{type(self).__name__}.")
