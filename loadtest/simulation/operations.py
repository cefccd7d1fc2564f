"""What producers do. A new operation takes ten lines: a draw that makes its arguments, and what is done with a client.

@operation("cancel", weight=8)
class Cancel:
    def draw(draft):          arguments, or None when there is nothing to do it to
    async def do(actor, step): calls the client; `actor.tells` notes the outcome for the oracle
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadtest.simulation.ledger import Ledger, Told
from loadtest.simulation.plan import Draft, Drawn, Step
from wheelq import AsyncClient, JobSpec, Receipt
from wheelq.errors import (
    DuplicateJob,
    NotReplicated,
    OutcomeUnknown,
    Refused,
    ServerError,
    TopicFull,
    TopicNotFound,
    Unavailable,
    WheelqError,
)

if TYPE_CHECKING:
    from loadtest.simulation.fleet import Fleet

Args = Mapping[str, Any]


@dataclass(slots=True)
class Actor:
    """A producer's process."""

    name: str
    client: AsyncClient
    fleet: Fleet
    ledger: Ledger

    @asynccontextmanager
    async def tells(self, step: Step, topic: str, id: str) -> Any:
        """Records the answer to a call about a job; the body sets `told.outcome`."""
        world = self.ledger.world
        told = Told(step, topic, id, world.now, self.fleet.primary.clock_us())
        self.ledger.told.append(told)
        try:
            yield told
        except OutcomeUnknown:
            told.outcome = "unknown"
        except NotReplicated:
            told.outcome = "unknown"
        except (TopicFull, DuplicateJob) as error:
            told.outcome = f"refused: {type(error).__name__}"
        except (Refused, Unavailable, TopicNotFound) as error:
            told.outcome = f"refused: {type(error).__name__}"
        except WheelqError as error:
            told.outcome = f"refused: {type(error).__name__}"
        told.answered = world.now
        world.story.tell(self.name, f"#{step.number} {topic}/{id}: {told.outcome}")


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of step."""

    name: str
    weight: float
    draw: Callable[[Draft], Args | None]
    do: Callable[[Actor, Step], Coroutine[Any, Any, None]]
    trait: str
    """Only seeds with this trait have the operation. It is drawn separately, and does not change other steps."""
    who: str
    """The part that carries it out; "" for one of the producers."""


OPERATIONS: dict[str, Operation] = {}


def operation(name: str, weight: float, *, trait: str = "", who: str = "") -> Callable[[Any], Any]:
    """Register an operation. With a `trait` of `plan.APART`, the weight is its number in a seed."""

    def register(what: Any) -> Any:
        OPERATIONS[name] = Operation(name, weight, what.draw, what.do, trait, who)
        return what

    return register


def drawn_job(draft: Draft, topic: Any = None) -> dict[str, Any]:
    """Draw a new job."""
    random = draft.random
    topic = topic or draft.topic()
    id = f"{topic.name[0]}{len(draft.jobs)}"
    delay = random.choice((0, 0, 0.05, 0.5, 1, 3, random.uniform(0, 8), random.uniform(5, 20), 30.0))
    partition_key: str | None
    if topic.handling == "keyed":
        partition_key = f"k{random.randrange(4)}"
    else:
        partition_key = f"k{random.randrange(3)}" if random.random() < 0.1 else None
    draft.jobs.append(Drawn(topic.name, id, draft.now, delay, partition_key))
    return {
        "topic": topic.name,
        "id": id,
        "delay": round(delay, 3),
        "partition_key": partition_key,
        "payload": _payload(draft, topic.handling),
    }


def _payload(draft: Draft, handling: str) -> list[Any]:
    """Draw how long its handler takes, how often it fails, and how."""
    random = draft.random
    takes = random.choice((0, 0, 0.001, 0.01, 0.05, 0.2, random.uniform(0, 2), 4.0 if random.random() < 0.1 else 0))
    fails, how = 0, "error"
    if random.random() < 0.12:
        fails = random.choice((1, 1, 2, 3, 99))
        how = random.choice(("error", "error", "again", "bury", "base" if "base" in draft.traits else "error"))
        if how == "bury":
            fails = 99
        if handling != "single" and how in ("base", "again"):
            how = "error"
    return [round(takes, 3), fails, how]


@operation("schedule", weight=72)
class Schedule:
    @staticmethod
    def draw(draft: Draft) -> Args:
        durable = draft.has_sentinel and draft.random.random() < 0.3
        return {**drawn_job(draft), "durability": "replicated" if durable else None}

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        await _schedule(actor, step, "keep")


async def _schedule(actor: Actor, step: Step, on_duplicate: Any) -> None:
    args = step.args
    async with actor.tells(step, args["topic"], args["id"]) as told:
        receipt = await actor.client.schedule(
            args["topic"],
            args["payload"],
            delay=args["delay"],
            key=args["id"],
            partition_key=args["partition_key"],
            on_duplicate=on_duplicate,
            durability=args.get("durability"),
        )
        note_receipt(told, receipt)


def note_receipt(told: Told, receipt: Receipt) -> None:
    """Record the answer to a schedule call."""
    told.due_ms = receipt.due_ms
    told.kept = receipt.in_outbox
    if receipt.in_outbox:
        told.outcome = "kept"
    else:
        told.outcome = "replaced" if receipt.replaced else "created" if receipt.created else "there"


@operation("duplicate", weight=4)
class Duplicate:
    """Schedule the same id again: the job is kept, or made again if it has ended."""

    @staticmethod
    def draw(draft: Draft) -> Args | None:
        job = draft.a_job()
        return _again(draft, job) if job else None

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        await _schedule(actor, step, "keep")


def _again(draft: Draft, job: Drawn) -> Args:
    handling = next(topic.handling for topic in draft.topics if topic.name == job.topic)
    return {
        "topic": job.topic,
        "id": job.id,
        "delay": round(draft.random.choice((0.5, 3.0, draft.random.uniform(0, 15))), 3),
        "partition_key": job.partition_key,
        "payload": _payload(draft, handling),
    }


@operation("replace", weight=3)
class Replace:
    @staticmethod
    def draw(draft: Draft) -> Args | None:
        job = draft.a_job()
        return _again(draft, job) if job else None

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        await _schedule(actor, step, "replace")


@operation("schedule-many", weight=2)
class ScheduleMany:
    @staticmethod
    def draw(draft: Draft) -> Args:
        topic = draft.topic()
        return {"topic": topic.name, "jobs": [drawn_job(draft, topic) for _ in range(draft.random.randint(2, 12))]}

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        await schedule_all(actor, step)


async def schedule_all(actor: Actor, step: Step) -> list[Told]:
    """Schedule the step's jobs in one call. Returns the answer about each."""
    jobs, topic, world = step.args["jobs"], step.args["topic"], actor.ledger.world
    asked_us = actor.fleet.primary.clock_us()
    told = [Told(step, topic, job["id"], world.now, asked_us) for job in jobs]
    actor.ledger.told += told
    specs = [
        JobSpec(payload=job["payload"], delay=job["delay"], key=job["id"], partition_key=job["partition_key"])
        for job in jobs
    ]
    try:
        receipts: Any = await actor.client.schedule_many(topic, specs)
    except WheelqError as error:
        receipts = getattr(error, "receipts", {})
        failed = "unknown" if isinstance(error, (OutcomeUnknown, NotReplicated)) else f"refused: {type(error).__name__}"
    else:
        failed = ""
    by_id = {one.id: one for one in (receipts.values() if isinstance(receipts, dict) else receipts)}
    for one in told:
        receipt = by_id.get(one.id)
        one.answered = world.now
        if receipt is None:
            one.outcome = failed
        else:
            note_receipt(one, receipt)
    world.story.tell(actor.name, f"#{step.number} {topic}: {[f'{one.id} {one.outcome}' for one in told]}")
    return told


async def _change(actor: Actor, step: Step, do: Callable[..., Awaitable[object]], **more: object) -> None:
    """Change one job, and record the answer."""
    args = step.args
    async with actor.tells(step, args["topic"], args["id"]) as told:
        told.outcome = str(await do(args["topic"], args["id"], partition_key=args["partition_key"], **more))


@operation("cancel", weight=5)
class Cancel:
    @staticmethod
    def draw(draft: Draft) -> Args | None:
        job = draft.a_job()
        return {"topic": job.topic, "id": job.id, "partition_key": job.partition_key} if job else None

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        await _change(actor, step, actor.client.cancel)


@operation("reschedule", weight=5)
class Reschedule:
    @staticmethod
    def draw(draft: Draft) -> Args | None:
        job = draft.a_job()
        delay = round(draft.random.choice((0.2, 2.0, draft.random.uniform(0, 15))), 3)
        if job is None:
            return None
        return {"topic": job.topic, "id": job.id, "partition_key": job.partition_key, "delay": delay}

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        await _change(actor, step, actor.client.reschedule, delay=step.args["delay"])


@operation("run-now", weight=2)
class RunNow:
    @staticmethod
    def draw(draft: Draft) -> Args | None:
        return Cancel.draw(draft)

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        await _change(actor, step, actor.client.run_now)


@operation("get", weight=2)
class Get:
    @staticmethod
    def draw(draft: Draft) -> Args | None:
        return Cancel.draw(draft)

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        args = step.args
        async with actor.tells(step, args["topic"], args["id"]) as told:
            found = await actor.client.get(args["topic"], args["id"], partition_key=args["partition_key"])
            told.outcome = "nothing" if found is None else str(found.state)


# --- topics ----------------------------------------------------------------------------------------------------------


async def _about_topic(actor: Actor, step: Step, do: Callable[[], Awaitable[object]]) -> None:
    """Change a topic, and try again while the server is away."""
    told = Told(step, step.args["topic"], "", actor.ledger.world.now, actor.fleet.primary.clock_us())
    actor.ledger.told.append(told)
    for _ in range(30):
        try:
            await do()
        except ServerError as error:
            actor.ledger.world.story.tell(actor.name, f"#{step.number} {step.kind}: {type(error).__name__}")
            await actor.fleet.pause(1.0)
        except WheelqError as error:
            told.outcome = f"refused: {type(error).__name__}"
            return
        else:
            told.outcome, told.answered = "done", actor.ledger.world.now
            actor.ledger.world.story.tell(actor.name, f"#{step.number} {step.kind} {step.args['topic']}: done")
            return


@operation("set-shards", weight=0.35)
class SetShards:
    @staticmethod
    def draw(draft: Draft) -> Args | None:
        if "reshards" not in draft.traits:
            return None
        return {"topic": draft.topic().name, "shards": draft.random.choice((1, 2, 3, 4))}

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        topic, shards = step.args["topic"], step.args["shards"]
        actor.ledger.trouble("reshard", topic, 2.0)
        await _about_topic(actor, step, lambda: actor.client.set_shards(topic, shards))
        actor.ledger.trouble("reshard", topic, 2.0)


@operation("pause", weight=0.25)
class Pause:
    @staticmethod
    def draw(draft: Draft) -> Args | None:
        if "pauses" not in draft.traits:
            return None
        return {"topic": draft.topic().name, "seconds": round(draft.random.uniform(0.5, 9), 2)}

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        topic, begun = step.args["topic"], actor.ledger.world.now
        await _about_topic(actor, step, lambda: actor.client.pause(topic))
        await actor.fleet.pause(step.args["seconds"])
        await _about_topic(actor, step, lambda: actor.client.resume(topic))
        actor.ledger.trouble("pause", topic, 1.5, since=begun)


@operation("configure", weight=0.4)
class Configure:
    @staticmethod
    def draw(draft: Draft) -> Args | None:
        if "settings" not in draft.traits:
            return None
        change = draft.random.choice(
            (
                {"keep_done_ms": 0},
                {"keep_done_ms": 5_000},
                {"retention_ms": 2_000},
                {"retention_ms": 0},
                {"max_rate": 0.0},
                {"max_rate": 6.0},
                {"max_pending": 0},
                {"max_ready": 0},
            )
        )
        return {"topic": "limit", "change": change}

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        change = step.args["change"]
        await _about_topic(actor, step, lambda: actor.client.configure("limit", **change))


@operation("recurring", weight=0.25)
class Recurring:
    """Put a recurring job, and remove it after some seconds."""

    @staticmethod
    def draw(draft: Draft) -> Args | None:
        if "recurring" not in draft.traits:
            return None
        every = draft.random.choice((1, 2, 5))
        missed = draft.random.choice(("coalesce", "skip", "all"))
        name = f"every-{int(draft.now * 1000)}"
        seconds = round(draft.random.uniform(3, 25), 1)
        return {"topic": "plain", "name": name, "every": every, "missed": missed, "seconds": seconds}

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        args, recurring = step.args, actor.client.recurring
        payload = [0, 0, "error"]
        await _about_topic(
            actor,
            step,
            lambda: recurring.put("plain", args["name"], payload, every=args["every"], missed=args["missed"]),
        )
        await actor.fleet.pause(args["seconds"])
        await _about_topic(actor, step, lambda: recurring.remove("plain", args["name"]))


@operation("group", weight=0.15)
class Group:
    """Make a group without workers, and remove it."""

    @staticmethod
    def draw(draft: Draft) -> Args | None:
        if "groups" not in draft.traits:
            return None
        seconds = round(draft.random.uniform(1, 15), 1)
        return {"topic": "plain", "group": f"passing-{int(draft.now)}", "seconds": seconds}

    @staticmethod
    async def do(actor: Actor, step: Step) -> None:
        group, client = step.args["group"], actor.client
        await _about_topic(actor, step, lambda: client.make_group("plain", group))
        await actor.fleet.pause(step.args["seconds"])
        if hasattr(client, "remove_group"):
            await _about_topic(actor, step, lambda: client.remove_group("plain", group))


def know_all() -> None:
    """Import the modules that register more operations."""
    from loadtest.simulation import blocking, due_ranges, web

    assert all((blocking, due_ranges, web))
