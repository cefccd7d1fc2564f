"""The figures of a scenario, their targets, and both as a table for people and as JSON for programs.

There are two kinds of result. A *figure* may meet or miss its target, which depends on the machine. A job that was
lost, early or doubled is *wrong* on any machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from statistics import median
from typing import Any, Self

DIGITS = {"ms": 1, "×": 2, "µs": 1, "%": 2, "commands/s": 1, "MB": 1}


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a figure; all given limits must hold."""

    at_least: float | None = None
    at_most: float | None = None
    share: float | None = None
    """Least share of the floor."""
    times: float | None = None
    """Most multiples of the floor."""

    def __str__(self) -> str:
        parts = []
        if self.share is not None:
            parts.append(f"≥ {self.share:g} × floor")
        if self.times is not None:
            parts.append(f"≤ {self.times:g} × floor")
        if self.at_least is not None:
            parts.append(f"≥ {self.at_least:,g}")
        if self.at_most is not None:
            parts.append(f"≤ {self.at_most:,g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number."""

    name: str
    value: float
    unit: str
    target: Target | None = None
    floor: float | None = None
    """The same work without wheelq, in the same unit, measured in the same run."""
    rounds: Sequence[float] = ()
    """The figure of each round, in order. Empty: there was one round."""
    floors: Sequence[float] = ()
    """The floor of each round."""

    @classmethod
    def of(cls, name: str, rounds: Sequence[float], unit: str, target: Target | None = None) -> Self:
        """Returns the figure with the median of these rounds."""
        return cls(name, median(rounds), unit, target, rounds=tuple(rounds))

    @classmethod
    def beside(cls, name: str, pairs: Sequence[tuple[float, float]], unit: str, target: Target | None = None) -> Self:
        """Returns the figure of the round with the median share of its floor; a pair is a round's figure and floor."""
        value, floor = middle(pairs)
        rounds, floors = zip(*pairs, strict=True)
        return cls(name, value, unit, target, floor, rounds, floors)

    @property
    def least(self) -> float:
        """The lowest figure of any round."""
        return min(self.rounds, default=self.value)

    @property
    def most(self) -> float:
        """The highest figure of any round."""
        return max(self.rounds, default=self.value)

    @property
    def shares(self) -> tuple[float, ...]:
        """Each round as a share of its floor."""
        return tuple(value / floor for value, floor in zip(self.rounds, self.floors, strict=False) if floor)

    @property
    def of_floor(self) -> float | None:
        """This figure as a share of the floor."""
        return self.value / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None when there is none."""
        target = self.target
        if target is None or target == Target():
            return None
        return (
            (target.at_least is None or self.value >= target.at_least)
            and (target.at_most is None or self.value <= target.at_most)
            and (target.share is None or (self.of_floor is not None and self.of_floor >= target.share))
            and (target.times is None or (self.of_floor is not None and self.of_floor <= target.times))
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON."""
        found = {"least": self.least, "most": self.most, "of_floor": self.of_floor, "met": self.met}
        if self.shares:
            found |= {"least_of_floor": min(self.shares), "most_of_floor": max(self.shares)}
        return asdict(self) | found

    def cells(self) -> tuple[str, ...]:
        """Name, value, least and most, floor, share, target and verdict, as text."""
        digits = DIGITS.get(self.unit, 0)
        return (
            self.name,
            f"{self.value:,.{digits}f} {self.unit}",
            f"{self.least:,.{digits}f} – {self.most:,.{digits}f}" if len(self.rounds) > 1 else "",
            f"{self.floor:,.{digits}f}" if self.floor else "",
            f"{self.of_floor:.2f}" if self.of_floor else "",
            str(self.target or ""),
            {True: "met", False: "MISSED", None: ""}[self.met],
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one scenario."""

    scenario: str
    figures: Sequence[Figure]
    jobs: int
    """How many jobs were followed by their ids."""
    wrong: Mapping[str, int] = field(default_factory=dict)
    """How many jobs were lost, early, doubled …; all must be 0."""
    points: Sequence[Mapping[str, float]] = ()
    """The points that `plots` draws."""

    @property
    def is_correct(self) -> bool:
        """Whether nothing was wrong."""
        return not any(self.wrong.values())

    @property
    def meets_targets(self) -> bool:
        """Whether no figure missed its target."""
        return all(figure.met is not False for figure in self.figures)

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON."""
        return {
            "scenario": self.scenario,
            "figures": [figure.as_dict() for figure in self.figures],
            "jobs": self.jobs,
            "wrong": dict(self.wrong),
            "points": [dict(point) for point in self.points],
            "is_correct": self.is_correct,
            "meets_targets": self.meets_targets,
        }

    def verdict(self) -> str:
        """Returns what went wrong, as a sentence."""
        found = ", ".join(f"{count:,} {what}" for what, count in self.wrong.items())
        return f"{'right' if self.is_correct else 'WRONG'}: of {self.jobs:,} jobs {found}"


HEADINGS = ("scenario", "figure", "value", "rounds", "floor", "× floor", "target", "")
ALIGN = "<<>>>><<"


def as_table(outcomes: Sequence[Outcome]) -> str:
    """All figures as aligned text, one line each, and a line for what was wrong."""
    blocks = [[(outcome.scenario, *figure.cells()) for figure in outcome.figures] for outcome in outcomes]
    rows = [HEADINGS, *(row for block in blocks for row in block)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(HEADINGS, widths)]
    for outcome, block in zip(outcomes, blocks, strict=True):
        lines += [_line(row, widths) for row in block]
        lines.append(f"{outcome.scenario:<{widths[0]}}  {outcome.verdict()}")
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, ALIGN, widths, strict=True)]
    return "  ".join(cells).rstrip()


def middle(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns the round (a figure and its floor, measured in turns) with the median share of its floor.

    The medians of figure and floor are not taken separately: on a machine that others use, a slow moment that affects
    only one of the two must not count.
    """
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[(len(pairs) - 1) // 2]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least of these sorted values that at least a `share` (0 to 1) of them do not exceed; 0 of none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def distribution(ordered: Sequence[float]) -> list[dict[str, float]]:
    """Points of a cumulative distribution of these sorted values, one for each thousandth."""
    return [{"share": n / 1000, "ms": round(percentile(ordered, n / 1000), 3)} for n in range(1_001)]
