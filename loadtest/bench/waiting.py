"""The scenarios in which jobs only wait: enqueuing in bulk and one by one, memory, idling.

A figure and its floor are measured in turns, round by round: if others use the machine, both are slowed.
"""

import asyncio
import time

import redis

from loadtest.bench import floor
from loadtest.bench.bare import BATCH, connect, used_memory
from loadtest.bench.figures import Figure, Outcome, Target
from loadtest.bench.stage import Play, Stage, payloads, waiting
from wheelq import AsyncClient, JobSpec

HOUR_S = 3_600.0
FASTEST_PEER = (
    22_200  # jobs/s: BullMQ 6.7, the fastest of ten delay queues measured at this on one machine of two cores
)
SETTLE_S = 5.0  # until all processes are idle


def bulk(stage: Stage) -> Outcome:
    """`schedule_many` of a hundred thousand jobs, blocking client; a topic for each round.

    In one call, and in calls of 500 that include making their `JobSpec`s.
    """
    whole: list[tuple[float, float]] = []
    parts: list[tuple[float, float]] = []
    jobs = lost = 0
    with Play(stage, "bulk") as play:
        play.warm_up()
        for number in range(stage.sizes.rounds):
            for found, make, name in ((whole, _in_one_call, "whole"), (parts, _in_calls, "parts")):
                bare = floor.enqueue_rate(stage.url, stage.sizes.bulk)
                topic = f"bulk-{name}-{number}"
                found.append((make(play, topic, stage.sizes.bulk), bare))
                jobs += stage.sizes.bulk
                lost += stage.sizes.bulk - stage.waiting(topic)
    figures = [
        Figure.beside("schedule_many (a)", whole, "jobs/s", Target(share=0.8, at_least=3 * FASTEST_PEER)),
        Figure.beside("calls of 500 (a)", parts, "jobs/s", Target(share=0.6)),
    ]
    return Outcome("bulk", figures, jobs, {"lost": lost})


def _in_one_call(play: Play, topic: str, count: int) -> float:
    specs = waiting(count, HOUR_S)
    start = time.perf_counter()
    play.client.schedule_many(topic, specs)
    return count / (time.perf_counter() - start)


def _in_calls(play: Play, topic: str, count: int) -> float:
    found = payloads(count)
    start = time.perf_counter()
    for first in range(0, count, BATCH):
        play.client.schedule_many(topic, [JobSpec(payload, HOUR_S) for payload in found[first : first + BATCH]])
    return count / (time.perf_counter() - start)


def single(stage: Stage) -> Outcome:
    """`schedule` on asyncio, one call awaited after the other."""
    with Play(stage, "single") as play:
        play.warm_up()
        rounds = asyncio.run(_single(stage, play.topic))
        jobs = stage.sizes.single * len(rounds)
        lost = jobs - stage.waiting(play.topic)
    figure = Figure.beside("schedule, awaited in turn (e)", rounds, "jobs/s", Target(share=0.6))
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
    count, found, lost = stage.sizes.memory, [], 0
    with connect(stage.url) as client:
        for number in range(stage.sizes.rounds):
            with Play(stage, f"memory-{number}") as play:
                play.schedule(waiting(500, HOUR_S))  # topic, script and the connection's buffers are there now
                before = used_memory(client)
                play.schedule(waiting(count, HOUR_S))
                growth = (used_memory(client) - before) / count
                lost += len(play.promised) - stage.waiting(play.topic)
            found.append((growth, floor.waiting_bytes(stage.url, count)))
    figures = [Figure.beside("server memory per waiting job (f)", found, "bytes", Target(at_most=330))]
    return Outcome("memory", figures, (500 + count) * len(found), {"lost": lost})


def idle(stage: Stage) -> Outcome:
    """The cost of waiting for an hour: processor time, and the server's commands, including those inside scripts."""
    seconds, count = stage.sizes.idle_s, stage.sizes.idle
    rounds: list[list[float]] = []
    with Play(stage, "idle") as play, connect(stage.url) as client:
        play.warm_up()
        warm = play.worker.started()
        play.client.schedule_many(play.topic, waiting(count, HOUR_S))
        time.sleep(SETTLE_S)
        for _ in range(stage.sizes.rounds):
            before = (_commands(client), play.scheduler.cpu_s(), play.worker.cpu_s())
            time.sleep(seconds)
            after = (_commands(client) - 1, play.scheduler.cpu_s(), play.worker.cpu_s())  # without the first INFO
            rounds.append([(now - then) / seconds for now, then in zip(after, before, strict=True)])
        early, lost = play.worker.started() - warm, count - stage.waiting(play.topic)
    commands, schedulers, workers = zip(*rounds, strict=True)
    figures = [
        Figure.of("server's commands in all", commands, "commands/s", Target(at_most=2.5)),
        Figure.of("scheduler's share of a core", [100 * share for share in schedulers], "%", Target(at_most=1)),
        Figure.of("worker's share of a core", [100 * share for share in workers], "%", Target(at_most=1)),
    ]
    return Outcome("idle", figures, count, {"lost": lost, "early": early})


def _commands(client: redis.Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])
