"""A model of the hand-over of followers, of which every interleaving is searched: `python -m loadtest.handover`.

    settle ──▶ outgoing ──▶ carry ──▶ remove        a worker settles a job, and its follower goes to another shard

Two attempts of one job may settle it; its settler is the first carrier, and two more may claim the parcel. A
call may run at once, late, or never, and its sender may not hear of it. Carriers die between any two steps. The target
is resharded, the source shard is given up, either topic is removed, time passes until tags expire, and both servers may
forget their last writes.

What must hold at every end: the follower of the acknowledged attempt was made exactly once (or was buried, if its
parcel became too old to be sent again), no other follower was, and nothing is left in `outgoing`.

A `Design` switches one rule of the design off, to show that the search misses no mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Design:
    """Which rules hold; each of them is needed."""

    one_step: bool = True
    """The ack and `outgoing` are written in one step."""
    checks_owner: bool = True
    """Only the attempt that holds the delivery settles it."""
    removes: bool = True
    """A parcel is removed when it has arrived."""
    carries_first: bool = True
    """It is removed only then."""
    keeps_tag: bool = True
    """A parcel that may have arrived is sent again with its tag, to the same shard."""
    forgets_own: bool = True
    """A tag is forgotten only by the carrier that removed the entry, if no other claimed it, and a while later."""
    buries_old: bool = True
    """A parcel older than its tag's life is buried, not sent."""
    confirms: bool = True
    """A parcel is removed when its arrival is confirmed (`durability="replicated"`)."""
    waits_for_outgoing: bool = True
    """A source shard is given up only when nothing is outgoing."""


class Parcel(NamedTuple):
    """An entry of `outgoing`."""

    entry: int
    attempt: int
    tag: int = 0
    shard: int = -1
    """Where it is sent; -1: not decided yet."""
    is_claimed: bool = False
    is_old: bool = False


class Carrier(NamedTuple):
    """A carrier at work on a parcel."""

    parcel: Parcel
    stage: str  # "has" it, "sent" it, knows that it "arrived", "removing", or has "removed" it


class State(NamedTuple):
    """Everything, at one moment."""

    holder: int = 1
    acked: int = 0
    """The attempt that is acknowledged."""
    acks: tuple[int, ...] = ()
    """All that ever were; a fail-over may have forgotten it."""
    settling: tuple[int, ...] = (1,)
    """Attempts whose settle call has not run yet."""
    owes: int = 0
    """The attempt whose follower is written in a second step (a wrong design)."""
    outgoing: Parcel | None = None
    is_led: bool = True
    """Whether the source shard still has a leader."""
    carriers: tuple[Carrier | None, ...] = (None, None, None)
    calls: frozenset[tuple[int, int, int]] = frozenset()
    """Schedule calls on their way whose sender has given up: tag, shard, attempt."""
    shard: int = 0
    """The shard that new jobs of the target go to."""
    tags: frozenset[tuple[int, int]] = frozenset()
    made: tuple[int, ...] = ()
    buried: tuple[int, ...] = ()
    source_before: tuple[int, Parcel | None] | None = None
    """What a fail-over of the source goes back to, until its last write is replicated: `acked` and `outgoing`."""
    target_before: tuple[frozenset[tuple[int, int]], tuple[int, ...]] | None = None
    """The same for the target: `tags` and `made`."""
    was_removed: bool = False
    """Whether a topic was removed; what its jobs had made or left goes with it."""
    entries: int = 0
    names: int = 0
    faults: int = 0
    """How many of the faults that are left to chance have happened."""


FAULTS, ATTEMPTS, ENTRIES = 2, 2, 5
Steps = Iterator[tuple[str, State]]


def steps(at: State, design: Design) -> Steps:
    """Yields everything that can happen next."""
    yield from _settling(at, design)
    for n, carrier in enumerate(at.carriers):
        if carrier is not None:
            yield from _carrying(at, design, n, carrier)
        elif n > 0 and at.outgoing is not None and at.is_led:
            yield from _claiming(at, design, n, at.outgoing)
    for call in at.calls:
        yield "a call runs late", _arrive(at._replace(calls=at.calls - {call}), *call)[0]
    yield from _surroundings(at, design)


def _settling(at: State, design: Design) -> Steps:
    for attempt in at.settling:
        left = at._replace(settling=tuple(one for one in at.settling if one != attempt))
        if (at.holder == attempt and not at.acked) or not design.checks_owner:
            if design.one_step:
                before = (at.acked, at.outgoing)
                acked = left._replace(acked=at.acked or attempt, source_before=before)
                if not at.acked:  # only a wrong design acknowledges twice
                    acked = acked._replace(acks=(*at.acks, attempt))
                yield from _noted(acked, attempt)
            else:
                acked = left._replace(acked=attempt, acks=(*at.acks, attempt), owes=attempt)
                yield f"attempt {attempt} is acknowledged", acked
        else:
            yield f"attempt {attempt} is refused", left
        if at.faults < FAULTS:
            yield f"attempt {attempt} dies", left._replace(faults=at.faults + 1)
    if at.owes:
        yield from _noted(at._replace(owes=0), at.owes)
        if at.faults < FAULTS:
            yield "the worker dies between ack and outgoing", at._replace(owes=0, faults=at.faults + 1)
    if at.holder < ATTEMPTS and not at.acked:
        after = at.holder + 1
        yield f"attempt {after} takes over", at._replace(holder=after, settling=(*at.settling, after))


def _noted(at: State, attempt: int) -> Steps:
    """The follower is in `outgoing`, with or without its place; its worker hears of it or not."""
    if at.outgoing is not None:  # only a wrong design makes two
        yield "a second follower is noted", at._replace(made=(*at.made, attempt))
        return
    for shard in (at.shard, -1):
        parcel = Parcel(at.entries + 1, attempt, at.names + 1, shard)
        after = at._replace(outgoing=parcel, entries=at.entries + 1, names=at.names + 1)
        yield f"attempt {attempt} is acknowledged, outgoing to {shard}", _with(after, 0, Carrier(parcel, "has"))
        yield f"attempt {attempt} is acknowledged, and its worker dies", after


def _claiming(at: State, design: Design, n: int, parcel: Parcel) -> Steps:
    if parcel.is_old and design.buries_old:
        yield "an old parcel is buried", at._replace(outgoing=None, buried=(*at.buried, parcel.attempt))
        return
    entries = at.entries + 1
    claimed = parcel._replace(is_claimed=True, entry=entries)
    if not design.keeps_tag:
        claimed = claimed._replace(tag=at.names + 1, shard=-1)
    if at.entries < ENTRIES:
        after = at._replace(outgoing=claimed, entries=entries, names=at.names + (not design.keeps_tag))
        after = after._replace(source_before=(at.acked, parcel))
        yield f"carrier {n} claims the parcel", _with(after, n, Carrier(claimed, "has"))


def _carrying(at: State, design: Design, n: int, carrier: Carrier) -> Steps:
    parcel, stage = carrier
    if stage == "has" and not design.carries_first:
        yield f"carrier {n} removes first", _with(at._replace(outgoing=None), n, Carrier(parcel, "late"))
    elif stage == "has" and parcel.shard < 0:
        yield from _placing(at, n, parcel)
    elif stage == "has" and at.source_before is not None and design.confirms:
        return  # its place is not confirmed yet
    elif stage in ("has", "late"):
        yield from _sending(at, n, parcel)
    elif stage == "arrived" and (at.target_before is None or not design.confirms):
        yield from _removing(at, design, n, parcel)
    elif stage == "removed":
        others = (at.calls, at.source_before, at.outgoing, *at.carriers[:n], *at.carriers[n + 1 :])
        if not any(others) or not design.forgets_own:  # a while later: what a fail-over brings back was carried again
            tags = at.tags - {(parcel.tag, parcel.shard)}
            yield f"carrier {n} has the tag forgotten", _with(at._replace(tags=tags), n, None)
    if at.faults < FAULTS:
        yield f"carrier {n} dies", _with(at._replace(faults=at.faults + 1), n, None)


def _sending(at: State, n: int, parcel: Parcel) -> Steps:
    call = (parcel.tag, parcel.shard if parcel.shard >= 0 else at.shard, parcel.attempt)
    after, is_made = _arrive(at, *call)
    if is_made:
        yield f"carrier {n} delivers", _with(after, n, Carrier(parcel, "arrived"))
    else:
        yield from _placing(at, n, parcel)
    if at.faults < FAULTS:
        fault = _with(at._replace(faults=at.faults + 1), n, None)
        yield f"carrier {n} gives up, and its call is on its way", fault._replace(calls=at.calls | {call})
        yield f"carrier {n} delivers, and its reply is lost", _arrive(fault, *call)[0]


def _removing(at: State, design: Design, n: int, parcel: Parcel) -> Steps:
    gone = _with(at, n, None)
    if not design.removes:
        yield f"carrier {n} removes nothing", gone
    elif at.outgoing is not None and at.outgoing.entry == parcel.entry:
        removed = at._replace(outgoing=None, source_before=(at.acked, at.outgoing))
        rest = Carrier(parcel, "removed") if not parcel.is_claimed else None
        yield f"carrier {n} removes", _with(removed, n, rest)
    elif not design.forgets_own:
        yield f"carrier {n} finds it removed", _with(at, n, Carrier(parcel, "removed"))
    else:
        yield f"carrier {n} finds it claimed", gone


def _placing(at: State, n: int, parcel: Parcel) -> Steps:
    """Other terms are in force, or it has no place yet: it gets a place, if it is still there."""
    if at.outgoing is None or at.outgoing.entry != parcel.entry or at.entries > ENTRIES:
        yield f"carrier {n} has lost the parcel", _with(at, n, None)
        return
    placed = parcel._replace(entry=at.entries + 1, shard=at.shard)
    after = at._replace(outgoing=placed, entries=at.entries + 1, source_before=(at.acked, parcel))
    yield f"carrier {n} places the parcel", _with(after, n, Carrier(placed, "has"))


def _arrive(at: State, tag: int, shard: int, attempt: int) -> tuple[State, bool]:
    """Runs a schedule call: the tag comes first, then the terms. Returns whether the follower is there."""
    if (tag, shard) in at.tags:
        return at, True
    if shard != at.shard:
        return at, False
    before = (at.tags, at.made)
    return at._replace(tags=at.tags | {(tag, shard)}, made=(*at.made, attempt), target_before=before), True


def _surroundings(at: State, design: Design) -> Steps:
    if at.target_before is not None:
        yield "the target is replicated", at._replace(target_before=None)
        if at.faults < FAULTS:
            tags, made = at.target_before
            unconfirmed = (None if one and one.stage == "arrived" and design.confirms else one for one in at.carriers)
            after = at._replace(tags=tags, made=made, target_before=None, faults=at.faults + 1)
            yield "the target forgets", after._replace(carriers=tuple(unconfirmed))
    if at.source_before is not None:
        yield "the source is replicated", at._replace(source_before=None)
        if at.faults < FAULTS:
            acked, outgoing = at.source_before
            unconfirmed = (None if one == Carrier(at.outgoing, "has") else one for one in at.carriers)  # type: ignore[arg-type]
            after = at._replace(acked=acked, outgoing=outgoing, source_before=None, faults=at.faults + 1)
            yield "the source forgets", after._replace(carriers=tuple(unconfirmed) if design.confirms else at.carriers)
    if at.shard == 0:
        yield "the target is resharded", at._replace(shard=1)
    if at.faults < FAULTS and not at.was_removed:
        gone = at._replace(was_removed=True, faults=at.faults + 1)
        yield "the target topic is removed", gone._replace(tags=frozenset(), made=(), target_before=None)
        source = gone._replace(outgoing=None, acked=0, owes=0, holder=ATTEMPTS, settling=(), source_before=None)
        yield "the source topic is removed", source
    parcel, is_quiet = at.outgoing, not (at.calls or any(at.carriers) or at.source_before or at.target_before)
    if parcel is not None and not parcel.is_old and parcel.shard >= 0 and is_quiet:
        yield "time passes", at._replace(outgoing=parcel._replace(is_old=True), tags=frozenset())
    is_finished = at.acked and not at.owes and not at.source_before
    if at.is_led and is_finished and (at.outgoing is None or not design.waits_for_outgoing):
        yield "the source shard is given up", at._replace(is_led=False)


def _with(at: State, n: int, carrier: Carrier | None) -> State:
    return at._replace(carriers=(*at.carriers[:n], carrier, *at.carriers[n + 1 :]))


def problem(at: State) -> str | None:
    """Returns what is wrong in this state; None: nothing."""
    there = [*at.made, *at.buried]
    if any(at.made.count(attempt) > 1 for attempt in at.made):
        return "made twice"
    if any(attempt not in at.acks for attempt in there):
        return "made for an attempt that was not acknowledged"
    has_ended = not (at.calls or at.settling or at.owes or any(at.carriers) or at.target_before or at.source_before)
    if not has_ended:
        return None
    if at.outgoing is None:
        return "lost" if at.acked and at.acked not in there and not at.was_removed else None
    if not at.is_led:
        return "left in outgoing, and nobody carries it"
    if at.faults == 0 and at.entries == ENTRIES and at.outgoing.attempt in at.made:
        return "still in outgoing after every carrier has carried it"
    return None


def search(design: Design | None = None) -> tuple[int, list[str]]:
    """Searches every interleaving. Returns the number of states, and the way to the first problem, which comes last."""
    design = design or Design()
    came_from: dict[State, tuple[State | None, str]] = {State(): (None, "")}
    todo = [State()]
    while todo:
        at = todo.pop()
        if (found := problem(at)) is not None:
            way = [found]
            before: State | None = at
            while before is not None:
                before, what = came_from[before]
                way.insert(0, what)
            return len(came_from), way[1:]
        for what, after in steps(at, design):
            if after not in came_from:
                came_from[after] = (at, what)
                todo.append(after)
    return len(came_from), []


DEFECTS = {
    "an ack without its outgoing": Design(one_step=False),
    "carried but not removed": Design(removes=False),
    "removed before it was carried": Design(carries_first=False),
    "a follower of a superseded attempt": Design(checks_owner=False),
    "sent again with another tag": Design(keeps_tag=False),
    "a tag forgotten by a carrier that found the entry claimed": Design(forgets_own=False),
    "sent again after its tag has expired": Design(buries_old=False),
    "removed before its arrival was confirmed": Design(confirms=False),
    "a source shard given up with something outgoing": Design(waits_for_outgoing=False),
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
