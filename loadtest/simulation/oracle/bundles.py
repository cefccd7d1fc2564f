"""Promises about bundles: the follower is made once and only when it may, and the counts are true."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.simulation.ledger import Bundled
from loadtest.simulation.oracle.seen import JobId, Seen, promise
from wheelq import Bundle, BundleState

DEAD, DONE, CANCELLED = "dead", "done", "cancelled"
NEVER = 1 << 62


@promise("bundled")
def bundled(seen: Seen) -> Iterator[str]:
    """Each bundle that was closed is followed once when its members have ended, and counts them truly."""
    for one in seen.ledger.bundles if not seen.ledger.undone else ():
        if one.id:
            yield from (f"{one.id} of #{one.step.number}: {what}" for what in _wrong(seen, one))


def _wrong(seen: Seen, one: Bundled) -> Iterator[str]:
    follower, found = ("album", f"bundle-{one.id.partition(':')[2]}"), one.found
    made = sum(not promotion.group for promotion in seen.jobs[follower].promotions)
    place = seen.ledger.followed.get(follower, NEVER)
    if made > 1:
        yield f"its follower was made {made} times"
    yield from _too_early(seen, one, place)
    if found is None:
        yield "it is not known"
        return
    numbers = f"{found.members} members, {found.done} done, {found.dead} dead, {found.cancelled} cancelled"
    match found.state:
        case BundleState.OPEN:
            is_wrong = one.is_closed or made > 0
        case BundleState.CLOSED:
            is_wrong = one.when == "all_ended" or not found.dead or made > 0
        case BundleState.ENDED:
            is_wrong = made == 0
        case BundleState.CANCELLED:
            is_wrong = made > 0
    if is_wrong or (found.left and one.is_closed):
        yield f"it is {found.state} with {numbers}, {found.left} left, and its follower was made {made} times"
    if one.is_closed and not found.left:
        yield from (f"it has {numbers}: {what}" for what in _miscounted(seen, one, found, place))


def _too_early(seen: Seen, one: Bundled, place: int) -> Iterator[str]:
    """Yields the members that had not ended when the follower was made."""
    for job in sorted({*one.members, *one.perhaps} - one.others):
        graves = [is_buried for at, is_buried in seen.ledger.graves[job] if at < place]
        if graves and one.when == "all_ended":
            continue  # it has ended, and what is replayed changes nothing
        if place < NEVER and graves.count(True) > graves.count(False):
            yield f"{job[0]}/{job[1]} was dead when the follower was made"
        for promotion in seen.jobs[job].promotions:
            acked = seen.ledger.acked[promotion.topic, promotion.shard, promotion.entry]
            late = [at for at, group in acked if at > place and promotion.group in ("", group)]  # others only skip it
            if promotion.place > place or late:
                yield f"{job[0]}/{job[1]} ended after the follower was made"


def _miscounted(seen: Seen, one: Bundled, found: Bundle, place: int) -> Iterator[str]:
    least, most = len(one.members), len(one.members) + len(one.perhaps)
    if not least <= found.members <= most:
        yield f"its producer knows of {least} to {most}"
    if one.perhaps or one.others or len(set(one.members)) < least:
        return
    fates = [_fates(seen, one, found, job, place) for job in one.members]
    for what, count in ((DONE, found.done), (DEAD, found.dead), (CANCELLED, found.cancelled)):
        surely, perhaps = sum(fate == {what} for fate in fates), sum(what in fate for fate in fates)
        if not surely <= count <= perhaps:
            yield f"{surely} to {perhaps} are {what}"


def _fates(seen: Seen, one: Bundled, found: Bundle, job: JobId, place: int) -> set[str]:
    """Returns as what a member may count."""
    groups = next(topic.groups for topic in seen.plan.topics if topic.name == job[0])
    done = {run.group for run in seen.jobs[job].runs if run.outcome == "done"}
    graves = [is_buried for at, is_buried in seen.ledger.graves[job] if at < place]
    if graves and graves.count(False) and (one.when == "all_ended" or found.state == BundleState.CANCELLED):
        return {DEAD, DONE, CANCELLED}  # the last report of its shard may be older than its replay
    if graves.count(True) > graves.count(False):
        return {DEAD}
    passing = any(step.kind == "group-of-members" and step.args["topic"] == job[0] for step in seen.plan.steps)
    if passing and graves and not done:
        return {DONE, CANCELLED}  # it was purged before a group that never ran it was removed, which ended it
    if len(groups) > 1 and (graves or 0 < len(done) < len(groups)):
        return {DONE, CANCELLED}
    return {DONE} if done else {CANCELLED}
