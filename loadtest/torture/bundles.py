"""Bundles in torture: their members are jobs as all others, and the job that follows them is promised, too.

At the end the judge looks at the follower as at every job: it ran, once, and not before the bundle was closed. Here
stands what it cannot know: no member began for the first time after the follower was made, and the counts are true.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from loadtest.judge import RUN_CLOCK_ERROR_MS, UNDONE_MS, Disruption, JobRun, Promotion
from wheelq import Bundle, BundleState

AFTER = "torture-after"
"""The topic of the followers."""


@dataclass(slots=True)
class Bundled:
    """A bundle, as its producer knows it."""

    id: str = ""
    members: set[str] = field(default_factory=set)
    """The jobs of which it was told that they are members, confirmed where replicas confirm."""
    perhaps: set[str] = field(default_factory=set)
    """Jobs that may be."""
    is_sure: bool = True
    """Whether all its calls were answered, and confirmed."""

    @property
    def follower(self) -> str:
        """The id of the job that follows."""
        return f"bundle-{self.id.partition(':')[2]}"


def wrong(
    bundles: Iterable[Bundled],
    find: Callable[[str], Bundle | None],
    promotions: Iterable[Promotion],
    runs: Iterable[JobRun],
    disruptions: Sequence[Disruption],
    clock_error_ms: float = 0.0,
) -> Iterator[str]:
    """Yields what is wrong with bundles; `find` looks one up."""
    made = {one.id: one.promoted_ms for one in promotions if one.attempt == 1}
    began: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for run in runs:
        first = began[run.id].get(run.entry_id, run.started_ms)
        began[run.id][run.entry_id] = min(first, run.started_ms)
    for one in bundles:
        found = find(one.id)
        if found is not None and found.state is BundleState.ENDED:
            yield from _miscounted(one, found)
        elif one.is_sure:
            yield f"{one.id} is {found.state if found else 'not known'}, and was closed"
        for member in one.members if one.follower in made else ():
            for at in began[member].values():
                late_ms = at - made[one.follower]
                is_late = late_ms > RUN_CLOCK_ERROR_MS + clock_error_ms
                if is_late and not _is_undone(at, made[one.follower], disruptions):
                    yield f"{member} began {late_ms:.0f} ms after {one.follower}, which follows it, was made"


def _miscounted(one: Bundled, found: Bundle) -> Iterator[str]:
    least, most = len(one.members), len(one.members | one.perhaps)
    if found.left or found.dead or not least <= found.members <= most:
        counts = f"{found.members} members, {found.done} done, {found.dead} dead, {found.left} left"
        yield f"{one.id} has ended with {counts}; it has {least} to {most} members"


def _is_undone(at_ms: float, follows_ms: float, disruptions: Sequence[Disruption]) -> bool:
    """Whether a failover may have undone the acknowledgement of a member, which therefore ran again."""
    return any(one.may_undo and one.from_ms <= at_ms and one.to_ms >= follows_ms - UNDONE_MS for one in disruptions)
