"""The oracle: finds broken promises in the ledger. A new promise takes ten lines.

    @promise("never early")
    def never_early(seen: Seen) -> Iterator[str]:
        ...yield a sentence for each time that it was broken

    seen       the records of a run, sorted by job, and the registry of promises
    excuses    which fault explains a broken promise, for which part, and for how long
    times      never early, soon after the due time, started at once
    acts       the calls about one job, its promotions and the ends of its lives, as a history for `linear`
    linear     whether some order of a history's acts explains every answer
    answers    what a producer was told is true, and what it was promised happens, once
    runs       in order, once unless a worker fails, and again soon if it does
    retries    the pause before the next attempt, how many there are, and that the last one is the end
    limits     what a topic's settings hold back, and how long finished jobs are kept
    keys       limits per key: never more than they allow, and nobody held back without need
    following  each follower is made once if its predecessor is acknowledged, and else never; each death is told of once
    bundles    the follower of a bundle is made once and only when it may, and the counts are true
    debounced  the last payload runs, once for each job that calls made, and not beyond its bound
    recurring  each occurrence of a rule runs once, at its time
    stops      a worker that stops has acknowledged what it has run; what an outbox keeps counts from its call

Calls about one job may be in progress at the same time, and their outcomes may be unknown: what is certain all the same
is found by a search (`linear`). Other promises are about jobs whose state their producers know; the rest is *muddled*.
"""

from __future__ import annotations

from loadtest.simulation.ledger import Ledger
from loadtest.simulation.oracle import (
    acts,
    answers,
    bundles,
    debounced,
    following,
    keys,
    limits,
    linear,
    recurring,
    retries,
    runs,
    stops,
    times,
)
from loadtest.simulation.oracle.excuses import Excuse, summed_up
from loadtest.simulation.oracle.seen import PROMISES, Seen, promise, sort
from loadtest.simulation.plan import Plan


def examine(ledger: Ledger, plan: Plan) -> tuple[list[str], list[Excuse]]:
    """Returns a sentence for each broken promise, and the excuses for those that do not count."""
    seen = sort(ledger, plan)
    problems = [f"{name}: {what}" for name, check in PROMISES.items() for what in check(seen)] + ledger.problems
    return problems, seen.excuses.used


__all__ = [
    "PROMISES",
    "Excuse",
    "Seen",
    "acts",
    "answers",
    "bundles",
    "debounced",
    "examine",
    "following",
    "keys",
    "limits",
    "linear",
    "promise",
    "recurring",
    "retries",
    "runs",
    "sort",
    "stops",
    "summed_up",
    "times",
]
