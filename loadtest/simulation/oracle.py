"""The oracle: finds broken promises in the ledger. A new promise takes ten lines.

    @promise("never early")
    def never_early(seen: Seen) -> Iterator[str]:
        ...yield a sentence for each time that it was broken

A job is *muddled* if several calls about it were in progress at the same time, or if its producer does not know the
outcome of one. It may be in any of several states, so only promises that hold in all of them are checked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from loadtest.simulation.ledger import Call, Ledger, Promotion, Run
from loadtest.simulation.plan import Plan
from loadtest.simulation.world import EPOCH_S

SOON_S = 0.4
"""A job is promoted and started within this time, if no fault or limit delays it."""
DEAD_S = 6.0
"""A dead worker's jobs run again within this time: 5 s are promised, and a pool may be full for a moment."""
NEARLY_S = 0.25
"""The largest error of an outbox's estimate of the server's clock."""
SETS_DUE = ("created", "replaced", "rescheduled", "moved")
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


@dataclass(slots=True)
class Seen:
    """A ledger, sorted by job, with its plan."""

    ledger: Ledger
    plan: Plan
    ended: float
    jobs: defaultdict[JobId, History] = field(default_factory=lambda: defaultdict(History))

    def reached(self, due_ms: int, since: float) -> float:
        """Returns when the server's clock first showed this time, by the world's clock and not before `since`."""
        spans = [*self.ledger.clock, (float("inf"), 0.0, 1.0)]
        for (begins, offset, rate), (ends, _, _) in pairwise(spans):
            at = max((due_ms / 1000 - EPOCH_S - offset) / rate, begins, since)
            if at < ends:
                return at
        return since


def examine(ledger: Ledger, plan: Plan) -> list[str]:
    """Returns a sentence for each broken promise."""
    seen = Seen(ledger, plan, ledger.world.now)
    for call in ledger.calls:
        if call.id:
            seen.jobs[call.topic, call.id].calls.append(call)
    for promotion in ledger.promotions:
        seen.jobs[promotion.topic, promotion.id].promotions.append(promotion)
    for run in ledger.runs:
        seen.jobs[run.topic, run.id].runs.append(run)
    return [f"{name}: {what}" for name, check in PROMISES.items() for what in check(seen)] + ledger.problems


@promise("lost")
def lost(seen: Seen) -> Iterator[str]:
    """Every acknowledged job that was not cancelled has run to its end in every group."""
    groups = {topic.name: topic.groups for topic in seen.plan.topics}
    for (topic, id), history in seen.jobs.items():
        made = [one for one in history.calls if one.outcome in ("created", "replaced", "kept")]
        if not made or any(one.outcome in ("cancelled", "unknown", "unanswered") for one in history.calls):
            continue
        last = made[-1]
        is_replicated = last.step.args.get("durability") is not None
        if seen.ledger.was_undone(last.sent - 1.0, last.answered, though_replicated=is_replicated):
            continue
        for group in groups.get(topic, ()):
            if group != "default" and seen.ledger.undone:
                continue
            runs = [run for run in history.runs if run.group == group]
            if not any(run.outcome in ("done", "Bury") for run in runs) and not seen.ledger.dead.get((topic, id)):
                yield f"{topic}/{id} ({last.outcome} by {last.step}) has not run in {group}; {len(runs)} attempts"


@promise("early")
def early(seen: Seen) -> Iterator[str]:
    """No job is promoted or started before it is due by the server's clock."""
    for (topic, id), history in seen.jobs.items():
        for one in history.promotions:
            if one.server_us < one.due_ms * 1000:
                yield f"{topic}/{id} was promoted {one.due_ms - one.server_us / 1000:.1f} ms before it was due"
        for run in history.runs:
            if run.server_us < run.due_ms * 1000 and not _clock_was_set_back(seen, run):
                yield f"{topic}/{id} attempt {run.attempt} started {run.due_ms - run.server_us / 1000:.1f} ms early"
        yield from _before_the_promise(seen, topic, id, history)


def _clock_was_set_back(seen: Seen, run: Run) -> bool:
    return any(
        since <= run.began and offset < before for (_, before, _), (since, offset, _) in pairwise(seen.ledger.clock)
    )


def _before_the_promise(seen: Seen, topic: str, id: str, history: History) -> Iterator[str]:
    """No job is promoted before the earliest time that a producer was promised."""
    if seen.ledger.undone or any(one.outcome in ("promoted", "paused") for one in history.calls):
        return
    least = [bound for one in _in_force(history) if (bound := _earliest_ms(seen, one)) is not None]
    first = [one for one in history.promotions if one.attempt == 1 and not one.group]
    if least and first and first[0].server_us / 1000 < min(least) - 1:
        yield f"{topic}/{id} was promoted {min(least) - first[0].server_us / 1000:.0f} ms before what was promised"


def _in_force(history: History) -> list[Call]:
    """Returns the calls that may have set the first due time; only the last if their order is known."""
    if history.is_muddled or not history.promotions:
        return history.calls
    promoted = min(one.at for one in history.promotions)
    during = [one for one in history.calls if one.sent <= promoted <= one.answered]
    before = [one for one in history.calls if one.answered < promoted and one.outcome in SETS_DUE]
    return before[-1:] if before and not during else history.calls


def _earliest_ms(seen: Seen, call: Call) -> float | None:
    """Returns the earliest due time that a call asked for; None if it asked for none."""
    if call.outcome == "moved":
        return call.due_ms
    if call.step.kind == "due-range" and call.outcome == "unanswered":
        return call.asked_us / 1000  # it may have moved the job, for instance a job that the outbox delivered late
    if "delay" in call.step.args or "jobs" in call.step.args:
        delay = next(
            (job["delay"] for job in call.step.args.get("jobs", ()) if job["id"] == call.id),
            call.step.args.get("delay"),
        )
        if call.outcome.startswith("refused"):
            return None
        until = call.answered if not call.kept else seen.ended
        if any(call.sent - 0.1 <= since <= until + 0.1 for since, _, _ in seen.ledger.clock[1:]):
            return 0.0  # unknown by which clock it was counted
        return call.asked_us / 1000 + float(delay or 0) * 1000
    return None


@promise("misdated")
def misdated(seen: Seen) -> Iterator[str]:
    """A delay counts from the call, by the server's clock, also where an outbox has kept the job."""
    for one in seen.ledger.calls:
        if one.outcome not in ("created", "replaced", "kept") or "delay" not in one.step.args:
            continue
        if any(since <= one.answered for since, _, _ in seen.ledger.clock[1:]):
            continue  # an outbox cannot know of a step of the clock while the server is away
        passed_ms = one.due_ms - one.step.args["delay"] * 1000 - one.asked_us / 1000
        least_ms, most_ms = -1.0, (one.answered - one.sent + NEARLY_S) * 1000
        if not least_ms <= passed_ms <= most_ms:
            yield f"{one.topic}/{one.id} ({one.outcome}) is due {passed_ms:.0f} ms later than was asked for"


@promise("doubled")
def doubled(seen: Seen) -> Iterator[str]:
    """Each life of a job is promoted once, and each of its attempts once in each group."""
    for (topic, id), history in seen.jobs.items():
        if not history.calls:  # recurring
            continue
        normal = [one for one in history.promotions if not one.group]
        first = max(
            ([one for one in normal if one.attempt == n] for n in {one.attempt for one in normal}), key=len, default=[]
        )
        if len(first) > max(history.lives, 1):
            yield f"{topic}/{id} was promoted {len(first)} times in {history.lives} lives"


@promise("untrue")
def untrue(seen: Seen) -> Iterator[str]:
    """The answers to producers are true."""
    for (topic, id), history in seen.jobs.items():
        if not history.calls or history.is_muddled or seen.ledger.undone:
            continue
        calls = sorted(history.calls, key=lambda one: one.sent)
        if calls and calls[-1].outcome == "cancelled":
            after = [run for run in history.runs if run.began > calls[-1].answered]
            if after:
                yield f"{topic}/{id} ran after it was cancelled"
        was_refused = all(one.outcome.startswith("refused") for one in calls if one.step.kind != "cancel")
        if history.promotions and was_refused and calls[0].step.kind != "cancel":
            yield f"{topic}/{id} ran although its producer was call that it was refused"
        for before, one in pairwise(calls):
            if (
                before.outcome in ("created", "replaced")
                and one.outcome == "not_found"
                and not any(run.began < one.answered for run in history.runs)
            ):
                yield f"{topic}/{id} was {before.outcome}, then not found, and has not run"


@promise("miscounted")
def miscounted(seen: Seen) -> Iterator[str]:
    """A change of many jobs counts each job once, and moves each by the requested time."""
    for call, counted, there in seen.ledger.counted:
        if counted != there and not seen.ledger.undone:
            yield f"{call.topic}: {call.step.kind} has {call.outcome} {counted} jobs of {there}"
    for (topic, id), history in seen.jobs.items():
        moved = [one for one in history.calls if one.outcome == "moved"]
        if moved and history.promotions and not seen.ledger.undone and history.promotions[0].due_ms != moved[-1].due_ms:
            yield f"{topic}/{id} was due at {history.promotions[0].due_ms}, and was moved to {moved[-1].due_ms}"


@promise("leased")
def leased(seen: Seen) -> Iterator[str]:
    """No job is leased again before its lease has ended, and none after it was acknowledged."""
    leases: defaultdict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in seen.ledger.runs:
        came_too_late = run.outcome == "dropped" and run.leased_until < run.began  # its turn came after its lease
        if run.group == "http.lessees" and not came_too_late:
            leases[run.topic, run.id, run.entry].append(run)
    for (topic, id, _), runs in leases.items():
        for first, again in pairwise(sorted(runs, key=lambda run: run.began)):
            is_early = again.began < first.leased_until and not seen.ledger.undone
            if is_early and not seen.ledger.is_explained(first.began - 1, again.began, but=("clock", "pause")):
                left = first.leased_until - again.began
                yield f"{topic}/{id} was leased again {left:.2f} s before its lease ended ({first.outcome})"


@promise("repeated")
def repeated(seen: Seen) -> Iterator[str]:
    """A delivery runs again only after a fault of its worker."""
    for (topic, id), history in seen.jobs.items():
        by_entry: defaultdict[tuple[str, str, int], list[Run]] = defaultdict(list)
        for run in history.runs:
            by_entry[run.group, run.entry, run.attempt].append(run)
        for runs in by_entry.values():
            for first, again in pairwise(runs):
                has_ended = first.ended is not None and first.ended <= again.began
                if has_ended and first.outcome in ("RetryAfter", "ValueError"):  # an ordered job keeps its entry
                    continue
                if not seen.ledger.is_explained(first.began - 15, again.began, but=("pause", "clock")):
                    where = f"on {first.worker} and {again.worker}"
                    yield f"{topic}/{id} ran again after {again.began - first.began:.2f} s, {where}"


@promise("order")
def order(seen: Seen) -> Iterator[str]:
    """In an ordered topic no job starts before the previous one has ended for good."""
    topic = next((one for one in seen.plan.topics if one.handling in ("ordered", "keyed")), None)
    if topic is None or seen.ledger.undone:
        return
    lanes: defaultdict[tuple[int, str], list[Promotion]] = defaultdict(list)
    keys = {one.id: one.partition_key for one in _drawn(seen)}
    for one in seen.ledger.promotions:
        if one.topic == topic.name:
            lanes[one.shard, (keys.get(one.id) or one.id) if topic.handling == "keyed" else ""].append(one)
    runs: defaultdict[JobId, list[Run]] = defaultdict(list)  # two shards may have entries of the same name
    for run in seen.ledger.runs:
        if run.topic == topic.name:
            runs[run.id, run.entry].append(run)
    for promotions in lanes.values():
        for before, after in pairwise(promotions):
            if after.due_ms < before.due_ms:  # the clock was set back between them, and order is by due time
                continue
            if runs[before.id, before.entry] and runs[after.id, after.entry]:
                last, first = runs[before.id, before.entry][-1], runs[after.id, after.entry][0]
                if first.began < last.began and not _was_hurt(seen, last):
                    ahead = last.began - first.began
                    yield f"{topic.name}/{after.id} began {ahead:.3f} s before {before.id} began last"


@dataclass(frozen=True, slots=True)
class _Keyed:
    id: str
    partition_key: str | None


def _drawn(seen: Seen) -> Iterator[_Keyed]:
    for step in seen.plan.steps:
        if "payload" in step.args:
            yield _Keyed(step.args["id"], step.args["partition_key"])
        for job in step.args.get("jobs", ()):
            yield _Keyed(job["id"], job["partition_key"])


def _was_hurt(seen: Seen, run: Run) -> bool:
    return seen.ledger.is_explained(run.began - 15, run.began)


@promise("late")
def late(seen: Seen) -> Iterator[str]:
    """Jobs are promoted when they are due, and started soon after; a fault explains lateness for its time."""
    limited = {topic.name for topic in seen.plan.topics if topic.name == "limit"}
    explained, was_undone = seen.ledger.is_explained, seen.ledger.was_undone
    for one in seen.ledger.promotions:
        due = seen.reached(one.due_ms, _due_since(seen, one))
        if any(due < begins <= due + SOON_S for begins, _, _ in seen.ledger.clock):  # set back before it was promoted
            due = seen.reached(one.due_ms, due + SOON_S)
        if one.topic in limited or (one.topic, one.id) in seen.ledger.unannounced or one.at - due <= SOON_S:
            continue
        # A later fault is no excuse, unless it undid a promotion that was in time.
        if explained(one.at, one.at) and (explained(due, due + SOON_S) or was_undone(due, due + SOON_S)):
            continue
        yield f"{one.topic}/{one.id} was promoted {one.at - due:.2f} s late, at {one.at:.2f}"


def _due_since(seen: Seen, one: Promotion) -> float:
    """Returns since when the job has had its due time: since it waits, or since a `run_now` that promoted it."""
    calls = seen.jobs[one.topic, one.id].calls
    asked = [call.sent for call in calls if call.step.kind == "run-now" and call.asked_us // 1000 <= one.due_ms]
    return max([one.waits_since, *(sent for sent in asked if sent <= one.at)])


@promise("shards")
def shards(seen: Seen) -> Iterator[str]:
    """A topic keeps the number of shards of its last `set_shards` that was answered."""
    for topic, found in seen.ledger.shards.items():
        calls = [one for one in seen.ledger.calls if one.step.kind == "set-shards" and one.topic == topic]
        done = [
            one for one in calls if one.outcome == "done" and not seen.ledger.was_undone(one.sent - 1, one.answered)
        ]
        last = max(done, key=lambda one: one.answered, default=None)
        if last is None:
            continue
        since = {one.step.args["shards"] for one in calls if one.answered > last.sent}
        if found not in since:
            yield f"{topic} has {found} shards; {last.step} asked for others, and was answered at {last.answered:.2f}"


@promise("abandoned")
def abandoned(seen: Seen) -> Iterator[str]:
    """The jobs of a killed worker run again within five seconds, or thirty if the clock was set."""
    for name, died in seen.ledger.deaths:
        for run in seen.ledger.runs:
            if run.worker != name or run.began > died or (run.ended is not None and run.ended <= died):
                continue
            same = [one for one in seen.ledger.runs if (one.topic, one.id, one.entry) == (run.topic, run.id, run.entry)]
            again = [one for one in same if one.began > died and one is not run]
            least = min((one.began for one in again), default=None)
            if least is not None and least - died > _patience(seen, died, least):
                yield f"{run.topic}/{run.id} of {name}, killed at {died:.2f}, ran again {least - died:.2f} s later"


def _patience(seen: Seen, died: float, again: float) -> float:
    """Returns how long a job of a dead worker may wait; other faults may explain more."""
    others = [one for one in seen.ledger.troubles if one.kind not in ("kill-worker", "reshard")]
    until = max((one.ends for one in others if one.begins <= again and one.ends >= died), default=died)
    return max(DEAD_S, until - died)


@promise("slow")
def slow(seen: Seen) -> Iterator[str]:
    """A promoted job starts at once if workers have room."""
    easy = {topic.name for topic in seen.plan.topics if topic.handling in ("single", "thread")}
    first: dict[tuple[str, str, str], Run] = {}
    for run in seen.ledger.runs:
        first.setdefault((run.topic, run.id, run.entry), run)
    for one in seen.ledger.promotions:
        begun = first.get((one.topic, one.id, one.entry))
        if one.topic not in easy or begun is None or begun.began - one.at <= 1.0:
            continue
        if not seen.ledger.is_explained(one.at, begun.began):
            yield f"{one.topic}/{one.id} was started {begun.began - one.at:.2f} s after it was promoted"


__all__: Sequence[str] = ["PROMISES", "Seen", "cached_property", "examine", "promise"]
