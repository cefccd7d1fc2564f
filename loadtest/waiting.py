"""The scenarios in which jobs only wait: enqueuing in bulk and one by one, memory, idling.

What is compared with a floor is measured in turns with it, round by round: a machine that others use too then slows
both of them.
"""

import asyncio
import time

import redis

from loadtest import floor
from loadtest.bare import connect, used_memory
from loadtest.figures import Figure, Outcome, Target, middle
from loadtest.stage import Play, Stage, payloads, waiting
from wheelq import AsyncClient

HOUR_S = 3_600.0
FASTEST_PEER = (
    22_200  # jobs/s: BullMQ 6.7, the fastest of ten delay queues measured at this on one machine of two cores
)
SETTLE_S = 5.0  # until nobody has anything left to do


def bulk(stage: Stage) -> Outcome:
    """`schedule_many` of a hundred thousand jobs, blocking client; a topic for each round."""
    rounds, jobs, lost = [], 0, 0
    with Play(stage, "bulk") as play:
        play.warm_up()
        for number in range(stage.sizes.rounds):
            bare = floor.enqueue_rate(stage.url, stage.sizes.bulk)
            specs = waiting(stage.sizes.bulk, HOUR_S)
            start = time.perf_counter()
            play.client.schedule_many(f"bulk-{number}", specs)
            rounds.append((len(specs) / (time.perf_counter() - start), bare))
            jobs += len(specs)
            lost += len(specs) - stage.waiting(f"bulk-{number}")
    rate, bare = middle(rounds)
    figure = Figure("schedule_many (a)", rate, "jobs/s", Target(share=0.6, at_least=3 * FASTEST_PEER), bare)
    return Outcome("bulk", [figure], jobs, {"lost": lost})


def single(stage: Stage) -> Outcome:
    """`schedule` on asyncio, one call awaited after the other."""
    with Play(stage, "single") as play:
        play.warm_up()
        rounds = asyncio.run(_single(stage, play.topic))
        jobs = stage.sizes.single * len(rounds)
        lost = jobs - stage.waiting(play.topic)
    rate, bare = middle(rounds)
    figure = Figure("schedule, awaited in turn (e)", rate, "jobs/s", Target(share=0.6), bare)
    return Outcome("single", [figure], jobs, {"lost": lost})


async def _single(stage: Stage, topic: str) -> list[tuple[float, float]]:
    rounds = []
    async with AsyncClient.connect(stage.url, stage.settings) as client:
        for _ in range(stage.sizes.rounds):
            bare = await floor.call_rate(stage.url, stage.sizes.single)
            jobs = payloads(stage.sizes.single)
            start = time.perf_counter()
            for payload in jobs:
                await client.schedule(topic, payload, delay=HOUR_S)
            rounds.append((len(jobs) / (time.perf_counter() - start), bare))
    return rounds


def memory(stage: Stage) -> Outcome:
    """Growth of the server's memory by jobs that wait: 64 bytes of payload, 26 characters of id."""
    count = stage.sizes.memory
    with Play(stage, "memory") as play, connect(stage.url) as client:
        play.schedule(waiting(500, HOUR_S))  # the topic, the script and the buffers of the connection are there now
        before = used_memory(client)
        play.schedule(waiting(count, HOUR_S))
        growth = (used_memory(client) - before) / count
        lost = len(play.promised) - stage.waiting(play.topic)
        bare = floor.waiting_bytes(stage.url, count)
    figures = [Figure("server memory per waiting job (f)", growth, "bytes", Target(at_most=330), bare)]
    return Outcome("memory", figures, len(play.promised), {"lost": lost})


def idle(stage: Stage) -> Outcome:
    """What it costs that jobs wait for an hour: processor time, and the server's commands with those inside scripts."""
    seconds, count = stage.sizes.idle_s, stage.sizes.idle
    with Play(stage, "idle") as play, connect(stage.url) as client:
        play.warm_up()
        warm = play.worker.started()
        play.client.schedule_many(play.topic, waiting(count, HOUR_S))
        time.sleep(SETTLE_S)
        parts = (play.scheduler, play.worker)
        cpu_before = [part.cpu_s() for part in parts]
        commands_before = _commands(client)
        time.sleep(seconds)
        commands = _commands(client) - commands_before - 1  # the first INFO is counted after it answered
        shares = [(part.cpu_s() - before) / seconds * 100 for part, before in zip(parts, cpu_before, strict=True)]
        early, lost = play.worker.started() - warm, count - stage.waiting(play.topic)
    figures = [
        Figure("server's commands in all", commands / seconds, "commands/s", Target(at_most=4)),
        Figure("scheduler's share of a core", shares[0], "%", Target(at_most=1)),
        Figure("worker's share of a core", shares[1], "%", Target(at_most=1)),
    ]
    return Outcome("idle", figures, count, {"lost": lost, "early": early})


def _commands(client: redis.Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])
