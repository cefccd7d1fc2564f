"""Leaders and standbys whose replies get lost, or whose requests arrive twice: no job is lost or doubled.

Every operation is struck in turn, step by step.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from tests.faults.stages import FAULTS, RECORD, Look, Meanwhile, Stage
from tests.transports import Fault, Refusing, Repeating, Unreachable
from tests.waiting import PATIENCE, until
from wheelq.model.topic import Topic
from wheelq.protocol.call import Call
from wheelq.protocol.calls import leader as leader_calls
from wheelq.protocol.calls import producer, registry
from wheelq.scheduler.shard import Role


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", ["acquire", "sweep", "open_window", "promote", "renew"])
async def test_a_leader_promotes_each_job_once_although_any_of_its_calls_fails(
    url: str, topic: str, raw: redis.Redis, call: str, fault: type[Fault]
) -> None:
    """Some are overdue, some fall due now, and one a while later (so late that the lease is renewed in between)."""
    struck = fault(call)
    stage = Stage(url, topic, struck, lease_ms=450, lease_margin_ms=100, sweep_ms=400)
    ids, look = stage.schedule(40, first_ms=-50, apart_ms=3), Look(raw, topic)
    while not struck.struck or look.delayed():
        ids.append(f"late-{len(ids)}")
        stage.schedule_and_ring(ids[-1], 700 if call == "renew" else 50)
        await stage.step_until(lambda: not look.delayed())
        assert len(ids) < 100, f"{call} is never called"
    assert look.ready() == sorted(ids)
    assert look.live() == set(ids)
    assert struck.struck == 1
    await stage.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_backlog_is_swept_once_although_every_third_call_goes_wrong(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    stage = Stage(url, topic, *(fault("sweep", after=n) for n in (0, 3, 6)), batch=20)
    ids = stage.schedule(200, first_ms=-1_000)
    look = Look(raw, topic)
    await stage.step_until(lambda: not look.delayed())
    assert look.ready() == ids
    await stage.close()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_leader_that_stops_gives_its_lease_back(
    url: str, topic: str, raw: redis.Redis, fault: type[Fault]
) -> None:
    """If that goes wrong before the server, the lease ends by itself; the stop does not hang."""
    stage = Stage(url, topic, struck := fault("release"), lease_ms=60_000)
    stage.schedule(1, first_ms=60)
    running = asyncio.create_task(stage.shard.run())
    await until(lambda: Look(raw, topic).ready() == ["job-0000"])
    assert stage.shard.is_leading
    stage.shard.stop()
    async with asyncio.timeout(PATIENCE):
        await running
    assert struck.struck == 1
    if fault not in (Refusing, Unreachable):
        assert not raw.exists(stage.keys.lease)
    await stage.close()


async def test_a_standby_leads_as_soon_as_the_leader_says_that_it_goes(url: str, topic: str) -> None:
    """It waits neither for a job that is overdue by the hedge, nor until nodes have agreed on who leads now."""
    leaving = Stage(url, topic, node="leaving")
    staying = Stage(url, topic, node="staying", role=Role.STANDBY, hedge_ms=60_000)
    leaving.schedule(50, first_ms=100, apart_ms=20)
    far = [("far", "+3600000", RECORD)]  # there is something to lead for, should all others have been promoted already
    leaving.plain.send(producer.schedule(leaving.keys, far, "keep", "1"))
    subscription = staying.transport.subscription()
    await subscription.open([staying.keys.near])

    async def listen() -> None:
        async for _, data in subscription.messages():
            if data is not None:
                staying.shard.hint(data)

    tasks = [asyncio.create_task(run) for run in (leaving.shard.run(), staying.shard.run(), listen())]
    await until(lambda: leaving.shard.is_leading and leaving.promotions.lateness.jobs > 0)
    assert not staying.shard.is_leading
    leaving.shard.stop(node_goes=True)
    await until(lambda: staying.shard.is_leading)
    await until(lambda: leaving.promotions.lateness.jobs + staying.promotions.lateness.jobs == 50)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await subscription.close()
    await leaving.close()
    await staying.close()


async def test_a_leader_steps_in_when_the_node_that_holds_its_lease_falls_silent(
    url: str, topic: str, raw: redis.Redis
) -> None:
    """A standby has led in its place, and was cut off before it gave the lease back."""
    stage, look = Stage(url, topic, hedge_ms=20), Look(raw, topic)
    raw.set(stage.keys.lease, "standby:5:another-run:9", px=600_000)
    ids = stage.schedule(3, first_ms=-1_000)
    await stage.step_until(lambda: not look.delayed())
    stage.schedule_and_ring("later", 50)
    await stage.step_until(lambda: not look.delayed())
    assert look.ready() == [*ids, "later"]
    assert raw.get(stage.keys.lease) == b"standby:5:another-run:9"
    await stage.close()


async def test_a_standby_leaves_a_returned_lease_to_its_leader(url: str, topic: str) -> None:
    """A shard that is only handed over has somebody else to lead it."""
    stage = Stage(url, topic, role=Role.STANDBY)
    stage.schedule(1, first_ms=60_000)
    stage.shard.hint(b"")
    for _ in range(5):
        await stage.shard.step()
    assert not stage.shard.is_leading
    stage.shard.hint(leader_calls.GOING.encode())
    await stage.shard.step()
    assert stage.shard.is_leading
    await stage.close()


@pytest.mark.parametrize("during", ["sweep", "open_window"])
async def test_a_standby_that_loses_its_lease_while_it_works_lets_it_end(
    url: str, topic: str, raw: redis.Redis, during: str
) -> None:
    """Its connection broke. A look for what it loads then would prolong the lease, which no other node could take."""
    losing = Meanwhile(during, lambda: stage.shard.heard())
    times = {"lease_ms": 600, "lease_margin_ms": 100, "sweep_ms": 50, "hedge_ms": 60_000}
    stage = Stage(url, topic, losing, role=Role.STANDBY, **times)
    stage.schedule(1, first_ms=1_500)
    stage.shard.hint(leader_calls.GOING.encode())
    await stage.step_until(lambda: losing.struck == 1)
    await stage.step_until(lambda: not raw.exists(stage.keys.lease))
    await stage.close()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", ["look", "hedge", "acquire"])
async def test_a_standby_promotes_each_job_once_although_any_of_its_calls_fails(
    url: str, topic: str, raw: redis.Redis, call: str, fault: type[Fault]
) -> None:
    """With a leader that is frozen it hedges; without one it takes the lease."""
    stage = Stage(url, topic, struck := fault(call), role=Role.STANDBY, lease_ms=3_000, hedge_ms=20)
    if call != "acquire":
        raw.set(stage.keys.lease, "frozen:5:another-run:9")
    ids = stage.schedule(30, first_ms=-10, apart_ms=2)
    look = Look(raw, topic)
    await stage.step_until(lambda: not look.delayed())
    assert look.ready() == ids
    assert struck.struck == 1
    await stage.close()


async def test_a_standby_does_not_step_in_when_the_topic_is_paused_while_it_looks(
    url: str, topic: str, raw: redis.Redis
) -> None:
    """The answer to its look comes after the news of the pause, so that it knows the terms in force."""
    paused = replace(Topic(), paused=True)

    class PausedMeanwhile(Fault):
        def strike(self, call: Call[Any]) -> list[Call[Any]]:
            def read(reply: Any) -> Any:
                stage.plain.send(registry.fence(stage.keys, paused.terms, 1))
                stage.shard.configure(paused)
                return call.read(reply)

            return [replace(call, read=read)]

    stage = Stage(url, topic, PausedMeanwhile("look"), hedging := Repeating("hedge"), role=Role.STANDBY, hedge_ms=20)
    raw.set(stage.keys.lease, "frozen:5:another-run:9")
    stage.schedule(3, first_ms=-1_000)
    look = Look(raw, topic)
    for _ in range(3):
        await stage.shard.step()
    assert hedging.struck == 1, "it had found the jobs that the leader left"
    assert (len(look.delayed()), look.ready()) == (3, [])
    await stage.close()


@pytest.mark.parametrize("how", ["not answered", "taken away"])
async def test_two_nodes_that_both_believe_to_lead_promote_each_job_once(
    url: str, topic: str, raw: redis.Redis, how: str
) -> None:
    first = Stage(url, topic, lease_ms=30_000)
    ids = first.schedule(200, first_ms=0, apart_ms=1)
    second = Stage(url, topic, lease_ms=30_000)
    look = Look(raw, topic)
    await first.shard.step()
    if how == "taken away":
        raw.delete(first.keys.lease)
    deadline = time.monotonic() + PATIENCE
    while look.delayed():
        assert time.monotonic() < deadline
        await asyncio.gather(first.shard.step(), second.shard.step())
    assert look.ready() == ids
    await first.close()
    await second.close()


async def test_a_late_hint_costs_no_minute(url: str, topic: str, raw: redis.Redis) -> None:
    """An idle shard's horizon is far. A job beyond the window sends a hint; the leader acts when it is within it."""
    stage = Stage(url, topic, window_ms=200, idle_ms=60_000)
    for _ in range(5):  # take the lease, sweep, open the window: nothing is near
        await stage.shard.step()
    receipts = stage.plain.send(producer.schedule(stage.keys, [("a", "+230", RECORD)], "keep", "1"))
    stage.shard.hint(f"{receipts.receipts[0].due_ms} a".encode())
    await asyncio.sleep(0.1)  # the node is busy with something else
    look = Look(raw, topic)
    await stage.step_until(lambda: look.ready() == ["a"], within_s=30)  # half of that minute
    await stage.close()


async def test_jobs_that_are_moved_within_the_window_need_no_second_hint(
    url: str, topic: str, raw: redis.Redis
) -> None:
    """The leader asks for them at their former time, hears of the new ones, and no sweep comes before the last."""
    hour = {"sweep_ms": 3_600_000, "window_ms": 3_600_000, "lease_ms": 3_600_000}
    stage, look = Stage(url, topic, **hour), Look(raw, topic)
    for _ in range(5):  # take the lease, sweep, open the window: nothing is near
        await stage.shard.step()
    for id in ("a", "b"):
        stage.schedule_and_ring(id, 100)
    for id, delay_ms in (("a", 600), ("b", 900)):
        stage.plain.send(producer.reschedule(stage.keys, id, f"+{delay_ms}"))  # its hint is lost
    await stage.step_until(
        lambda: look.ready() == ["a", "b"], within_s=30
    )  # half of the window, and of the sweep's beat
    await stage.close()


@pytest.mark.parametrize("message", [b"junk", b"x y", b"\xff\xfe", b"1.5 a"])
async def test_a_message_that_makes_no_sense_is_passed_over(
    url: str, topic: str, raw: redis.Redis, message: bytes
) -> None:
    """A hint may be wrong; it must not deafen the node. Here only the next one tells of the job."""
    stage = Stage(url, topic, sweep_ms=60_000, window_ms=60_000)
    for _ in range(5):  # take the lease, sweep, open the window: nothing is near
        await stage.shard.step()
    stage.shard.hint(message)
    await stage.shard.step()
    stage.schedule_and_ring("a", 100)
    look = Look(raw, topic)
    await stage.step_until(lambda: look.ready() == ["a"], within_s=30)  # half of the window, and of the sweep's beat
    await stage.close()
