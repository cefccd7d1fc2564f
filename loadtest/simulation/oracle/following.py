"""Promises about what follows a job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from loadtest.simulation.ledger import Asked
from loadtest.simulation.oracle.seen import JobId, Seen, promise


@promise("followed")
def followed(seen: Seen) -> Iterator[str]:
    """Each follower of an acknowledged run is made exactly once, and runs; no other is made."""
    asked: defaultdict[JobId, list[Asked]] = defaultdict(list)
    for one in seen.ledger.asked:
        asked[one.topic, one.id].append(one)
    for (topic, id), history in seen.jobs.items():
        made = [one for one in history.promotions if not one.group]
        if not id.startswith("then-") or not made:
            continue
        if not any(one.run.outcome == "done" for one in asked[topic, id]):
            yield f"{topic}/{id} was made, and no run that ended well asked for it"
        elif len(made) > 1 and not seen.ledger.undone:
            yield f"{topic}/{id} was made {len(made)} times"
    if not seen.ledger.undone:
        yield from _made_by_two(seen)
    for (topic, id), some in asked.items():
        runs = [run for run in seen.jobs[some[0].run.topic, some[0].run.id].runs if run.entry == some[0].run.entry]
        if any(run.outcome != "done" for run in runs) or seen.ledger.undone:
            continue  # which of the runs was acknowledged is not known, or is forgotten
        if some[0].is_of_run and len(runs) > 1:
            continue  # another of the runs may have been acknowledged
        if (topic, id) in seen.ledger.dead and len(seen.ledger.clock) > 1:
            continue  # its topic was full for longer than a follower waits, because the clock was set back
        if not seen.jobs[topic, id].promotions:
            yield f"{topic}/{id} was never made, and its predecessor {some[0].run.topic}/{some[0].run.id} is done"


def _made_by_two(seen: Seen) -> Iterator[str]:
    """Of the runs of one delivery, one is acknowledged: only its followers are made."""
    made: defaultdict[tuple[str, str, str, str], dict[int, Asked]] = defaultdict(dict)
    for one in seen.ledger.asked:
        if one.is_of_run and seen.jobs[one.topic, one.id].promotions:
            made[one.run.group, one.run.topic, one.run.id, one.run.entry][id(one.run)] = one
    for (_, topic, job, _), runs in made.items():
        if len(runs) > 1:
            names = " and ".join(f"{one.id} of {one.run.worker}" for one in runs.values())
            yield f"two runs of one delivery of {topic}/{job} left followers: {names}"


@promise("told")
def told(seen: Seen) -> Iterator[str]:
    """Each burial is told of exactly once."""
    topics = [topic.name for topic in seen.plan.topics if "on_dead" in topic.settings]
    if seen.ledger.undone:
        return
    told = Counter((topic, id) for topic, id, _ in set(seen.ledger.told))
    buried = Counter({job: len(times) for job, times in seen.ledger.dead.items() if job[0] in topics})
    for (topic, id), count in (told - buried).items():
        yield f"{topic}/{id} was told of {count} times more than it was buried"
    for (topic, id), count in (buried - told).items():
        yield f"{topic}/{id} was buried {count} times more than it was told of"
