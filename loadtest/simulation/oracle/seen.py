"""The records of a run, sorted by job, and the registry of promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from loadtest.simulation.ledger import Call, Hand, Ledger, Promotion, Run
from loadtest.simulation.operations.beside import LONG_S
from loadtest.simulation.oracle.excuses import Excuses
from loadtest.simulation.plan import NODES, Plan
from loadtest.simulation.world import EPOCH_S

SOON_S = 0.4
"""A job is promoted and started within this time, if no fault or limit delays it."""
GROUPS, ALONE = ("default", "audit"), ("audit",)
"""The groups of workers, and those with one worker only."""
SHARED_BY, LARGEST = ("worker-0", "worker-1", "worker-2"), "worker-0"
"""The workers of the first group, and the one with most places."""
ONE_LEFT_S = 2.5
"""For so long jobs may wait for a place in the only worker that is left."""
RUNS_NOW = ("run-now", "rival-run-now", "asked-run-now", "share-run-now")
JobId = tuple[str, str]
Promise = Callable[["Seen"], Iterator[str]]
PROMISES: dict[str, Promise] = {}


def promise(name: str) -> Callable[[Promise], Promise]:
    """Register a promise."""

    def register(check: Promise) -> Promise:
        PROMISES[name] = check
        return check

    return register


@dataclass(slots=True)
class History:
    """All records about one job."""

    calls: list[Call] = field(default_factory=list)
    promotions: list[Promotion] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @property
    def is_muddled(self) -> bool:
        """Whether its producers cannot know its state."""
        return any(not one.is_known for one in self.calls) or any(
            one.answered > other.sent for one, other in pairwise(sorted(self.calls, key=lambda call: call.sent))
        )

    @property
    def lives(self) -> int:
        """The most times it can have been created."""
        return sum(one.outcome in ("created", "unknown", "unanswered", "kept", "replaced") for one in self.calls)


@dataclass
class Seen:
    """A ledger, sorted by job, with its plan."""

    ledger: Ledger
    plan: Plan
    ended: float
    excuses: Excuses
    jobs: defaultdict[JobId, History] = field(default_factory=lambda: defaultdict(History))
    hands: defaultdict[tuple[str, str, str], list[Hand]] = field(default_factory=lambda: defaultdict(list))
    """By group, topic and entry, the workers that have had the delivery."""

    @property
    def nodes(self) -> list[str]:
        """The scheduler nodes."""
        return [f"node-{n}" for n in range(NODES)]

    def holders(self, run: Run) -> list[str]:
        """Returns the parts that had the delivery of a run until it began, the last one first."""
        hands = [one for one in self.hands[run.group, run.topic, run.entry] if one.at <= run.began]
        return list(dict.fromkeys(one.worker for one in reversed(hands)))

    def delivered(self, run: Run) -> float:
        """Returns when the server gave the delivery of a run to a part; its reply may have been long on the way."""
        hands = self.hands[run.group, run.topic, run.entry.rpartition(".")[2]]
        return max((one.at for one in hands if one.at <= run.began), default=run.began)

    def full_s(self, at: float) -> float:
        """Returns for how long all places of the first group may be taken then: 0, unless workers of it are missing.

        That is if only one is neither frozen nor dead nor cut off, or if long jobs fill all but its largest.
        """
        present = [one for one in self.excuses.troubles if one.begins <= at <= one.over]
        out = {one.whom for one in present if one.kind.endswith("-worker") or one.kind == "half-open"}
        has_long, is_one_left = "leaving" in self.plan.traits, len(out.intersection(SHARED_BY)) == len(SHARED_BY) - 1
        if has_long and (is_one_left or LARGEST in out):
            return LONG_S
        return ONE_LEFT_S if is_one_left else 0.0

    @cached_property
    def retries(self) -> set[tuple[str, str]]:
        """Topic and entry of every promotion of a retry."""
        return {(one.topic, one.entry) for one in self.ledger.promotions if one.group}

    def asked_now(self, job: JobId) -> list[float]:
        """Returns the times of the calls that asked to promote a job at once."""
        asked = [call.sent for call in self.jobs[job].calls if call.step.kind in RUNS_NOW]
        return asked + [sent for topic, id, sent in self.ledger.members_run_now if (topic, id) == job]

    def server_time(self, at: float) -> float:
        """Returns what the server's clock showed at this time, in seconds from the beginning."""
        _, offset, rate = next(one for one in reversed(self.ledger.clock) if one[0] <= at)
        return offset + at * rate

    def undone_until(self, at: float) -> float:
        """Returns when the writes of this time were undone; 0 if they were not."""
        return max(
            (one.ends for one in self.ledger.undone if one.begins <= at + SOON_S and at <= one.ends), default=0.0
        )

    def was_clock_stepped(self, call: Call) -> bool:
        """Whether the server's clock was stepped after the time by which the delay of a call may have been counted.

        An outbox counts by the clock as it was in the last answer that its process had, perhaps long before the call.
        Before the first answer, it counts by its machine's clock, and every step is after that.
        """
        since, until = call.sent, call.answered
        if not call.is_known:
            until = self.ended if call.kept else call.answered
            began = max((at for who, at in self.ledger.deaths if who == call.step.who and at < call.sent), default=0.0)
            heard = [one for one in self.heard if one.step.who == call.step.who and one.answered <= call.sent]
            since = max((one.sent for one in heard if one.sent >= began), default=0.0)
        return any(since - 0.1 <= at <= until + 0.1 for at, _, _ in self.ledger.clock[1:])

    def may_be_new(self, call: Call) -> bool:
        """Whether the server may have forgotten its answer before the call was repeated: its clock was set."""
        return not call.is_known and self.was_clock_stepped(call)

    @cached_property
    def heard(self) -> list[Call]:
        """The calls whose answers told their producer the server's time."""
        return [one for one in self.ledger.calls if one.makes and one.outcome in ("created", "replaced", "there")]

    def reached(self, due_ms: int, since: float) -> float:
        """Returns when the server's clock first showed this time, by the world's clock and not before `since`."""
        spans = [*self.ledger.clock, (float("inf"), 0.0, 1.0)]
        for (begins, offset, rate), (ends, _, _) in pairwise(spans):
            at = max((due_ms / 1000 - EPOCH_S - offset) / rate, begins, since)
            if at < ends:
                return at
        return since


def sort(ledger: Ledger, plan: Plan) -> Seen:
    """Returns the records of a run, sorted by job."""
    seen = Seen(ledger, plan, ledger.world.now, Excuses(ledger.troubles))
    for hand in ledger.hands:
        seen.hands[hand.group, hand.topic, hand.entry].append(hand)
    for call in ledger.calls:
        if call.id:
            seen.jobs[call.topic, call.id].calls.append(call)
    for promotion in ledger.promotions:
        seen.jobs[promotion.topic, promotion.id].promotions.append(promotion)
    for run in ledger.runs:
        seen.jobs[run.topic, run.id].runs.append(run)
    return seen
