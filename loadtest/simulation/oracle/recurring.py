"""Promises about recurring jobs: each occurrence of the rule runs once, at its time, while the rule is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from loadtest.simulation.ledger import Call
from loadtest.simulation.oracle.seen import Seen, promise
from loadtest.simulation.world import EPOCH_S

MADE_S = 1.5
"""The next occurrence may have been made before its rule was removed, and one may be missed while a rule is put."""


@promise("recurring")
def recurring(seen: Seen) -> Iterator[str]:
    """Occurrences are moments of their rule; each runs once; none is left out while nothing is wrong."""
    rules: dict[str, list[Call]] = {}
    for one in seen.ledger.calls:
        if one.step.kind == "recurring":
            rules.setdefault(one.step.args["name"], []).append(one)
    for name, calls in rules.items():
        every_ms = calls[0].step.args["every"] * 1000
        found = Counter(
            one.due_ms for one in seen.ledger.promotions if one.id.startswith(f"{name}@") and one.attempt == 1
        )
        for due_ms, times in found.items():
            if due_ms % every_ms:
                yield f"{name} occurred at {due_ms / 1000 - EPOCH_S:.3f}, every {every_ms / 1000:.0f} s"
            if times > 1 and not seen.ledger.undone:
                yield f"{name} of {due_ms / 1000 - EPOCH_S:.0f} was promoted {times} times"
        yield from _left_out(seen, name, calls, every_ms, found)


def _left_out(seen: Seen, name: str, calls: list[Call], every_ms: int, found: Counter[int]) -> Iterator[str]:
    """Yields the occurrences that are missing between put and removal, if the server's clock ran on."""
    done = [one for one in calls if one.outcome == "done"]
    if len(done) < 2 or seen.ledger.undone or len(seen.ledger.clock) > 1:
        return
    begins, ends = (int((EPOCH_S + at) * 1000) for at in (done[0].answered + MADE_S, done[1].sent - MADE_S))
    for due_ms in range(begins // every_ms * every_ms + every_ms, ends, every_ms):
        at = due_ms / 1000 - EPOCH_S
        if not found[due_ms] and not seen.excuses.explain_at("recurring", at, (*seen.nodes, "plain")):
            yield f"{name} has not occurred at {at:.0f}"
