"""Bare Redis: the scripts, keys and connections that measure the floor, without any part of wheelq.

A job here has the size of wheelq's on the wire: an id of 26 characters, a payload of 64 bytes, a due time of 13 digits
(milliseconds). The client is set up for speed, as redis-py advises: hiredis, RESP2, one connection.
"""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import redis
import redis.asyncio

BATCH = 500
PATIENCE_S = 10  # a process of the chain that waits longer gives up, so that one failed process cannot hang the run

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

Job = tuple[bytes, bytes, bytes]
"""Id, due_ms and payload, as they go over the wire."""


class Keys(NamedTuple):
    """The keys of one measurement, all in one cluster slot."""

    delayed: str
    jobs: str
    ready: str
    present: str
    """Counts the processes of the chain that are ready."""
    read: str
    """Counts the jobs that have left the chain."""

    @classmethod
    def random(cls) -> Self:
        """Returns keys with a unique name."""
        tag = f"floor:{{{secrets.token_hex(8)}}}"
        return cls(*(f"{tag}:{name}" for name in cls._fields))


def prepare(count: int, payload_bytes: int = 64) -> list[Job]:
    """Jobs in the order of their due times, a millisecond apart, the last of them due now."""
    last_ms = now_ms()
    return [
        (b"%010x%016d" % (last_ms, i), b"%d" % (last_ms - count + i), os.urandom(payload_bytes)) for i in range(count)
    ]


def batches(jobs: list[Job]) -> Iterator[list[Job]]:
    """The jobs in lists of `BATCH`."""
    return (jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH))


def entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of an XREADGROUP of one stream, as redis-py replies in RESP2."""
    return reply[0][1] if reply else []


def now_ms() -> int:
    """This machine's milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def connect(url: str) -> redis.Redis:
    """A blocking client with one connection."""
    # The socket timeout must outlast XREADGROUP's BLOCK: redis-py's own 5 s would cut a blocked read off.
    return redis.Redis.from_url(url, protocol=2, single_connection_client=True, socket_timeout=2 * PATIENCE_S)


def connect_async(url: str) -> redis.asyncio.Redis:
    """An asyncio client with one connection."""
    return redis.asyncio.Redis.from_url(url, protocol=2, single_connection_client=True, socket_timeout=2 * PATIENCE_S)


@contextmanager
def own_keys(client: redis.Redis, *groups: str) -> Iterator[Keys]:
    """Fresh keys, with these consumer groups on the stream; gone afterwards."""
    keys = Keys.random()
    try:
        for group in groups:
            client.xgroup_create(keys.ready, group, id="0", mkstream=True)
        yield keys
    finally:
        delete(client, *keys)


def delete(client: redis.Redis, *keys: str) -> None:
    """Delete keys, and wait until the server has freed their memory, which would slow down the next measurement."""
    if keys:
        client.unlink(*keys)
    give_up = time.monotonic() + PATIENCE_S
    while client.info("memory")["lazyfree_pending_objects"] and time.monotonic() < give_up:
        time.sleep(0.01)


def cpu_s(client: redis.Redis) -> float:
    """Seconds of processor time that the server has used."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def used_memory(client: redis.Redis) -> int:
    """All bytes that the server has allocated."""
    return int(client.info("memory")["used_memory"])
