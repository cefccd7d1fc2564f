"""Excuses: which fault explains that a promise was broken, for which part, and for how long.

    due ─────── fault of the part ──over── slack ──┤ next fault … ┤        what happens here is excused
     └─ from here on every moment must be explained ┘               └─ and from here on it is not

A fault explains lateness until its `ends`; `SLACK` says where a promise knows a shorter or a longer time. Faults of
other parts explain nothing. Every excuse that is used is noted, so that an oracle that excuses too much is seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.simulation.ledger import Trouble

LOST_S = 6.0
"""A delivery whose reply was lost is found by two looks, `abandoned_ms` apart."""
BACK_S = 2.0
"""Workers read again this long after the server is back."""
TAKEN_S = 6.0
"""A delivery of a worker that is gone is taken over within this time: 5 s, and a pool may be full for a moment."""
UNRENEWED_S = 46.0
"""A worker finds deliveries whose acknowledgement a failover has lost in its next look at all of its own."""
LED_AGAIN_S = 1.5
"""A standby looks so often at jobs that are held back, and promotes what a silent leader does not."""
SILENT_S = 4.0
"""Heartbeats that were slow make a worker look gone, until others have seen the next ones."""

SLACK: Mapping[str, Mapping[str, float]] = {
    "slow": {
        "resets": LOST_S,
        "lost-replies": LOST_S,
        "slow-network": LOST_S,
        "server-away": BACK_S + LOST_S,
        "disk-full": BACK_S + LOST_S,
        "pause": 1.5,
        "reshard": 2.0,
    },
    "late": {"node": 0.0},
    "abandoned": {"server-away": BACK_S + TAKEN_S},
    "repeated": {"fail-over": UNRENEWED_S, "slow-network": SILENT_S},
}
"""By promise and kind of fault: how many seconds after its end a fault still explains something; None: not at all."""
FROM_ITS_BEGINNING: Mapping[str, Mapping[str, float]] = {
    "slow": {"kill-worker": TAKEN_S, "freeze-worker": TAKEN_S, "restart-worker": 4.0 + TAKEN_S},
    "starved": dict.fromkeys(("freeze-node", "kill-node", "restart-node"), LED_AGAIN_S),
}
"""The same where it does not matter how long the fault lasts."""


class Excuse(NamedTuple):
    """One use of an excuse."""

    promise: str
    kind: str
    whom: str
    seconds: float
    """How much it has excused."""


def until(promise: str, trouble: Trouble, *, is_alone: bool = False) -> float:
    """Returns until when a trouble explains that this promise was broken."""
    if not is_alone and (seconds := FROM_ITS_BEGINNING.get(promise, {}).get(trouble.kind)) is not None:
        return trouble.begins + seconds
    slack = SLACK.get(promise, {}).get(trouble.kind)
    return trouble.ends if slack is None else trouble.over + slack


@dataclass(slots=True)
class Excuses:
    """The troubles of a run, and the excuses that were used."""

    troubles: Sequence[Trouble]
    used: list[Excuse] = field(default_factory=list)

    def explain(
        self,
        promise: str,
        due: float,
        happened: float,
        whom: Collection[str],
        *,
        but: Collection[str] = (),
        is_alone: bool = False,
    ) -> bool:
        """Whether troubles of these parts explain, without a gap, that what was due happened so late.

        With `is_alone` no other part can take over what a part had: it waits for this one.
        """
        if happened <= due:
            return True
        reached, used = due, []
        for one in sorted(self.troubles, key=lambda one: one.begins):
            ends = until(promise, one, is_alone=is_alone)
            if one.kind in but or not (one.whom == "" or one.whom in whom) or one.begins > reached or ends <= reached:
                continue
            used.append(Excuse(promise, one.kind, one.whom, min(ends, happened) - reached))
            reached = ends
            if reached >= happened:
                self.used += used
                return True
        return False

    def explain_at(self, promise: str, when: float, whom: Collection[str], *, but: Collection[str] = ()) -> bool:
        """Whether a trouble of these parts explains what happened at this time."""
        for one in self.troubles:
            if (
                one.kind not in but
                and (one.whom == "" or one.whom in whom)
                and one.begins <= when <= until(promise, one)
            ):
                self.used.append(Excuse(promise, one.kind, one.whom, max(when - one.over, 0.0)))
                return True
        return False


def summed_up(excuses: Iterable[Excuse]) -> list[str]:
    """Returns a line for each promise and fault: how often it was excused, and for how long at most."""
    found: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for one in excuses:
        found[one.promise, one.kind, one.whom].append(one.seconds)
    return [
        f"{promise} is excused by {kind}{' of ' * bool(whom)}{whom}: {len(seconds)} times, {max(seconds):.2f} s at most"
        for (promise, kind, whom), seconds in sorted(found.items())
    ]
