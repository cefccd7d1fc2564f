"""A model of how a bundle is counted, of which every interleaving is searched: `python -m loadtest.bundles`.

    enter ─▶ note ─▶ schedule members ─▶ close ─▶ shut each shard ─▶ tally          two producers, two shards
    a member ends, dies or is replayed ─▶ its shard reports, if it was shut and none is left ─▶ tally

Producers may die between any two steps; another one closes the bundle then. Every report may come late, twice and in
any order, even after its shard has been forgotten. What must hold: the follower is made once, when no member is left or
dead, no member joins after that, and at the end it was made.

A `Design` switches one rule of the design off, to show that the search misses no mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SHARDS, MEMBERS = (0, 1), 2


@dataclass(frozen=True, slots=True)
class Design:
    """Which rules hold; each of them is needed."""

    notes_shards: bool = True
    """The bundle notes a shard before that takes members."""
    refuses_notes: bool = True
    """A closed bundle notes no more shards."""
    shuts: bool = True
    """A shard takes no member once it is shut."""
    has_versions: bool = True
    """An older report does not replace a newer one."""
    counts_once: bool = True
    """A bundle that has ended makes no second follower."""
    waits_for_dead: bool = True
    """The follower waits for the replay of a dead member."""


class Shard(NamedTuple):
    """What a shard knows of the bundle."""

    state: str = ""  # "": it takes no members; "open", "shut"
    left: int = 0
    dead: int = 0
    version: int = 0

    def changed(self, left: int, dead: int) -> Shard:
        return Shard(self.state, self.left + left, self.dead + dead, self.version + 1)


class Report(NamedTuple):
    """What a shard has reported: with none left, how many are dead."""

    version: int
    dead: int


class State(NamedTuple):
    """Everything, at one moment."""

    home: str = "open"
    noted: frozenset[int] = frozenset()
    reports: tuple[Report | None, Report | None] = (None, None)
    shards: tuple[Shard, Shard] = (Shard(), Shard())
    producers: tuple[tuple[str, ...], ...] = (("enter 0", "note 0", "add 0", "close"), ("enter 1", "note 1", "add 1"))
    closing: tuple[str, ...] = ()
    """The steps that whoever closes the bundle has still to do."""
    under_way: frozenset[tuple[int, Report]] = frozenset()
    joined: int = 0
    joined_late: bool = False
    made: int = 0
    wrongly: bool = False
    """Whether it was made while a member was left or dead."""
    faults: int = 0


Steps = Iterator[tuple[str, State]]


def steps(at: State, design: Design) -> Steps:
    """Yields everything that can happen next."""
    for number, todo in enumerate(at.producers):
        if todo:
            rest = tuple(todo[1:] if n == number else one for n, one in enumerate(at.producers))
            yield f"producer {number}: {todo[0]}", _produce(at._replace(producers=rest), design, number, todo[0])
            if at.faults < 1 and "close" not in todo:
                gone = tuple(() if n == number else one for n, one in enumerate(at.producers))
                yield f"producer {number} dies", at._replace(producers=gone, faults=at.faults + 1)
    if at.closing:
        what, *left = at.closing
        yield f"closing: {what}", _shut(at._replace(closing=tuple(left)), design, int(what[-1]))
        again = at._replace(closing=tuple(f"shut {n}" for n in sorted(at.noted)), faults=at.faults + 1)
        if at.faults < 1 and again.closing != at.closing:
            yield "its closer dies, and another closes it", again
    for n in SHARDS:
        one = at.shards[n]
        if one.left:
            yield f"a member of {n} ends", _counted(at, n, one.changed(-1, 0))
            if not one.dead:
                yield f"a member of {n} dies", _counted(at, n, one.changed(-1, 1))
        if one.dead:
            yield f"a member of {n} is replayed", _counted(at, n, one.changed(1, -1))
    for n, report in at.under_way:
        yield f"the report {report} of {n} comes", _tally(at, design, n, report)
        yield f"the report {report} of {n} is removed", _removed(at, design, n, report)


def _produce(at: State, design: Design, number: int, what: str) -> State:
    verb, _, text = what.partition(" ")
    if verb == "close":
        return at._replace(home="closed", closing=tuple(f"shut {n}" for n in sorted(at.noted)))
    n = int(text)
    one = at.shards[n]
    if verb == "enter":
        return _with(at, n, one._replace(state=one.state or "open"))
    if verb == "note":
        if at.home != "open" and design.refuses_notes:
            return at._replace(producers=tuple(() if k == number else left for k, left in enumerate(at.producers)))
        return at._replace(noted=at.noted | {n}) if design.notes_shards else at
    if one.state == "open" or (one.state and not design.shuts):
        joined = _with(at, n, one.changed(1, 0))
        return joined._replace(joined=at.joined + 1, joined_late=at.joined_late or at.made > 0)
    return at


def _shut(at: State, design: Design, n: int) -> State:
    one = at.shards[n]
    if not one.state:
        return _tally(at, design, n, Report(0, 0))
    one = Shard("shut", one.left, one.dead, one.version + 1)
    at = _with(at, n, one)
    return at if one.left else _tally(at, design, n, Report(one.version, one.dead))


def _counted(at: State, n: int, one: Shard) -> State:
    at = _with(at, n, one)
    is_quiet = one.state == "shut" and not one.left
    return at._replace(under_way=at.under_way | {(n, Report(one.version, one.dead))}) if is_quiet else at


def _tally(at: State, design: Design, n: int, report: Report) -> State:
    if at.home == "ended" and design.counts_once:
        return at
    before = at.reports[n]
    if before is None or not design.has_versions or report.version > before.version:
        at = at._replace(reports=tuple(report if k == n else one for k, one in enumerate(at.reports)))  # type: ignore[arg-type]
    known = [at.reports[k] for k in at.noted]
    if at.home == "open" or None in known or any(one and one.dead and design.waits_for_dead for one in known):
        return at
    wrongly = any(one.left or one.dead for one in at.shards)
    return at._replace(home="ended", made=min(at.made + 1, 2), wrongly=at.wrongly or wrongly)


def _removed(at: State, design: Design, n: int, report: Report) -> State:
    """Its carrier was answered: the report goes, and what the shard knows, if that is nothing more."""
    at = _tally(at, design, n, report)._replace(under_way=at.under_way - {(n, report)})
    one = at.shards[n]
    is_last = one.version == report.version and not one.left and not one.dead
    return _with(at, n, Shard()) if is_last else at


def _with(at: State, n: int, shard: Shard) -> State:
    return at._replace(shards=tuple(shard if k == n else one for k, one in enumerate(at.shards)))  # type: ignore[arg-type]


def problem(at: State, design: Design) -> str | None:
    """What is wrong at this moment; None: nothing."""
    if at.made > 1:
        return "made twice"
    if at.wrongly:
        return "made while a member was left or dead"
    if at.joined_late:
        return "a member joined after it was made"
    is_over = not any(steps(at, design))
    return "never made" if is_over and not at.made else None


def search(design: Design | None = None) -> tuple[int, list[str]]:
    """Searches every interleaving. Returns the number of states, and the way to the first problem, which comes last."""
    design = design or Design()
    came_from: dict[State, tuple[State | None, str]] = {State(): (None, "")}
    todo = [State()]
    while todo:
        at = todo.pop()
        if (found := problem(at, design)) is not None:
            way = [found]
            before: State | None = at
            while before is not None:
                before, what = came_from[before]
                way.insert(0, what)
            return len(came_from), way[1:]
        for what, after in steps(at, design):
            if after not in came_from and all(one.version < 7 for one in after.shards):
                came_from[after] = (at, what)
                todo.append(after)
    return len(came_from), []


DEFECTS = {
    "shards take members that the bundle knows nothing of": Design(notes_shards=False),
    "a closed bundle takes more shards": Design(refuses_notes=False),
    "a shard that was shut takes members": Design(shuts=False),
    "an old report replaces a newer one": Design(has_versions=False),
    "a bundle ends twice": Design(counts_once=False),
    "a dead member holds up nothing": Design(waits_for_dead=False),
}


def main() -> None:
    """Search the design and every defect."""
    states, way = search()
    print(f"the design: {states:,} states, {' → '.join(way) or 'clean'}")
    for name, design in DEFECTS.items():
        states, way = search(design)
        print(f"{name}: {states:,} states, {' → '.join(way) or 'NOT FOUND'}")


if __name__ == "__main__":
    main()
