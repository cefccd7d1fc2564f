"""Bundles: members over several topics and calls, what ends them, and looks at the counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, Literal

from loadtest.simulation.ledger import Bundled
from loadtest.simulation.operations.jobs import drawn_job
from loadtest.simulation.operations.registry import Args, operation
from loadtest.simulation.operations.topics import change, pass_by
from loadtest.simulation.parts import Actor
from loadtest.simulation.plan import Draft, Step
from loadtest.simulation.world import EPOCH_S
from wheelq import Continuation, JobSpec
from wheelq.errors import BundleClosed, BundleNotFound, WheelqError
from wheelq.producer.operation import Operation, ask_until_known
from wheelq.protocol.calls import bundles
from wheelq.protocol.keys import Keys

FOLLOWS = "album"
"""The topic of all followers."""
TRIES = 60
"""A second apart: longer than a server is away."""
LOOKS_S = 3.0
DIES = ((99, "bury-once"), (99, "bury-once"), (99, "bury"), (99, "error"))
FATES = ((0, "error"),) * 24 + ((1, "error"), (1, "error"), (1, "again"), *DIES)
"""How often the handler of a member fails, and how."""


def _members(draft: Draft, count: int) -> Mapping[str, Any]:
    """Draw the members of one call."""
    random, topic = draft.random, draft.random.choice(draft.topics[:3])
    jobs = []
    for _ in range(count):
        job = {**drawn_job(draft, topic), "delay": random.choice((0, 0, 0.05, 0.5, 2.0, 6.0))}
        job["payload"] = [random.choice((0, 0, 0.01, 0.2, 1.5)), *random.choice(FATES)]
        if topic.name == "hasty" and random.random() < 0.3:
            job["expires"] = random.choice((0.3, 1.0))
        jobs.append(job)
    return {"topic": topic.name, "jobs": jobs}


def _draw_bundle(draft: Draft) -> Args:
    random = draft.random
    is_streamed = random.random() < 0.5
    calls = [_members(draft, random.randint(1, 8)) for _ in range(random.randint(2, 4) if is_streamed else 1)]
    if random.random() < 0.05:
        calls[0] = {**calls[0], "jobs": []}
    return {
        "calls": calls,
        "is_streamed": is_streamed,
        "pauses": [round(random.choice((0, 0.01, 0.5, random.uniform(0, 5))), 3) for _ in calls],
        "when": random.choice(("all_done", "all_ended")),
        "delay": random.choice((0, 0, 0, 1.0)),
        "changes": [_changed(random, calls) for _ in range(random.choice((0, 0, 1, 2, 3)))],
        "cancels": is_streamed and random.random() < 0.2,
    }


def _changed(random: Random, calls: list[Mapping[str, Any]]) -> tuple[float, str, str, str, str | None]:
    """Draw what is done with a member, and when: after how long, what, topic, id and partition key."""
    call = random.choice(calls)
    job = random.choice(call["jobs"] or [{"id": "none", "partition_key": None}])
    what = random.choice(("cancel", "cancel", "cancel", "run-now", "reschedule", "replace"))
    return round(random.choice((0, 0.3, random.uniform(0, 4))), 3), what, call["topic"], job["id"], job["partition_key"]


@operation("bundle", weight=25, draw=_draw_bundle, trait="bundles")
async def bundle(actor: Actor, step: Step) -> None:
    """Make a bundle, at once or call by call, change some members, close or cancel it, and look until it has ended."""
    args = step.args
    made = Bundled(step, args["when"])
    actor.ledger.bundles.append(made)
    for place, (call, pause) in enumerate(zip(args["calls"], args["pauses"], strict=True)):
        await _schedule(actor, made, call, is_first=place == 0)
        if not made.id:
            actor.ledger.world.story.tell(actor.name, f"#{step.number}: no bundle was made, as far as is known")
            return
        await asyncio.sleep(pause)
    changing = asyncio.create_task(_change_members(actor, made), name=f"changes of {step}")
    end = actor.client.cancel_bundle if args["cancels"] else actor.client.close_bundle
    if args["is_streamed"] or made.was_unknown:
        made.is_closed = await _insist(actor, step, lambda: end(made.id))
    else:
        made.is_closed = True
    await changing
    await _look_until_it_ends(actor, made)
    if step.number % 3 == 0:  # not drawn: other plans stay as they are
        await _close_again(actor, made)


async def _schedule(actor: Actor, made: Bundled, call: Mapping[str, Any], *, is_first: bool) -> None:
    """Schedule members; if the outcome is unknown, once more in the same bundle."""
    args, number = made.step.args, made.step.number
    specs = [
        JobSpec(
            job["payload"], job["delay"], key=job["id"], partition_key=job["partition_key"], expires=job.get("expires")
        )
        for job in call["jobs"]
    ]
    then = Continuation(FOLLOWS, {"of": number}, delay=args["delay"], when=args["when"])
    story = actor.ledger.world.story
    for _ in range(TRIES):
        try:
            if made.id:
                receipts = await actor.client.schedule_many(call["topic"], specs, bundle=made.id)
            else:
                receipts = await actor.client.schedule_many(
                    call["topic"], specs, then=then, close=not args["is_streamed"]
                )
        except WheelqError as error:
            story.tell(actor.name, f"#{number} {call['topic']}: {type(error).__name__} {error.bundle or ''}")
            made.was_unknown = True
            if is_first and not made.id:
                made.id = error.bundle or ""
                if not made.id:
                    actor.ledger.nameless += 1
                    return
            made.perhaps += [(call["topic"], job["id"]) for job in call["jobs"]]
            if isinstance(error, (BundleClosed, BundleNotFound)):  # closed by the first call, or its writes are lost
                return
            await asyncio.sleep(1.0)
        else:
            made.id = made.id or receipts.bundle or ""
            for one in receipts:
                if one.bundle == made.id:
                    made.members.append((call["topic"], one.id))
            story.tell(actor.name, f"#{number} {made.id}: {call['topic']} {[one.id for one in receipts if one.bundle]}")
            return


async def _insist(actor: Actor, step: Step, do: Callable[[], Awaitable[object]]) -> bool:
    """Repeat a call until it is done. Returns False if that takes too long."""
    for _ in range(TRIES):
        try:
            answer = await do()
        except WheelqError as error:
            actor.ledger.world.story.tell(actor.name, f"#{step.number} {type(error).__name__}: {error}")
            if isinstance(error, BundleNotFound):
                return False
            await asyncio.sleep(1.0)
        else:
            actor.ledger.world.story.tell(actor.name, f"#{step.number} closed or cancelled: {answer}")
            return True
    return False


async def _close_again(actor: Actor, made: Bundled) -> None:
    """Close a bundle that has ended, which changes nothing."""
    try:
        await actor.client.close_bundle(made.id)
    except WheelqError as error:
        actor.ledger.world.story.tell(actor.name, f"#{made.step.number} not closed again: {type(error).__name__}")


async def _change_members(actor: Actor, made: Bundled) -> None:
    client, story = actor.client, actor.ledger.world.story
    for pause, what, topic, id, partition_key in made.step.args["changes"]:
        await asyncio.sleep(pause)
        try:
            match what:
                case "cancel":
                    answer: object = await client.cancel(topic, id, partition_key=partition_key)
                case "run-now":
                    actor.ledger.members_run_now.append((topic, id, actor.ledger.world.now))
                    answer = await client.run_now(topic, id, partition_key=partition_key)
                case "reschedule":
                    answer = await client.reschedule(topic, id, partition_key=partition_key, delay=1.0)
                case _:
                    payload = [0, 0, "error"]
                    made.others.add((topic, id))
                    answer = await client.schedule(
                        topic, payload, delay=1.0, key=id, partition_key=partition_key, on_duplicate="replace"
                    )
        except WheelqError as error:
            answer = type(error).__name__
        story.tell(actor.name, f"#{made.step.number} {what} {topic}/{id}: {answer}")


async def _look_until_it_ends(actor: Actor, made: Bundled) -> None:
    while actor.ledger.is_loaded and not made.has_ended:
        await look(actor, made)
        await asyncio.sleep(LOOKS_S)


async def look(actor: Actor, made: Bundled) -> None:
    """Look a bundle up."""
    try:
        found = await actor.client.bundle(made.id)
    except WheelqError:
        return
    if found is not None and found != made.found:
        made.found = found
        numbers = f"{found.members} members, {found.done} done, {found.dead} dead, {found.cancelled} cancelled"
        actor.ledger.world.story.tell(actor.name, f"#{made.step.number} {made.id} is {found.state}: {numbers}")


async def look_at_all(actor: Actor) -> None:
    """Look at every bundle that was not seen to end."""
    for made in actor.ledger.bundles:
        if made.id and not made.has_ended:
            await look(actor, made)


def _draw_topic(draft: Draft) -> Args:
    return {"topic": draft.random.choice(draft.topics[:3]).name, "limit": draft.random.choice((None, 1, 3))}


def _of_dead(verb: Literal["replay", "purge"]) -> Callable[[Actor, Step], Any]:
    async def do(actor: Actor, step: Step) -> None:
        """Replay or purge dead members."""
        try:
            which: dict[str, Any] = {"all": True, "limit": step.args["limit"]} if verb == "replay" else {"all": True}
            answer: object = await getattr(actor.client.dead, verb)(step.args["topic"], **which)
        except WheelqError as error:
            answer = type(error).__name__
        actor.ledger.world.story.tell(actor.name, f"#{step.number} {verb} of {step.args['topic']}: {answer}")

    return do


operation("replay-members", weight=12, draw=_draw_topic, trait="bundles")(_of_dead("replay"))
operation("purge-members", weight=2, draw=_draw_topic, trait="bundles")(_of_dead("purge"))


@operation("cancel-members-due", weight=1, draw=_draw_topic, trait="bundles")
async def cancel_members_due(actor: Actor, step: Step) -> None:
    """Cancel all members of a topic that are due in the next seconds."""
    until = datetime.fromtimestamp(EPOCH_S + actor.ledger.world.now + 2.0, UTC)
    try:
        answer: object = await actor.client.cancel_due(step.args["topic"], until=until)
    except WheelqError as error:
        answer = type(error).__name__
    actor.ledger.world.story.tell(actor.name, f"#{step.number} cancel due {step.args['topic']}: {answer}")


@operation("check-members", weight=6, draw=_draw_topic, trait="bundles")
async def check_members(actor: Actor, step: Step) -> None:
    """Look for members whose end was not counted, as leaders do every ten minutes: there is none."""

    def check() -> Operation[int]:
        counted = 0
        for number in range(4):
            cursor = "0"
            while True:
                shard = Keys().shard(step.args["topic"], number)
                cursor, some, _ = yield from ask_until_known(bundles.check_members(shard, cursor))
                counted += some
                if cursor == "0":
                    break
        return counted

    try:
        counted = await actor.client._driver.run(check())
    except WheelqError:
        return
    if counted:
        actor.ledger.problems.append(f"uncounted: {step} has found {counted} members whose end was not counted")


def _draw_passing(draft: Draft) -> Args:
    random = draft.random
    return {"topic": "brood", "group": f"passing-{int(draft.now * 1000)}", "seconds": round(random.uniform(0.5, 6), 1)}


operation("group-of-members", weight=2, draw=_draw_passing, trait="bundles")(pass_by)


def _draw_reshard(draft: Draft) -> Args:
    return {"topic": draft.random.choice(draft.topics).name, "shards": draft.random.choice((1, 2, 3, 4))}


@operation("reshard-members", weight=2, draw=_draw_reshard, trait="bundles")
async def reshard_members(actor: Actor, step: Step) -> None:
    """Change the number of shards of a topic of members or followers."""
    topic, shards = step.args["topic"], step.args["shards"]
    actor.ledger.trouble("reshard", topic, 2.0)
    await change(actor, step, lambda: actor.client.set_shards(topic, shards))
