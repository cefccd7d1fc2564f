"""Promises about recurring jobs: each occurrence of the rule runs once, at its time, while the rule is there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime

from loadtest.simulation.ledger import Call, Promotion
from loadtest.simulation.oracle.seen import Seen, promise
from loadtest.simulation.plan import Step
from loadtest.simulation.world import EPOCH_S
from loadtest.simulation.zones import occurrences

MADE_S = 1.5
"""The next occurrence may have been made before its rule was removed, and one may be missed while a rule is put."""


@promise("recurring")
def recurring(seen: Seen) -> Iterator[str]:
    """Occurrences are moments of their rule; each runs once; none is left out while nothing is wrong."""
    rules: defaultdict[str, list[Call]] = defaultdict(list)
    for call in seen.ledger.calls:
        if call.step.kind in ("recurring", "cron"):
            rules[call.step.args["name"]].append(call)
    for name, calls in rules.items():
        step = calls[0].step
        made = [one for one in seen.ledger.promotions if one.id.startswith(f"{name}@") and one.attempt == 1]
        found = Counter(_moment(one) for one in made)
        for moment, times in sorted(found.items()):
            if moment not in _moments(step, int(moment), int(moment) + 1):
                yield f"{name} occurred at {moment:.3f}, which is no moment of {step}"
            # A pause forgets which occurrence was the last, so those after a step of the clock may be made again.
            comes_again = step.args.get("pause") and len(seen.ledger.clock) > 1
            if times > 1 and not seen.ledger.undone and not comes_again:
                yield f"{name} of {moment:.0f} was promoted {times} times"
        for one in made:
            jitter = one.due_ms / 1000 - EPOCH_S - _moment(one)
            if not 0 <= jitter <= step.args.get("jitter", 0):
                yield f"{name} of {_moment(one):.0f} was due {jitter:.3f} s later"
        yield from _left_out(seen, step, calls, found)


def _moment(one: Promotion) -> float:
    """Returns the second of the run that an occurrence is of."""
    return datetime.fromisoformat(one.id.rpartition("@")[2]).timestamp() - EPOCH_S


def _moments(step: Step, begins: int, ends: int) -> list[int]:
    """Returns the moments of a rule in some seconds of the run, from `begins` to before `ends`."""
    if step.kind == "cron":
        return list(occurrences(step.args["cron"], step.args["tz"], begins, ends))
    return [at for at in range(begins, ends) if (EPOCH_S + at) % step.args["every"] == 0]


def _left_out(seen: Seen, step: Step, calls: list[Call], found: Counter[float]) -> Iterator[str]:
    """Yields occurrences that are missing while the rule is there, and those of a pause, if the clock ran on."""
    done = [one for one in calls if one.outcome == "done"]
    if len(done) < 2 or len(done) < len(calls) or seen.ledger.undone or len(seen.ledger.clock) > 1:
        return
    for put, taken in zip(done[::2], done[1::2], strict=False):  # then it was resumed and removed
        for at in _moments(step, int(put.answered + MADE_S) + 1, int(taken.sent - MADE_S)):
            if not found[at] and not seen.excuses.explain_at("recurring", at, (*seen.nodes, step.args["topic"])):
                yield f"{step.args['name']} has not occurred at {at}"
    for paused, resumed in zip(done[1::2], done[2::2], strict=False):
        for at in _moments(step, int(paused.answered) + 1, int(resumed.sent)):
            if found[at]:
                yield f"{step.args['name']} has occurred at {at}, though it was paused at {paused.answered:.2f}"
