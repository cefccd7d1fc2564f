"""What a release left in Redis and in an outbox file, stored byte for byte: every later release must read it.

`python -m tests.protocol.release FILE` makes such a file with the wheelq at hand, once for each release.
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, Bury, Client, Job, JobSpec, JobState, Retry, RetryAfter, Scheduler, Worker
from wheelq.embedded import EmbeddedServer

FAR = 9 * 365 * 86_400
"""Seconds: what waits for so long waits in every test."""
SOON = 3_600
OTHER = "another worker, which was killed"
PAYLOADS = {
    "plain": {"n": 1, "text": "ключ", "list": [1, 2.5, None, True]},
    "bytes": b"\x00\xff",
    "nothing": None,
    "large": "x" * 5_000,
}


@dataclass
class Parcel:
    weight: int


def text(value: bytes) -> str:
    return b64encode(value).decode()


async def make(url: str, outbox: Path) -> None:
    """Jobs in every state and of every kind; topics, groups and a recurring job."""
    worker, began = Worker.connect(url, group="g"), set[str]()

    @worker.handler("orders", retry=Retry(max_attempts=2))
    async def run(job: Job) -> str:
        began.add(job.id)
        if job.id == "retried":
            raise RetryAfter(SOON, counts=True)
        if job.id == "dead":
            raise Bury("it cannot be done")
        return f"{job.id} is done"

    @worker.handler("parcels")
    async def ship(job: Job[Parcel]) -> None:
        began.add(job.id)

    async with AsyncClient.connect(url) as client:
        await client.configure("orders", keep_done_ms=FAR * 1000, dead_max=500)
        await client.set_shards("orders", 2)
        await client.configure("parcels", max_ready=1_000)
        jobs = [JobSpec(payload, delay=FAR, key=key) for key, payload in PAYLOADS.items()]
        jobs += [
            JobSpec(1, delay=FAR, key="headers", headers={"trace": "abc"}, priority="high"),
            JobSpec(2, delay=FAR, key="in a partition", partition_key="customer"),
            JobSpec(3, delay=FAR, key="expires", expires=SOON, spread=60),
            JobSpec(4, delay=FAR, key="cancelled"),
            JobSpec(5, delay=FAR, key="moved"),
        ]
        await client.schedule_many("orders", jobs)
        await client.cancel("orders", "cancelled")
        await client.reschedule("orders", "moved", delay=FAR - 60)
        await client.recurring.put("orders", "nightly", {"n": 6}, cron="0 3 * * *", tz="Europe/Berlin", expires=SOON)
        for key in ("done", "dead", "retried"):
            await client.schedule("orders", key, delay=0, key=key)
        await client.schedule("parcels", {"weight": "heavy"}, delay=0, key="unfit")

        async def stands() -> bool:
            found = [await client.get("orders", id) for id in ("done", "dead", "retried")]
            unfit = await client.get("parcels", "unfit")
            states = [None if info is None else info.state for info in (*found, unfit)]
            return states == [JobState.DONE, JobState.DEAD, JobState.RETRYING, JobState.RETRYING]

        async with running(Scheduler.connect(url), worker):
            await until(stands)
        await client.pause("parcels")
        await client.schedule("orders", "delivered", delay=0, key="delivered")
        with redis.Redis.from_url(url) as raw:
            raw.xreadgroup("g", OTHER, dict.fromkeys(raw.scan_iter("*{orders:*}:ready"), ">"))
        await client.schedule("orders", "ready", delay=0, key="ready")
    with Client.connect("redis://127.0.0.1:1", outbox=str(outbox)) as away:
        away.schedule("orders", "from the outbox", delay=SOON, key="from the outbox")


def dump(url: str) -> dict[str, Any]:
    """All keys, with what they hold."""
    kept: dict[str, Any] = {}
    with redis.Redis.from_url(url) as raw:
        for key in sorted(raw.scan_iter("*")):
            kind = raw.type(key).decode()
            value: Any
            if kind == "string":
                value = text(raw.get(key))
            elif kind == "hash":
                value = {text(field): text(content) for field, content in raw.hgetall(key).items()}
            elif kind == "zset":
                value = {text(member): score for member, score in raw.zrange(key, 0, -1, withscores=True)}
            elif kind == "set":
                value = [text(member) for member in sorted(raw.smembers(key))]
            elif kind == "stream":
                value = _dump_stream(raw, key)
            else:
                raise AssertionError(f"{key!r} is a {kind}")
            kept[text(key)] = [kind, value]
    return kept


def _dump_stream(raw: redis.Redis, key: bytes) -> dict[str, Any]:
    entries = [
        [entry_id.decode(), [text(part) for pair in fields.items() for part in pair]]
        for entry_id, fields in raw.xrange(key)
    ]
    groups = {}
    for group in raw.xinfo_groups(key):
        pending = raw.xpending_range(key, group["name"], "-", "+", 100)
        held = [[one["message_id"].decode(), one["consumer"].decode(), one["times_delivered"]] for one in pending]
        groups[group["name"].decode()] = [group["last-delivered-id"].decode(), held]
    return {"entries": entries, "groups": groups}


def load(url: str, kept: dict[str, Any]) -> None:
    """Write what `dump` read; deliveries have not been renewed for an hour."""
    with redis.Redis.from_url(url) as raw:
        for name, (kind, value) in kept.items():
            key = b64decode(name)
            if kind == "string":
                raw.set(key, b64decode(value))
            elif kind == "hash":
                raw.hset(key, mapping={b64decode(field): b64decode(content) for field, content in value.items()})
            elif kind == "zset":
                raw.zadd(key, {b64decode(member): score for member, score in value.items()})
            elif kind == "set":
                raw.sadd(key, *map(b64decode, value))
            else:
                for entry_id, parts in value["entries"]:
                    raw.execute_command("XADD", key, entry_id, *map(b64decode, parts))
                for group, (last_id, held) in value["groups"].items():
                    raw.xgroup_create(key, group, last_id, mkstream=True)
                    for entry_id, consumer, times in held:
                        raw.xclaim(key, group, consumer, 0, [entry_id], idle=3_600_000, retrycount=times, force=True)


def main(path: Path) -> None:
    with TemporaryDirectory() as directory, EmbeddedServer(appendonly=False) as server:
        outbox = Path(directory) / "outbox.db"
        asyncio.run(make(server.url, outbox))
        stored = {"redis": dump(server.url), "outbox": text(outbox.read_bytes())}
    path.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
