"""Linearizability: whether some order of the acts about one job explains every answer (Wing & Gong 1993, Lowe 2017).

    acts       calls with their answers, promotions, and ends of lives: each took effect at one moment of its span
    precedes   an act that had ended before another began comes first
    after      the model: the state of one id after an act, if its answer is true in the state before
    misfit     searches for an order; None if there is one, or a sentence that says how far it came

An unknown outcome may have taken effect at any later time, or never. The search tries acts depth first, and remembers
each pair of the acts so far and the state, so that orders with the same result are tried once. It knows nothing of the
simulator: only spans, answers and the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

INFINITE = float("inf")
UNKNOWN = "unknown"
MOST_CALLS = 20
MOST_STEPS = 200_000
"""The most steps of one search."""

Span = tuple[float, float]
ANY: Span = (0.0, INFINITE)


@dataclass(frozen=True, slots=True)
class Act:
    """A call about the id, or something that happened to its job."""

    does: str
    """schedule, replace, reschedule, cancel, run-now or get; promotion or end."""
    start: float
    end: float
    """It took effect between `start` and `end`; with an infinite end at any later time, or never."""
    outcome: str = UNKNOWN
    due: Span = ANY
    """In which milliseconds the due time lies that a call has set or read, or with which a job was promoted."""
    who: str = ""
    kept_at: float = INFINITE
    """Since when an outbox has kept the call: it comes before later calls of its producer that are answered."""

    @property
    def is_certain(self) -> bool:
        """Whether it has taken effect."""
        return self.end < INFINITE

    def __str__(self) -> str:
        return (
            f"{self.does} at {self.start:.3f} ({self.outcome})" if self.outcome else f"{self.does} at {self.start:.3f}"
        )


class State(NamedTuple):
    """The state of an id."""

    place: str = "absent"
    """absent; waiting; called, if `run_now` is about to promote it; live, from its promotion to its end."""
    due: Span = ANY
    """In which milliseconds the due time of a waiting job lies."""


ABSENT, LIVE = State(), State("live")
FOUND = {"waiting": "waiting", "ready": "live", "running": "live", "retrying": "live"}
"""By the state that `get` answers, the place of the job; every other answer means that no live job has the id."""
NOT_HERE = {"running": "live", "not_found": "absent", "there": "live"}


def after(state: State, act: Act) -> Iterator[State]:
    """Yields the states in which an act can leave the id; none, if its answer is not true."""
    match act.does:
        case "schedule" | "replace":
            yield from _made(state, act)
        case "reschedule":
            yield from _changed(state, act, "rescheduled", State("waiting", act.due))
        case "cancel":
            yield from _changed(state, act, "cancelled", ABSENT)
        case "run-now":
            yield from _changed(state, act, "promoted", State("called", act.due))
            before, now = state.due, act.due  # one that is overdue stays so
            still = State("waiting", (min(before[0], now[0]), min(before[1], now[1])))
            yield from _changed(state, act, "paused", still)
            yield from _changed(state, act, "held_back", State("waiting", act.due))
        case "get":
            if FOUND.get(act.outcome, "absent") == state.place and (state.place != "waiting" or meet(state, act)):
                yield state
        case "promotion":
            if state.place in ("waiting", "called") and meet(state, act):
                yield LIVE
        case "end":
            if state.place == "live":
                yield ABSENT


def meet(state: State, act: Act) -> bool:
    """Whether the due time of a job may be the one of an act."""
    return state.due[0] <= act.due[1] and act.due[0] <= state.due[1]


def _made(state: State, act: Act) -> Iterator[State]:
    """Yields the state after a job was asked for: a new one, or that of the job which has the id."""
    found = state.place
    answer = "created" if found == "absent" else "there"
    if found == "waiting" and act.does == "replace":
        answer = "replaced"
    if found != "called" and act.outcome in (answer, UNKNOWN):
        yield state if answer == "there" else State("waiting", act.due)


def _changed(state: State, act: Act, done: str, to: State) -> Iterator[State]:
    """Yields the state after a change of a waiting job. It is the same where there is none."""
    if state.place == "waiting" and act.outcome in (done, UNKNOWN):
        yield to
    elif state.place == NOT_HERE.get(act.outcome, state.place if act.outcome == UNKNOWN else ""):
        yield state


def precedes(one: Act, other: Act) -> bool:
    """Whether one act must have taken effect before another."""
    return one.end < other.start or (other.is_certain and one.who == other.who != "" and one.kept_at <= other.start)


def misfit(acts: Sequence[Act], *, at_rest: bool = False) -> str | None:
    """Returns None if some order of the acts explains them all; else how far the best one comes.

    With `at_rest` the history is complete: no job waits or is live any more.

    Raises: ValueError, if the search takes too many steps.
    """
    acts = sorted(acts, key=lambda act: (act.start, act.end))
    earlier = [sum(1 << n for n, one in enumerate(acts) if one is not act and precedes(one, act)) for act in acts]
    certain = sum(1 << n for n, act in enumerate(acts) if act.is_certain)
    final = ("absent",) if at_rest else ("absent", "waiting", "live")
    seen = {(0, ABSENT)}
    ways: list[tuple[int, State, tuple[int, ...]]] = [(0, ABSENT, ())]
    best: tuple[int, State, tuple[int, ...]] = ways[0]
    while ways:
        done, state, order = way = ways.pop()
        if done & certain == certain and state.place in final:
            return None
        if (done & certain).bit_count() > (best[0] & certain).bit_count():
            best = way
        for n in reversed(range(len(acts))):
            if done >> n & 1 or earlier[n] & ~done:
                continue
            for then in after(state, acts[n]):
                known = (done | 1 << n, then)
                if known not in seen and (acts[n].is_certain or then != state or acts[n].kept_at < INFINITE):
                    seen.add(known)
                    ways.append((*known, (*order, n)))
        if len(seen) > MOST_STEPS:
            raise ValueError(f"{len(acts)} acts have too many orders")
    done, state, order = best
    story = ", ".join(str(acts[n]) for n in order[-4:])
    left = [str(act) for n, act in enumerate(acts) if act.is_certain and not done >> n & 1 and not earlier[n] & ~done]
    rest = f"then none of these can be: {', '.join(left[:3])}" if left else "so it stays"
    return f"{story or 'at first'}: it is {state.place}, and {rest}"
