"""How a setting is declared: its default, its meaning and its range, once.

    max_pending: int = setting(0, "Most jobs that wait for their due time. …", zero="no limit")

`Checked` holds the values to it. `config/wheelq.toml`, the reference, the HTTP schema, the options of the commands and
the forms of the dashboard are made from `declarations(TopicSettings)`. Names that end in `_ms` are whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, NamedTuple, TypeVar

from wheelq.errors import InvalidSetting

T = TypeVar("T")

DAY_MS = 86_400_000
MOST = 2**53
"""The largest number of a setting: scripts reckon in doubles, which are exact up to it."""


class Declaration(NamedTuple):
    """A setting as it is declared."""

    name: str
    default: Any
    text: str
    """Its meaning in sentences; the first one stands alone in forms and options."""
    lowest: float
    most: float
    one_of: tuple[str, ...]
    """The values of a setting that is one of a few words."""
    zero: str
    """What 0 means; empty if it means nothing special."""
    is_secret: bool

    @property
    def unit(self) -> str:
        """ "ms" or "bytes", as the name ends; else empty."""
        return next((unit for unit in ("ms", "bytes") if self.name.endswith(f"_{unit}")), "")

    @property
    def brief(self) -> str:
        """Its meaning in one sentence, without the full stop."""
        first = self.text.partition(". ")[0].removesuffix(".")
        return f"{first}; 0: {self.zero}" if self.zero else first

    @property
    def label(self) -> str:
        """Its meaning and its unit, for a form."""
        return f"{self.brief} ({self.unit})" if self.unit else self.brief

    @property
    def full(self) -> str:
        """Its meaning in all its sentences, and its range where it is not obvious."""
        limits = [f"At least {self.lowest:,}."] if self.lowest > 1 else []
        limits += [f"At most {self.most:,}."] if self.most < MOST else []
        limits += [f"0: {self.zero}."] if self.zero else []
        return " ".join([self.text, *limits])


def setting(
    default: T,
    text: str,
    *,
    lowest: float = 1,
    most: float = MOST,
    one_of: tuple[str, ...] = (),
    zero: str = "",
    is_secret: bool = False,
) -> T:
    """Declares a field of a dataclass: see `Declaration`. With `zero`, the lowest number is 0."""
    about: dict[str, Any] = {"text": text, "lowest": 0 if zero else lowest, "most": most}
    about |= {"one_of": one_of, "zero": zero, "is_secret": is_secret}
    declared: T = field(default=default, repr=not is_secret, metadata=about)
    return declared


def declarations(owner: Any) -> dict[str, Declaration]:
    """Returns the settings that a dataclass declares, by name; those of an instance, with its values as defaults."""
    found = {one.name: Declaration(one.name, one.default, **one.metadata) for one in fields(owner) if one.metadata}
    if isinstance(owner, type):
        return found
    return {name: one._replace(default=getattr(owner, name)) for name, one in found.items()}


class Checked:
    """Refuses values out of range when it is made, and names the setting; subclasses add checks of their own."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            problem = _problem(getattr(self, item.name), item.metadata)
            self._require(not problem, item.name, problem)

    def _require(self, holds: bool, name: str, problem: str) -> None:
        if not holds:
            raise InvalidSetting(name, problem, where=f"{type(self).__name__}.")


def _problem(value: Any, about: Mapping[str, Any]) -> str:
    """Returns what is wrong with a setting's value; "" if nothing is."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        lowest, most = about.get("lowest", 0), about.get("most", MOST)
        if value > most:
            return f"must be at most {most:,}, not {value}"
        return "" if value >= lowest else f"must be at least {lowest:,}, not {value}"  # NaN is neither
    one_of = about.get("one_of")
    return f"must be one of {', '.join(one_of)}, not {value!r}" if one_of and value not in one_of else ""
