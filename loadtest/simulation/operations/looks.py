"""Looks at a topic's jobs: lists, pages, counts and forecasts, each compared with what the server holds.

A job that waited in the same place before and after a call must be on exactly one page. Counts are compared if nothing
has moved meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from loadtest.simulation.ledger import Ledger
from loadtest.simulation.operations.jobs import drawn_job, schedule_all
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from loadtest.simulation.store.sorted_set import SortedSet
from wheelq.errors import WheelqError

FORMER_S = 2.0
"""For so long after a fail-over a client may read from the former primary."""
STATES = ("waiting", "retrying", "ready", "running", "done", "dead")


def _draw_many(draft: Draft) -> Args:
    random, topic = draft.random, draft.topics[0]
    jobs = [{**drawn_job(draft, topic), "delay": round(random.uniform(0, 25), 3)} for _ in range(random.randint(4, 12))]
    for job in jobs[:2]:
        job["payload"] = random.choice(([0, 2, "error"], [3.0, 0, "error"], [0, 99, "bury"]))
    return {"topic": topic.name, "jobs": jobs}


@operation("looked-at", weight=8, draw=_draw_many, trait="looks")
async def looked_at(actor: Actor, step: Step) -> None:
    await schedule_all(actor, step)


def _waiting(ledger: Ledger, topic: str) -> frozenset[tuple[str, float, str]]:
    """Returns what waits on the server: shard, due time and member."""
    values = ledger.server.store.values.items()
    sets = [(key.decode(), one) for key, one in values if key.startswith(b"wheelq:{%b:" % topic.encode())]
    return frozenset(
        (key, score, member.decode())
        for key, one in sets
        if key.endswith(":delayed") and type(one) is SortedSet
        for score, member in one.order
    )


def _draw_list(draft: Draft) -> Args:
    random = draft.random
    return {"topic": draft.topics[0].name, "state": random.choice(STATES), "limit": random.choice((1, 3, 10))}


def _check(actor: Actor, step: Step, begun: float, stayed: Iterable[str], listed: Counter[str]) -> None:
    """Note the jobs that were left out, or listed twice."""
    ledger = actor.ledger
    wrong = {id: listed[id] for id in stayed if listed[id] != 1}
    ledger.world.story.tell(actor.name, f"#{step.number} {step.kind}: {sum(listed.values())} jobs")
    if wrong and not ledger.was_undone(begun - 1, ledger.world.now):
        ledger.problems.append(f"listed: {step} has these jobs so often: {wrong}")


@operation("list", weight=10, draw=_draw_list, trait="looks")
async def list_jobs(actor: Actor, step: Step) -> None:
    """List the jobs of one state, page by page."""
    topic, state, begun = step.args["topic"], step.args["state"], actor.ledger.world.now
    before, listed, cursor = _waiting(actor.ledger, topic), Counter[str](), None
    try:
        while True:
            page = await actor.client.jobs(topic, state=state, limit=step.args["limit"], cursor=cursor)
            listed.update(f"{one.id}\x1f{one.group}" if state == "retrying" else one.id for one in page.jobs)
            if (cursor := page.cursor) is None:
                break
    except WheelqError:
        return
    stayed = before & _waiting(actor.ledger, topic)
    wanted = {"waiting": False, "retrying": True}.get(state)
    ids = ["\x1f".join(member.split("\x1f")[:2]) for _, _, member in stayed if ("\x1f" in member) is wanted]
    _check(actor, step, begun, ids, listed)


@operation("waiting", weight=5, draw=_draw_list, trait="looks")
async def waiting(actor: Actor, step: Step) -> None:
    """List what waits, also for a retry."""
    topic, begun = step.args["topic"], actor.ledger.world.now
    before, listed, cursor = _waiting(actor.ledger, topic), Counter[str](), None
    try:
        while True:
            page = await actor.client.waiting(topic, limit=step.args["limit"], cursor=cursor)
            listed.update(one.id for one in page.jobs)
            if (cursor := page.cursor) is None:
                break
    except WheelqError:
        return
    stayed = before & _waiting(actor.ledger, topic)
    _check(actor, step, begun, [member.partition("\x1f")[0] for _, _, member in stayed], listed)


@operation("count", weight=5, draw=_draw_list, trait="looks")
async def count(actor: Actor, step: Step) -> None:
    """Count what waits in three ways."""
    ledger, topic, client = actor.ledger, step.args["topic"], actor.client
    for name, ask in (("count_due", client.count_due), ("forecast", client.forecast), ("topic", client.topic)):
        before = _waiting(ledger, topic)
        try:
            answer: Any = await ask(topic)
        except WheelqError:
            continue
        found = sum(span.jobs for span in answer) if name == "forecast" else answer
        found = answer.waiting + answer.retrying if name == "topic" else found
        former = [one for one in ledger.troubles if one.kind == "fail-over" and one.ends > ledger.world.now - FORMER_S]
        if before == _waiting(ledger, topic) and found != len(before) and not former:
            ledger.problems.append(f"counted: {name} of {topic} says {found}, and {len(before)} wait ({step})")


@operation("overview", weight=2, draw=_draw_list, trait="looks")
async def overview(actor: Actor, step: Step) -> None:
    """Ask for all topics, their groups and their history."""
    try:
        topics = await actor.client.topics()
        groups = await actor.client.groups(step.args["topic"])
        minutes = await actor.client.history(step.args["topic"], hours=1)
    except WheelqError:
        return
    told = f"#{step.number} {len(topics)} topics, {len(groups)} groups, {len(minutes)} minutes"
    actor.ledger.world.story.tell(actor.name, told)
