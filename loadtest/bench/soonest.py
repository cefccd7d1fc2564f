"""How soon a job could start at a constant rate, with bare Redis.

    writing process   ── at each due time ──▶ XADD ──▶ XREADGROUP, which waits ──▶   reading process

Both use redis-py on uvloop, and the machine's clock. At low rates the processors fall asleep between two entries, and
need a moment to wake up: so an entry takes longer than at high rates.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import redis
import uvloop

from loadtest.bench.bare import PATIENCE_S, Keys, connect, connect_async, entries, own_keys
from loadtest.bench.figures import percentile
from loadtest.bench.parts import SPAWN

GROUP = "soonest"
AHEAD_S = 0.2
"""The first entry is due so long after both processes are ready."""


class Soonest:
    """The two processes, which stay between measurements."""

    def __init__(self, client: redis.Redis, url: str, pool: ProcessPoolExecutor) -> None:
        self._client = client
        self._url = url
        self._pool = pool

    def p50_ms(self, seconds: int, per_s: int) -> float:
        """The median of the ms from the due time of an entry until it is read."""
        count = seconds * per_s
        with own_keys(self._client, GROUP) as keys:
            reading = self._pool.submit(_read, self._url, keys, count)
            self._pool.submit(_write, self._url, keys, count, per_s).result()
            return percentile(sorted(reading.result()), 0.5)


@contextmanager
def soonest(url: str) -> Iterator[Soonest]:
    """Start the two processes, and end them."""
    with connect(url) as client, ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        yield Soonest(client, url, pool)


def _write(url: str, keys: Keys, count: int, per_s: int) -> None:
    uvloop.run(_written(url, keys, count, per_s))


async def _written(url: str, keys: Keys, count: int, per_s: int) -> None:
    async with connect_async(url) as client:
        await client.blpop([keys.present], PATIENCE_S)
        start = time.time() + AHEAD_S
        for number in range(count):
            due = start + number / per_s
            if (pause := due - time.time()) > 0:
                await asyncio.sleep(pause)
            await client.xadd(keys.ready, {"due": due})


def _read(url: str, keys: Keys, count: int) -> list[float]:
    return uvloop.run(_came(url, keys, count))


async def _came(url: str, keys: Keys, count: int) -> list[float]:
    async with connect_async(url) as client:
        await client.rpush(keys.present, 1)
        late_ms: list[float] = []
        while len(late_ms) < count:
            found = entries(await client.xreadgroup(GROUP, "one", {keys.ready: ">"}, 500, block=PATIENCE_S * 1000))
            if not found:
                raise TimeoutError("nothing came")
            late_ms += [(time.time() - float(entry[b"due"])) * 1000 for _, entry in found]
            await client.xack(keys.ready, GROUP, *(id for id, _ in found))
        return late_ms
