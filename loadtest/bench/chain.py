"""The chain: enqueue, promote and read at once, each in a process of its own, all against the one server.

    enqueuer ──EVALSHA 500──▶ sorted set, hash ──promoter: EVALSHA 500──▶ stream ──XREADGROUP 500──▶ reader
        ▲                                                                                              │
        └──────────────── waits until all but IN_FLIGHT batches have left the chain ◀──────────────────┘

This is a delay queue at full load that consists of nothing but Redis. No queue on this server can have a lower lateness
at full load than the time that a job takes through the chain.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from statistics import quantiles

import redis

from loadtest.bench.bare import BATCH, ENQUEUE, PATIENCE_S, PROMOTE, Keys, batches, connect, entries, now_ms, prepare

IN_FLIGHT = 3  # batches in the chain, one per process: more would only queue, and lengthen the time through the chain
PAUSE_S = 0.0002  # between two looks that found nothing: a loop without pause would slow down the other processes


def measure_chain(url: str, keys: Keys, jobs: int) -> dict[str, float]:
    """Jobs/s from the first enqueue to the last ack, and percentiles of the milliseconds from due to read.

    `keys.ready` needs the consumer group "chain".
    """
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
    with connect(url) as client:
        script, jobs = client.script_load(ENQUEUE), prepare(count)
        _wait_for_others(client, keys)
        start = time.monotonic()
        for number, batch in enumerate(batches(jobs), start=1):
            _wait_for(client, keys.read, (number - IN_FLIGHT) * BATCH)
            due_ms = b"%d" % now_ms()
            argv = chain.from_iterable((job_id, due_ms, payload) for job_id, _, payload in batch)
            client.evalsha(script, 2, keys.delayed, keys.jobs, *argv)
        return start


def _run_promoter(url: str, keys: Keys, count: int) -> None:
    with connect(url) as client:
        script = client.script_load(PROMOTE)
        _wait_for_others(client, keys)
        give_up = time.monotonic() + PATIENCE_S
        while count:
            moved = client.evalsha(script, 3, keys.delayed, keys.jobs, keys.ready, now_ms(), BATCH)
            count -= moved
            if moved:
                give_up = time.monotonic() + PATIENCE_S
            else:
                _pause(give_up, f"{count} jobs were never enqueued")


def _run_reader(url: str, keys: Keys, count: int) -> tuple[float, list[float]]:
    """The monotonic time of the last ack, and each job's milliseconds from its due time to a parsed entry."""
    through_ms: list[float] = []
    with connect(url) as client:
        _wait_for_others(client, keys)
        while len(through_ms) < count:
            reply = client.xreadgroup("chain", "reader", {keys.ready: ">"}, count=BATCH, block=PATIENCE_S * 1000)
            read_ms = time.time() * 1000
            found = entries(reply)
            if not found:
                raise TimeoutError(f"{count - len(through_ms)} jobs were never promoted")
            through_ms += (read_ms - int(entry[b"due_ms"]) for _, entry in found)
            client.xack(keys.ready, "chain", *(entry_id for entry_id, _ in found))
            client.set(keys.read, len(through_ms))
        return time.monotonic(), through_ms


def _wait_for_others(client: redis.Redis, keys: Keys) -> None:
    """Returns when all three processes are ready: the start of an interpreter is not part of the measurement."""
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
