"""Parts of a fleet, run with the wheelq that PYTHONPATH names: `python upgrade_parts.py scheduler URL`.

They use only what this release and the one before it have in common. What a worker runs it prints, a JSON line for each
run, and at the end of its input it stops in good order; so does the scheduler.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import wheelq
from wheelq import Client, Job, JobSpec, Retry, RetryAfter, Scheduler, Worker
from wheelq.embedded import EmbeddedServer

TOPIC, KEPT = "orders", "kept"
FAR = 3_600.0
LATE = "its retry comes late"


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def worker_of(url: str) -> Worker:
    worker = Worker.connect(url, group="g")

    @worker.handler(TOPIC, retry=Retry(max_attempts=2, base=0.3, cap=0.3))
    async def run(job: Job) -> None:
        say(id=job.id, payload=job.payload, attempt=job.attempt, early_ms=job.due_ms - time.time() * 1000)
        if job.id == LATE and job.attempt == 1:
            raise RetryAfter(6.0, counts=True)
        if job.id.startswith(("dead", "retry" if job.attempt == 1 else "dead")):
            raise ValueError(job.id)

    @worker.handler(KEPT)
    async def keep(job: Job) -> dict[str, str]:
        say(id=job.id, payload=job.payload, attempt=job.attempt, early_ms=job.due_ms - time.time() * 1000)
        return {"ran": job.id}

    return worker


async def until_told(*parts: Worker | Scheduler) -> None:
    """Run these until the input ends."""
    running = [asyncio.create_task(part.run()) for part in parts]
    say(started=wheelq.__file__)
    await asyncio.to_thread(sys.stdin.read)
    for part in parts:
        part.stop()
    await asyncio.gather(*running)


def make(url: str) -> None:
    """Jobs of every kind; some are cancelled and moved."""
    with Client.connect(url) as client:
        client.schedule(KEPT, delay=FAR, key="first")
        client.configure(KEPT, keep_done_ms=600_000)
        client.schedule_many(TOPIC, [JobSpec({"n": n}, delay=1.0 + n / 20, key=f"job-{n}") for n in range(20)])
        client.schedule(TOPIC, {"n": 20}, delay=0.5, key="retry")
        client.schedule(TOPIC, {"n": 21}, delay=0.5, key="dead")
        client.schedule(KEPT, {"n": 22}, delay=0.5, key="done")
        client.schedule(TOPIC, {"n": 23}, delay=FAR, key="far")
        client.schedule(TOPIC, delay=FAR, key="cancelled")
        client.cancel(TOPIC, "cancelled")
        client.schedule(TOPIC, {"n": 24}, delay=FAR, key="moved")
        client.reschedule(TOPIC, "moved", delay=1.5)
        client.recurring.put(TOPIC, "tick", {"n": 25}, every=1)
    say(made=wheelq.__file__)


def until_states(client: Client, wanted: dict[str, list[str]]) -> None:
    """Wait until jobs stand so; one that is gone has no state."""

    def states(id: str) -> list[str]:
        found = client.get(TOPIC, id)
        return [] if found is None else [found.state.value]

    while {id: states(id) for id in wanted} != wanted:
        time.sleep(0.05)


async def fill(directory: str, binary: str) -> None:
    """Leave a data directory behind, as a fleet that ran on it for a while."""
    with EmbeddedServer(Path(directory), binary=Path(binary)) as server:
        await asyncio.to_thread(make, server.url)
        worker, scheduler = worker_of(server.url), Scheduler.connect(server.url)
        running = [asyncio.create_task(part.run()) for part in (worker, scheduler)]
        with Client.connect(server.url) as client:
            wanted = {"dead": ["dead"], "moved": [], "job-19": []}
            await asyncio.to_thread(until_states, client, wanted)
            client.wait(KEPT, "done", timeout=60)
            client.schedule(TOPIC, {"n": 26}, delay=0.1, key=LATE)
            await asyncio.to_thread(until_states, client, {LATE: ["retrying"]})
            worker.stop()
            await running[0]
            client.schedule_many(TOPIC, [JobSpec({"n": n}, delay=3.0, key=f"later-{n}") for n in range(20)])
            client.schedule(TOPIC, {"n": 40}, delay=0.1, key="retry-unread")
            await asyncio.to_thread(until_states, client, {"retry-unread": ["ready"]})
        scheduler.stop()
        await running[1]
    say(filled=wheelq.__file__)


if __name__ == "__main__":
    role, where, *more = sys.argv[1:]
    if role == "scheduler":
        asyncio.run(until_told(Scheduler.connect(where)))
    elif role == "worker":
        asyncio.run(until_told(worker_of(where)))
    elif role == "client":
        make(where)
    else:
        asyncio.run(fill(where, *more))
