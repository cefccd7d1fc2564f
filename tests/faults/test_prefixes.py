"""Programs with different prefixes do not see each other: each half of a fleet names the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import pytest
import redis

from tests.waiting import until
from wheelq import Client, Scheduler, Settings, Worker
from wheelq.admin import Inspector
from wheelq.admin.diagnosis import Finding
from wheelq.embedded import EmbeddedServer
from wheelq.worker.upkeep import overdue

HERE, THERE = Settings(prefix="here"), Settings(prefix="there")


@pytest.fixture
def own(private_server: Callable[..., EmbeddedServer]) -> str:
    """A server that no other test uses, because every prefix on it is named."""
    return private_server(appendonly=False).url


def findings(url: str, settings: Settings) -> Sequence[Finding]:
    with Inspector.connect(url, settings) as inspector:
        return [finding for finding in inspector.doctor() if "other prefixes" in finding.title.lower()]


async def test_a_worker_without_a_scheduler_says_which_prefix_is_alive(
    own: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "LOOK_S", 0.05)
    scheduler, worker = Scheduler.connect(own, THERE), Worker.connect(own, settings=HERE)
    worker.handler("orders")(lambda job: None)
    with caplog.at_level(logging.WARNING, "wheelq.worker"):
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for running in (scheduler, worker):
                group.create_task(running.run())
                stack.callback(running.stop)
                await until(lambda: lives(own, THERE))
            await until(lambda: "no scheduler runs" in caplog.text)
            scheduler.stop()
            worker.stop()
    [warning] = [record.getMessage() for record in caplog.records if "no scheduler runs" in record.getMessage()]
    assert warning == (
        "no scheduler runs: this worker has the prefix here, and programs with the prefix there use this server; if "
        "they belong together, give all of them the same (WHEELQ_PREFIX)"
    )


async def test_doctor_says_it_beside_a_scheduler_and_beside_topics(own: str) -> None:
    with Client.connect(own, THERE) as client:
        await asyncio.to_thread(client.schedule, "orders", delay=3600)
    scheduler = Scheduler.connect(own, HERE)
    async with asyncio.TaskGroup() as group:
        group.create_task(scheduler.run())
        await until(lambda: lives(own, HERE))
        [beside_topics] = await asyncio.to_thread(findings, own, HERE)
        [beside_scheduler] = await asyncio.to_thread(findings, own, THERE)
        scheduler.stop()
    assert beside_topics.level == beside_scheduler.level == "warning"
    assert beside_topics.title == "No topic has the prefix here; other prefixes on this server: there"
    assert beside_scheduler.title == "No scheduler has the prefix there; other prefixes on this server: here"
    assert "give all of them the same: prefix in the settings file, or WHEELQ_PREFIX" in beside_topics.explanation


def lives(url: str, settings: Settings) -> bool:
    """Whether a scheduler of this prefix is there."""
    with Inspector.connect(url, settings) as inspector:
        return bool(inspector.nodes())


def test_keys_of_other_programs_are_no_prefix(own: str) -> None:
    with redis.Redis.from_url(own) as db:
        db.hset("forum:topics", "1", "hello")
        db.sadd("blog:topics", "1")
    assert findings(own, HERE) == []
