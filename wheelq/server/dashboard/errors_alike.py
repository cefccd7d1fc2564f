"""Groups errors that differ only in numbers, ids and quoted values. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wheelq.protocol.calls.dead import DeadSummary

_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+(?:[.,:]\d+)*")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True, slots=True)
class Alike:
    """Dead jobs whose errors are alike."""

    key: str
    """What the group is called in links and forms."""
    error: str
    """The newest of the errors."""
    reason: str
    jobs: Sequence[DeadSummary]
    """The newest first."""

    @property
    def groups(self) -> list[str]:
        """The consumer groups that gave them up."""
        return sorted({job.group for job in self.jobs})


def pattern(reason: str, error: str) -> str:
    """Returns what errors that are alike have in common."""
    line = error.strip().partition("\n")[0]
    return f"{reason}: {_VARIABLE.sub('…', _QUOTED.sub('…', line))}"


def key_of(reason: str, error: str) -> str:
    """Returns the short name of an error's group."""
    return hashlib.sha256(pattern(reason, error).encode(errors="replace")).hexdigest()[:16]


def alike(jobs: Iterable[DeadSummary]) -> list[Alike]:
    """Returns the groups, the largest first; `jobs` are the newest first."""
    found: dict[str, list[DeadSummary]] = {}
    for job in jobs:
        found.setdefault(key_of(job.reason, job.error), []).append(job)
    groups = [Alike(key, members[0].error, members[0].reason, members) for key, members in found.items()]
    return sorted(groups, key=lambda group: -len(group.jobs))
