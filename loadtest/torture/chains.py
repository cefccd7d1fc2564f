"""Chains in torture: some jobs are followed by another, and that by a third, each with a key made of the job's id.

Half of the last ones die. Their topic says where that is told of (`on_dead`): there a job runs for each death.

A follower is promised as the job before it is: it runs once if that job runs, and never otherwise. After a failover a
worker may still carry what follows an acknowledgement that was undone, and the job is acknowledged again: then its
follower may come twice, as the guide says. So a failover must explain each follower that came again, or runs of the
job before it in several entries, which the judge asks to be explained: while no replica confirms what is carried,
followers come late.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from loadtest.judge import Disruption, JobRun, Promise, Promotion
from wheelq.protocol.codec import decode

CHAINED = "torture-chained"
"""The topic of the followers."""
TOLD = "torture-told"
"""The topic that is told of their deaths."""
PREFIX = "after-"
LINKS = 2
"""The most followers of one job."""
ONE_IN = 6
"""One job in so many is followed."""
CARRIED_MS = 10_000
"""A follower is in its topic so many milliseconds after the acknowledgement at the latest."""
OTHERS = ("key-", "bundle-", "death-")
"""Jobs with such ids are not: they may run several times, or follow something else."""


def follower(id: str) -> str | None:
    """Returns the key of the job that follows this one, if one does."""
    first = id
    while first.startswith(PREFIX):
        first = first.removeprefix(PREFIX)
    links = (len(id) - len(first)) // len(PREFIX)
    is_followed = not first.startswith(OTHERS) and zlib.crc32(first.encode()) % ONE_IN == 0
    return f"{PREFIX}{id}" if is_followed and links < LINKS else None


def dies(id: str) -> bool:
    """Whether the job is buried at its first attempt."""
    return id.startswith(PREFIX * LINKS) and zlib.crc32(id.encode()) % 2 == 0


def notice(id: str) -> str:
    """Returns the name under which the judge knows the job that tells of a death."""
    return f"death-of-{id}"


def _followed(id: str) -> str:
    """Returns the job that this one follows, or whose death it tells of."""
    return id.removeprefix(notice("")) if id.startswith(notice("")) else id.removeprefix(PREFIX)


def with_followers(promises: Mapping[str, Promise], again: Mapping[str, int]) -> dict[str, Promise]:
    """Returns promises, and those for what follows their jobs, which may have come `again` so often."""
    found = dict(promises)

    def expect(id: str, promise: Promise) -> None:
        once_more = replace(promise, must_run=False, before=())
        found[id] = replace(promise, before=(*promise.before, *[once_more] * again.get(id, 0)))

    for id, promise in promises.items():
        while (after := follower(id)) is not None:
            id = after
            expect(id, promise)
        if dies(id):
            expect(notice(id), promise)
    return found


def came_again(
    promotions: Iterable[Promotion], runs: Iterable[JobRun], disruptions: Sequence[Disruption]
) -> Counter[str]:
    """Counts, by id, how often a follower or a notice came again for a reason: a failover, or the job before it ran so
    often."""
    entries: defaultdict[str, set[str]] = defaultdict(set)
    for run in runs:
        entries[run.id].add(run.entry_id)
    moments: defaultdict[str, list[int]] = defaultdict(list)
    for one in promotions:
        if one.attempt == 1 and one.id.startswith((PREFIX, notice(""))):
            moments[one.id].append(one.promoted_ms)
    return Counter(
        id
        for id, found in moments.items()
        for number, (before, after) in enumerate(pairwise(sorted(found)), start=2)
        if len(entries[_followed(id)]) >= number
        or any(one.may_undo and one.from_ms <= after and before - CARRIED_MS <= one.to_ms for one in disruptions)
    )


def notices(entries: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> Iterator[Promotion]:
    """Yields the promotions in entries of the topic that is told of deaths, by the names of `notice`."""
    for entry, fields in entries:
        name = notice(decode(fields[b"record"]).payload["id"])
        ms = int(entry.partition(b"-")[0])
        yield Promotion(name, int(fields[b"due"]), ms, int(fields.get(b"attempt", 1)), entry.decode())


def wrong(promises: Mapping[str, Promise], dead: Iterable[str], again: Mapping[str, int]) -> Iterator[str]:
    """Yields what is wrong with the dead jobs of the followers' topic, given by their ids."""
    counts = Counter(dead)
    for id, count in counts.items():
        if count > 1 + again.get(id, 0) or not dies(id):
            yield f"{id} was buried {count} times"
    for id, promise in promises.items():
        if dies(id) and promise.must_run and not counts[id]:
            yield f"{id} should have been buried"
