"""Promises about bundles: the follower is made once and only when it may, and the counts are true."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.simulation.ledger import Bundled
from loadtest.simulation.oracle.excuses import Excuse
from loadtest.simulation.oracle.seen import JobId, Seen, promise
from wheelq import Bundle, BundleState

DEAD, DONE, CANCELLED = "dead", "done", "cancelled"
NEVER = 1 << 62
MS = 0.001


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
    if not one.has_ended and _ended_unseen(seen, one):
        if made != (0 if one.step.args["cancels"] else 1):
            yield f"it has ended, and its follower was made {made} times"
        return
    if found is None and one.was_unknown and not one.members and not made:
        return  # no call for it was answered, and perhaps none has arrived
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


def _ended_unseen(seen: Seen, one: Bundled) -> bool:
    """Whether a bundle ended and was forgotten before its producer could see its end.

    An ended bundle is known for `keep_done_ms` by the server's clock. If that clock is set forward, less time passes in
    the world, perhaps too little for a look. This excuses nothing if the server forgot the bundle too soon by its own
    clock, or if that much time did pass in the world. The end that the server stored does not count: it may be wrong.
    """
    topic = one.id.partition(":")[0]
    kept_s = next(plan.settings["keep_done_ms"] for plan in seen.plan.topics if plan.name == topic) / 1000
    for kept in seen.ledger.forgotten:
        if (kept.topic, kept.id) == (topic, f"\x1fbundle\x1f{one.id}"):
            by_server = seen.server_time(kept.at) - seen.server_time(kept.ended) + MS  # the end is stored in whole ms
            if kept.at - kept.ended < kept_s <= by_server:
                seen.excuses.used.append(Excuse("bundled", "clock", "", kept_s - (kept.at - kept.ended)))
                return True
    return False


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
    changes = [(at, is_buried) for at, is_buried in seen.ledger.graves[job] if at < place]
    graves, since = [is_buried for _, is_buried in changes], max((at for at, _ in changes), default=0)
    # A run that was done before its job was buried had lost its delivery: what comes after a replay counts.
    entries = {promotion.entry for promotion in seen.jobs[job].promotions if promotion.place >= since}
    done = {run.group for run in seen.jobs[job].runs if run.outcome == "done" and run.entry in entries}
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
