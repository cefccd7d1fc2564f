"""`Finding`, and the facts that findings are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    """As it should be."""
    WARNING = "warning"
    """A choice with a price, or something that could not be checked."""
    PROBLEM = "problem"
    """Jobs can be lost or do not run: fix it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    title: str
    explanation: str
    """The consequences and, unless it is ok, what to do."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about the server."""

    info: Mapping[str, str]
    """`INFO`, flat."""
    config: Mapping[str, str] | None
    """The results of `CONFIG GET`; None if this user may not read them."""
    missing: tuple[str, ...] = ()
    """Commands that wheelq needs and the server does not know."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Operations that the server refused to this user, with its error messages."""
    writes_refused: str = ""
    """Why the server refuses writes; empty if it takes them, or this user may not write."""
    clock_skew_ms: float = 0.0
    """This machine's clock minus the server's."""
    clock_error_ms: float = 0.0
    """How far off that figure may be: half a round trip."""
    waited_for: int = 1
    """Replicas that must have a job before a call with `durability="replicated"` returns."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Facts about jobs, schedulers and workers."""

    waiting: int = 0
    schedulers: int = 0
    overdue_ms: Mapping[str, int] = field(default_factory=dict)
    """Topic → how long its first waiting job has been due."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Topic → jobs that are ready."""
    served: frozenset[str] = frozenset()
    """Topics that a live worker has a handler for."""
    unserved: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Topic and group that no live worker serves → the group's unfinished jobs."""
    paused: Mapping[str, int] = field(default_factory=dict)
    """Paused topic → how long its first waiting job has been due, in ms."""
    leaderless: Mapping[str, int] = field(default_factory=dict)
    """Topic → shards with a job that is due within half a second, or overdue, and no leader."""
    lost_workers: int = 0
    """Workers that ended without a word in the last ten minutes."""
    missed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Topic and name of a recurring job → how many ms ago an occurrence was due that is not scheduled yet."""
    open_destinations: tuple[str, ...] = ()
    """Receivers of callbacks that are not called, because they failed too often."""
    leaving: tuple[str, ...] = ()
    """Topics whose removal has begun but not ended."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Topics whose settings cannot be read here, and why."""
    prefix: str = "wheelq"
    other_prefixes: tuple[str, ...] = ()
    """Other prefixes in use on the server."""
    unreadable_keys: Mapping[str, str] = field(default_factory=dict)
    """API keys of the HTTP server that cannot be read here, and why; "" stands for all keys."""


def ok(title: str, explanation: str = "") -> Finding:
    """Returns a finding of level OK."""
    return Finding(Level.OK, title, explanation)


def warning(title: str, explanation: str) -> Finding:
    """Returns a finding of level WARNING."""
    return Finding(Level.WARNING, title, explanation)


def problem(title: str, explanation: str) -> Finding:
    """Returns a finding of level PROBLEM."""
    return Finding(Level.PROBLEM, title, explanation)


def number(values: Mapping[str, str], name: str) -> int:
    """Returns a number among the facts; 0 if it is missing or not a number."""
    text = values.get(name, "0")
    return int(text) if text.isdecimal() else 0
