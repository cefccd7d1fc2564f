"""Promises about debounced jobs: the last payload runs, once for each job that calls made, and not beyond its bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter

from loadtest.simulation.ledger import Debounced, Promotion
from loadtest.simulation.oracle.seen import Seen, promise
from loadtest.simulation.plan import DEBOUNCED
from loadtest.simulation.world import EPOCH_S

MADE = ("created", "replaced")


def _of_keys(seen: Seen) -> dict[str, list[Debounced]]:
    found: defaultdict[str, list[Debounced]] = defaultdict(list)
    for one in seen.ledger.debounced:
        found[one.key].append(one)
    return found


def _promotions(seen: Seen, id: str) -> list[Promotion]:
    """Returns the promotions of first attempts under an id."""
    found = seen.jobs[DEBOUNCED, id].promotions
    return [one for one in found if one.attempt == 1 and not one.group]


@promise("superseded")
def superseded(seen: Seen) -> Iterator[str]:
    """A job runs after each call that made or replaced one: with the payload of this call, or of a later one."""
    for calls in _of_keys(seen).values() if not seen.ledger.undone else ():
        ended = {one.mark: one.answered if one.is_known else seen.ended for one in calls}
        for call in calls:
            if call.outcome not in MADE:
                continue
            after = [one for one in _promotions(seen, call.id) if one.at >= call.sent]
            cancels = [one for one in calls if not one.mark and one.answered >= call.sent]
            if not after and not cancels:
                yield f"{call.id} was {call.outcome} with {call.mark} at {call.sent:.2f}, and has not run since"
            first = next((one for one in after if one.at >= call.answered), None)
            if first and call.mark not in [one.mark for one in after] and ended[first.mark] < call.sent:
                what = f"{call.id} was promoted at {first.at:.2f} with {first.mark}"
                yield f"{what}, although it was {call.outcome} with {call.mark} at {call.sent:.2f}"


@promise("multiplied")
def multiplied(seen: Seen) -> Iterator[str]:
    """Calls of a key run as many jobs as they made."""
    for key, calls in _of_keys(seen).items() if not seen.ledger.undone else ():
        perhaps = sum(not one.is_known for one in calls if one.mark)
        for id in {key, *(one.id for one in calls if one.id)}:
            made = sum(one.outcome == "created" for one in calls if one.id == id)
            if len(found := _promotions(seen, id)) > made + perhaps:
                yield f"{id} was made {made} times, perhaps {perhaps} times more, and promoted {len(found)} times"


@promise("put-off")
def put_off(seen: Seen) -> Iterator[str]:
    """A job is due when the last answer says, at most `max_wait` after the call that made it."""
    if seen.ledger.undone or len(seen.ledger.clock) > 1:
        return
    for calls in _of_keys(seen).values():
        by_mark = {one.mark: one for one in calls if one.mark}
        for id in {one.id for one in calls if one.id}:
            for one in _promotions(seen, id):
                call = by_mark[one.mark]
                if call.outcome in MADE and one.due_ms != call.due_ms:
                    yield f"{id} with {one.mark} was due at {one.due_ms}, and its receipt said {call.due_ms}"
                made = [other for other in calls if (other.id, other.outcome) == (id, "created")]
                earlier = [other for other in made if other.sent <= one.at]
                first = max(earlier, key=attrgetter("answered"), default=None)
                if first is None or any(not other.is_known and other.sent <= one.at for other in calls):
                    continue  # which call made it is not known
                last_ms = (EPOCH_S + seen.server_time(first.answered) + call.max_wait) * 1000
                if one.due_ms > last_ms + 1:
                    yield f"{id} was due {one.due_ms - last_ms:.0f} ms beyond the bound of {first.mark} and {one.mark}"
