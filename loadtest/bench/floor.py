"""The floor: the best that this machine, this Redis server and redis-py can do, with no queue between them.

A jobs/s figure means little without the machine it came from. So the load test measures the same few round trips
without wheelq, in the same run and on the same server, and prints wheelq's figures as shares of these:

    (a) enqueue   one EVALSHA for 500 jobs: ZADD + HSET                     blocking client
    (b) promote   one EVALSHA for 500 due jobs: ZRANGEBYSCORE, HMGET -> XADD, HSET of the entry ids, ZREM
    (c) read      XREADGROUP COUNT 500, then XACK of the 500                blocking and asyncio client
    (d) chain     a, b and c at once, each in a process of its own, all against the one server
    (e) call      EVALSHA of a script that does nothing, 3 keys and 6 arguments, awaited one by one
    (f) memory    server bytes for a job that waits: its place in the sorted set and in the hash

Preparing ids and payloads is never timed; building each call's arguments is. Figures are medians over some rounds,
after a short round that is thrown away.

The keys are random, share one hash tag and are deleted at the end, so other data on the server is safe. But (f) is the
growth of the whole server's memory, which is meaningful only while no other client writes.
"""

import asyncio
import time
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from statistics import median
from typing import Any

import redis
from redis.utils import HIREDIS_AVAILABLE

from loadtest.bench.bare import (
    BATCH,
    ENQUEUE,
    PROMOTE,
    Job,
    Keys,
    batches,
    connect,
    connect_async,
    entries,
    now_ms,
    own_keys,
    prepare,
    used_memory,
)
from loadtest.bench.chain import measure_chain
from loadtest.servers.measured import describe

JOBS = 100_000
CALLS = 5_000
WARM_UP = 0.1  # share of a round that is run first: scripts get loaded, memory mapped, processors leave their slow gear

NOTHING = "return 1"
NOTHING_ARGV = ("1795249000000", "500", "node-1", "42", "orders", "x")


def _figure(what: str, unit: str) -> Any:
    return field(metadata={"what": what, "unit": unit})


@dataclass(frozen=True, slots=True)
class FloorResult:
    """The medians. The letters are those of the module's docstring; rates are by the wall clock."""

    server: str
    """Name, version and append-only setting, as the server tells them."""
    rounds: int
    a_enqueue: float = _figure("enqueue, one EVALSHA per 500", "jobs/s")
    b_promote: float = _figure("promote, one EVALSHA per 500", "jobs/s")
    c_blocking: float = _figure("read 500 + ack, blocking client", "jobs/s")
    c_async: float = _figure("read 500 + ack, asyncio client", "jobs/s")
    d_chain: float = _figure("chain, first enqueue to last ack", "jobs/s")
    d_p50_ms: float = _figure("chain, from due to read, p50", "ms")
    d_p99_ms: float = _figure("chain, from due to read, p99", "ms")
    e_blocking: float = _figure("bare EVALSHA, blocking client", "calls/s")
    e_async: float = _figure("bare EVALSHA, asyncio client", "calls/s")
    f_bytes: float = _figure("server memory per waiting job", "bytes")

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON."""
        return asdict(self)

    def as_table(self) -> str:
        """The figures as aligned text, one line each."""
        lines = [f"floor of {self.server}; median of {self.rounds}"]
        for item in fields(self):
            if item.metadata:
                what, unit, digits = item.metadata["what"], item.metadata["unit"], int(item.metadata["unit"] == "ms")
                lines.append(f"  {item.name[0]}  {what:<34}{getattr(self, item.name):>10,.{digits}f} {unit}")
        return "\n".join(lines)


def measure(url: str, rounds: int = 3) -> FloorResult:
    """Measure the floor of the server at `url`, about 3 seconds a round. The machine should be idle otherwise.

    It spawns processes, so a script that calls it needs the usual `if __name__ == "__main__"`. It runs an event loop of
    its own, so a coroutine must call it by `asyncio.to_thread`.

    Raises:
        RuntimeError: hiredis is not installed; without it the floor would be much lower. Install `redis[hiredis]`.
        redis.RedisError: the server cannot be reached, or refused something.
    """
    if not HIREDIS_AVAILABLE:
        raise RuntimeError("redis-py runs without hiredis: install redis[hiredis]")
    with connect(url) as client:
        _one_round(url, client, int(JOBS * WARM_UP), int(CALLS * WARM_UP))
        results = [_one_round(url, client, JOBS, CALLS) for _ in range(rounds)]
        medians = {name: median(result[name] for result in results) for name in results[0]}
        return FloorResult(server=describe(url), rounds=rounds, **medians)


def enqueue_rate(url: str, jobs: int = JOBS, payload_bytes: int = 64) -> float:
    """One round of (a) alone, in jobs/s, for comparison with a figure that is measured at the same time."""
    with connect(url) as client, own_keys(client) as keys:
        return _enqueue(client, keys, prepare(jobs, payload_bytes))


def read_rate(url: str, jobs: int = JOBS, payload_bytes: int = 64) -> float:
    """One round of (c) alone, blocking client, in jobs/s."""
    with connect(url) as client, own_keys(client, "blocking") as keys:
        _enqueue(client, keys, prepare(jobs, payload_bytes))
        _promote(client, keys, jobs)
        return _read(client, keys, jobs)


def waiting_bytes(url: str, jobs: int = JOBS) -> float:
    """(f) alone, in bytes."""
    with connect(url) as client, own_keys(client) as keys:
        before = used_memory(client)
        _enqueue(client, keys, prepare(jobs))
        return (used_memory(client) - before) / jobs


def chain_rate(url: str, jobs: int = JOBS) -> float:
    """One round of (d) alone, in jobs/s."""
    with connect(url) as client, own_keys(client, "chain") as keys:
        return measure_chain(url, keys, jobs)["d_chain"]


async def call_rate(url: str, calls: int = CALLS) -> float:
    """One round of (e) alone, asyncio client, in calls/s."""
    return await _call_async(url, Keys.random(), calls)


def _one_round(url: str, client: redis.Redis, jobs: int, calls: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with own_keys(client, "blocking", "async") as keys:
        before = used_memory(client)
        figures["a_enqueue"] = _enqueue(client, keys, prepare(jobs))
        figures["f_bytes"] = (used_memory(client) - before) / jobs
        figures["b_promote"] = _promote(client, keys, jobs)
        figures["c_blocking"] = _read(client, keys, jobs)
        figures["c_async"] = asyncio.run(_read_async(url, keys, jobs))
    with own_keys(client, "chain") as keys:
        figures |= measure_chain(url, keys, jobs)
    with own_keys(client) as keys:
        figures["e_blocking"] = _call(client, keys, calls)
        figures["e_async"] = asyncio.run(_call_async(url, keys, calls))
    return figures


def _enqueue(client: redis.Redis, keys: Keys, jobs: list[Job]) -> float:
    script = client.script_load(ENQUEUE)
    start = time.perf_counter()
    for batch in batches(jobs):
        client.evalsha(script, 2, keys.delayed, keys.jobs, *chain.from_iterable(batch))
    return len(jobs) / (time.perf_counter() - start)


def _promote(client: redis.Redis, keys: Keys, jobs: int) -> float:
    script = client.script_load(PROMOTE)
    start = time.perf_counter()
    while client.evalsha(script, 3, keys.delayed, keys.jobs, keys.ready, now_ms(), BATCH):
        pass
    return jobs / (time.perf_counter() - start)


def _read(client: redis.Redis, keys: Keys, jobs: int) -> float:
    start = time.perf_counter()
    while found := entries(client.xreadgroup("blocking", "reader", {keys.ready: ">"}, count=BATCH)):
        client.xack(keys.ready, "blocking", *(entry_id for entry_id, _ in found))
    return jobs / (time.perf_counter() - start)


async def _read_async(url: str, keys: Keys, jobs: int) -> float:
    async with connect_async(url) as client:
        start = time.perf_counter()
        while found := entries(await client.xreadgroup("async", "reader", {keys.ready: ">"}, count=BATCH)):
            await client.xack(keys.ready, "async", *(entry_id for entry_id, _ in found))
        return jobs / (time.perf_counter() - start)


def _call(client: redis.Redis, keys: Keys, calls: int) -> float:
    script = client.script_load(NOTHING)
    start = time.perf_counter()
    for _ in range(calls):
        client.evalsha(script, 3, *keys[:3], *NOTHING_ARGV)
    return calls / (time.perf_counter() - start)


async def _call_async(url: str, keys: Keys, calls: int) -> float:
    async with connect_async(url) as client:
        script = await client.script_load(NOTHING)
        start = time.perf_counter()
        for _ in range(calls):
            await client.evalsha(script, 3, *keys[:3], *NOTHING_ARGV)
        return calls / (time.perf_counter() - start)
