"""Callers of the HTTP service that pull jobs: they lease some in a long poll, work on each for a while, and settle it.

A `Lessee` acknowledges a job, reports a failure, releases it, or forgets it. An `Asker` also sends a result and its
progress, and repeats what it has said; a `Latecomer` speaks after its lease has ended. Some leave before a long poll
ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

from loadtest.simulation.ledger import Run
from loadtest.simulation.process import Process


class Lessee:
    """Leases jobs and settles them."""

    topic, group = "leased", "lessees"
    leases = (2.0, 6.0)
    """How many seconds its leases last, at least and at most."""
    idle_s = 0.5

    def __init__(self, actor: Any, process: Process) -> None:
        self._actor, self._process, self._random = actor, process, process.random
        self._path = f"/v1/topics/{self.topic}/groups/{self.group}/"

    async def run(self) -> None:
        """Lease jobs until cancelled."""
        random = self._random
        while True:
            lease, sent = random.uniform(*self.leases), self._actor.ledger.world.now
            asked = {"count": random.randint(1, 5), "lease": lease, "wait": random.choice((0, 2, 5))}
            leaves_after = random.uniform(0.1, 3) if random.random() < 0.15 else 0.0
            status, answer = await self._actor.ask("POST", f"{self._path}lease", asked, leaves_after=leaves_after)
            jobs = answer["jobs"] if status == 200 and answer else []
            for job in jobs:
                await self._handle(job, sent + lease)
            if not jobs:
                await asyncio.sleep(self.idle_s)

    async def _handle(self, job: Any, until: float) -> None:
        random, world = self._random, self._actor.ledger.world
        takes, fails, how, *_ = job["payload"]
        run = self._begin(job, until)
        if world.now > until - 0.5:  # the jobs before took too long: another lessee gets this one
            run.ended, run.outcome = world.now, "dropped"
            return
        if takes > 1.5 and await self._tell("extend", job, lease=8.0):
            run.leased_until = max(until, world.now + 7.0)
        await asyncio.sleep(takes)
        chance = random.random()
        if job["attempt"] <= fails:
            run.ended, run.outcome = world.now, "ValueError"
            is_told = await self._fail(job, run, how)
        elif chance < 0.04:
            run.ended, run.outcome = world.now, "dropped"
            return
        elif chance < 0.1:
            run.ended, run.outcome = world.now, "released"
            is_told = await self._tell("release", job, pause=random.choice((0, 1.0)))
        else:
            run.ended, run.outcome = world.now, "done"
            is_told = await self._ack(job, run)
        if is_told:
            run.leased_until = float("inf") if run.outcome in ("done", "Bury") else 0.0

    async def _ack(self, job: Any, run: Run) -> bool:
        return await self._tell("ack", job)

    async def _fail(self, job: Any, run: Run, how: str) -> bool:
        return await self._tell("fail", job, error="on purpose", pause=0.4, max_attempts=4)

    async def _tell(self, what: str, job: Any, **more: Any) -> bool:
        status, answer = await self._actor.ask("POST", f"{self._path}{what}", {"handles": [job["handle"]], **more})
        return bool(status == 200 and answer["done"] == [True])

    def _begin(self, job: Any, until: float) -> Run:
        shard, entry, deliveries, _ = job["handle"].split(".")
        world, server_us = self._actor.ledger.world, self._actor.ledger.server.clock_us()
        who, id = f"lessee of {self._process.name}", job["id"]
        place, attempt, due_ms = f"{shard}.{entry}", int(deliveries), job["due_ms"]
        group = f"http.{self.group}"
        run = Run(group, self.topic, id, place, attempt, who, world.now, server_us, due_ms, id, leased_until=until)
        self._actor.ledger.runs.append(run)
        return run


class Asker(Lessee):
    """Sends results and progress, buries, and repeats its acknowledgements, each of which may count once."""

    topic, group = "asked", "askers"
    acknowledges_again = 0.4
    """How likely it repeats an acknowledgement."""

    def _begin(self, job: Any, until: float) -> Run:
        run, (*_, mark) = super()._begin(job, until), job["payload"]
        self._actor.ledger.marked[mark].add(run.id)
        return run

    async def _ack(self, job: Any, run: Run) -> bool:
        if self._random.random() < 0.3:
            await self._tell("progress", job, fraction=0.5, text=job["id"])
        told = [await self._tell("ack", job, result=result_of(run))]
        while self._random.random() < self.acknowledges_again:
            result = "told again" if any(told) else result_of(run)  # one that was refused may be repeated
            told.append(await self._tell("ack", job, result=result))
        self._actor.ledger.acknowledged[self.topic, run.id, run.entry] += sum(told)
        return any(told)

    async def _fail(self, job: Any, run: Run, how: str) -> bool:
        if how != "bury":
            return await super()._fail(job, run, how)
        run.outcome = "Bury"
        return await self._tell("fail", job, error="on purpose", bury=True)


class Latecomer(Lessee):
    """Often works longer than its lease, and settles the job all the same; an old handle settles nothing."""

    topic, group = "lent", "lenders"
    leases, idle_s = (1.0, 1.6), 2.0

    async def _handle(self, job: Any, until: float) -> None:
        random, world = self._random, self._actor.ledger.world
        run = self._begin(job, until)
        if random.random() < 0.6:
            await asyncio.sleep(max(until - world.now, 0.0) + random.choice((0.0, 2.0, random.uniform(0, 4))))
        for what, more in random.choice(LATE):
            run.ended, run.outcome, asked = world.now, "done" if what == "ack" else "late", world.now
            if await self._tell(what, job, **more):
                self._check(run, what, asked)

    def _check(self, run: Run, what: str, asked: float) -> None:
        """Note a problem if somebody else had a later lease before this one was settled."""
        ledger = self._actor.ledger
        same = [one for one in ledger.runs if (one.topic, one.entry) == (run.topic, run.entry) and one.began < asked]
        if any(one.attempt > run.attempt for one in same) and not ledger.undone:
            ledger.problems.append(f"leased: {what} of lease {run.attempt} of {run.topic}/{run.id} counts, and is over")


LATE: tuple[tuple[tuple[str, dict[str, Any]], ...], ...] = (
    (("ack", {}),),
    (("fail", {"error": "on purpose", "pause": 0.4, "max_attempts": 4}),),
    (("fail", {"error": "too late", "pause": 1.0, "max_attempts": 4}),),
    (("progress", {"fraction": 0.5}), ("ack", {})),
    (("extend", {"lease": 1.5}), ("ack", {})),
)
"""What a latecomer says of a job, one after the other."""


def result_of(run: Run) -> str:
    """Returns the result with which an asker acknowledges a job."""
    return f"{run.id} in {run.entry} for the {run.attempt}. time"
