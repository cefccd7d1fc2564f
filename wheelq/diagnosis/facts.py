"""What a finding is, and the facts that findings are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """As it should be."""
    WARNING = "warning"
    """A choice with a price, or something that could not be seen."""
    PROBLEM = "problem"
    """Jobs can be lost or do not run: mend it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    title: str
    explanation: str
    """What follows from it and, unless it is ok, what to do."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself."""

    info: Mapping[str, str]
    """`INFO`, flat."""
    config: Mapping[str, str] | None
    """`CONFIG GET` of what matters here; None when the server does not let us see it."""
    missing: tuple[str, ...] = ()
    """Commands that wheelq needs and the server does not know."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Operations that the server refused to this user, and its words."""
    clock_skew_ms: float = 0.0
    """This machine's clock minus the server's."""
    clock_error_ms: float = 0.0
    """How far off that figure may be: half a round trip."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is kept there, and who looks after it."""

    waiting: int = 0
    schedulers: int = 0
    overdue_ms: Mapping[str, int] = field(default_factory=dict)
    """Topic → how long its first waiting job has been due."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Topic → ready entries, where none are kept on purpose (retention 0)."""
    served: frozenset[str] = frozenset()
    """Topics that some live worker has a handler for."""


def ok(title: str, explanation: str = "") -> Finding:
    """As it should be."""
    return Finding(Level.OK, title, explanation)


def warning(title: str, explanation: str) -> Finding:
    """A choice with a price."""
    return Finding(Level.WARNING, title, explanation)


def problem(title: str, explanation: str) -> Finding:
    """To be mended."""
    return Finding(Level.PROBLEM, title, explanation)


def number(values: Mapping[str, str], name: str) -> int:
    """A number among the facts; 0 where it is missing or none."""
    text = values.get(name, "0")
    return int(text) if text.isdecimal() else 0
