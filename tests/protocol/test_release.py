"""What each release left in Redis and in its outbox files is read by this one: `release` made the stored bytes."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.protocol import release
from tests.protocol.release import PAYLOADS
from tests.running import running
from tests.waiting import until
from wheelq import AsyncClient, Client, Job, JobState, RunNowOutcome, Scheduler, Worker
from wheelq.embedded import EmbeddedServer

STORED = sorted(Path(__file__).parent.glob("release-*.json"))
WAITING = [*PAYLOADS, "headers", "expires", "moved"]


@pytest.fixture(params=STORED, ids=lambda path: path.stem)
def stored(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_text())
    return found


@pytest.fixture
def url(stored: dict[str, Any], private_server: Callable[..., EmbeddedServer]) -> str:
    """A server with the data of the release."""
    server = private_server(appendonly=False)
    release.load(server.url, stored["redis"])
    return server.url


def test_the_releases_are_stored() -> None:
    assert [path.name for path in STORED] == ["release-0.2.0.json"]


async def test_jobs_in_every_state_are_found_as_they_were(url: str) -> None:
    async with AsyncClient.connect(url) as client:
        for id in WAITING:
            info = await client.get("orders", id)
            assert info is not None, id
            assert (info.state, info.payload) == (JobState.WAITING, PAYLOADS.get(id, info.payload)), id
        assert await client.get("orders", "cancelled") is None
        info = await client.get("orders", "in a partition", partition_key="customer")
        assert info is not None
        assert info.payload == 2
        done = await client.get("orders", "done")
        assert done is not None
        assert (done.state, done.result) == (JobState.DONE, "done is done")
        [dead] = (await client.dead.list("orders")).jobs
        assert (dead.id, dead.payload) == ("dead", "dead")
        assert "it cannot be done" in dead.error
        [recurring] = await client.recurring.list()
        assert (recurring.name, recurring.payload, recurring.is_paused) == ("nightly", {"n": 6}, False)
        assert (recurring.rule.cron, recurring.rule.tz) == ("0 3 * * *", "Europe/Berlin")
        orders, parcels = [await client.topic(name) for name in ("orders", "parcels")]
        assert (orders.settings.shards, orders.settings.dead_max) == (2, 500)
        assert (parcels.settings.paused, parcels.settings.max_ready, parcels.retrying) == (True, 1_000, 1)
        assert [info.id for info in (await client.waiting("orders")).jobs]


async def test_jobs_in_every_state_run_once_and_to_their_end(url: str) -> None:
    worker, ran = Worker.connect(url, group="g"), dict[str, tuple[Any, int]]()

    @worker.handler("orders")
    async def run(job: Job) -> str:
        assert job.id not in ran
        ran[job.id] = job.payload, job.attempt
        return f"{job.id} again"

    @worker.handler("parcels")
    async def ship(job: Job[Any]) -> None:
        ran[job.id] = job.payload, job.attempt

    async with AsyncClient.connect(url) as client:
        for id in WAITING:
            assert await client.run_now("orders", id) is RunNowOutcome.PROMOTED
        await client.run_now("orders", "in a partition", partition_key="customer")
        await client.dead.replay("orders", all=True)
        await client.resume("parcels")
        expected = {*WAITING, "in a partition", "dead", "delivered", "ready", "unfit"}
        async with running(Scheduler.connect(url), worker):
            await until(lambda: set(ran) >= expected)
            receipt = await client.schedule("orders", "new", delay=0, key="done")  # a new life of the id
            assert await client.wait(receipt, timeout=30) == "done again"
        assert {id: ran[id][0] for id in PAYLOADS} == PAYLOADS
        assert ran["unfit"] == ({"weight": "heavy"}, 1)
        others = {id for id, (payload, _) in ran.items() if id not in expected and payload != {"n": 6}}
        assert others <= {
            "done",
            "retried",
        }  # "retried" is due an hour after it was stored, the recurring job each night
        assert ran.get("retried", ("retried", 2)) == ("retried", 2)


async def test_the_jobs_of_an_outbox_file_are_delivered(url: str, stored: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    path.write_bytes(b64decode(stored["outbox"]))
    with Client.connect(url, outbox=str(path)) as client:
        client.deliver_outbox()
        outbox, info = client.outbox_info(), client.get("orders", "from the outbox")
        assert outbox is not None
        assert info is not None
        assert (outbox.jobs, info.payload) == (0, "from the outbox")
        assert info.state in (JobState.WAITING, JobState.READY)  # it is due an hour after it was stored


def test_this_release_stores_keys_of_the_same_names(tmp_path: Path) -> None:
    """So the next release can be stored, too; and none of the names has changed in silence."""
    release.main(tmp_path / "now.json")
    now, then = [json.loads(path.read_text())["redis"] for path in (tmp_path / "now.json", STORED[-1])]
    assert names(now) == names(then)


def names(kept: dict[str, Any]) -> set[tuple[str, str]]:
    """The names of keys without numbers, which differ, and their types."""
    return {(re.sub(r"\d+", "#", b64decode(key).decode()), kind) for key, (kind, _) in kept.items()}
