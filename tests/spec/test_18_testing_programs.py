"""18. Testing, continued: programs that connect by themselves, asyncio code, and test runners."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.waiting import PATIENCE
from wheelq import AsyncClient, Client, Job, JobSpec, Settings
from wheelq.errors import ConfigurationError
from wheelq.model.topic import Topic
from wheelq.settings import ClientSettings, TopicSettings
from wheelq.testing import URL, AsyncWheelqTest, WheelqTest

START = datetime(2030, 3, 29, 9, 0, tzinfo=UTC)


def test_clients_without_a_url_find_it(wheelq: WheelqTest) -> None:
    with Client.connect() as client:
        client.schedule("orders", delay=60, key="k")
    wheelq.assert_scheduled("orders", "k")
    assert os.environ["WHEELQ_URL"] == wheelq.url == URL


def test_a_client_may_be_older_than_the_test() -> None:
    """One of a module, that believes its topics to be registered: each test begins empty, and its jobs run."""
    client = Client.connect(URL, Settings(topic=TopicSettings(shards=3)))
    for _ in range(2):
        with WheelqTest() as wheelq:
            wheelq.assert_nothing_waits()

            @wheelq.worker.handler("orders")
            async def handle(job: Job) -> None: ...

            client.schedule_many("orders", [JobSpec(n, delay=60) for n in range(9)])
            wheelq.advance(60)
            wheelq.assert_ran("orders", times=9)


@pytest.mark.parametrize(
    "change",
    [
        lambda client: client.pause("orders"),
        lambda client: client.set_shards("orders", 4),
        lambda client: client.configure("orders", on_dead="dead", max_pending=1),
    ],
    ids=["pause", "set_shards", "configure"],
)
def test_what_a_client_knows_of_a_topic_does_not_reach_the_next_test(
    change: Callable[[Client], object],
) -> None:
    client = Client.connect(URL)
    with WheelqTest():
        client.schedule("orders", delay=60)
        change(client)
    with WheelqTest() as wheelq:
        client.schedule_many("orders", [JobSpec(n, delay=60) for n in range(2)])
        assert wheelq.client.topic("orders").settings == Topic()


async def test_a_topic_is_removed_on_asyncio_while_the_clock_stands_still() -> None:
    async with AsyncWheelqTest(settings=Settings(client=ClientSettings(topics_ttl_ms=100))) as wheelq:
        await wheelq.async_client.schedule("orders", delay=60)
        await asyncio.wait_for(wheelq.async_client.remove_topic("orders", force=True), PATIENCE)
        wheelq.assert_nothing_waits()


def test_a_client_made_while_the_environment_named_another_server_uses_the_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module is imported with the URL of a real server exported: no job of a test may reach that."""
    monkeypatch.setenv("WHEELQ_URL", "redis://nowhere.invalid:1")
    client = Client.connect()
    with WheelqTest() as wheelq:
        client.schedule("orders", delay=60, key="k")
        wheelq.assert_scheduled("orders", "k")


async def test_on_asyncio_handlers_share_the_tests_event_loop(async_wheelq: AsyncWheelqTest) -> None:
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @async_wheelq.worker.handler("orders")
    async def handle(job: Job) -> None:
        async with AsyncClient.connect() as client:
            await client.schedule("orders-closed", job.payload, delay=timedelta(days=7))
        done.set_result(job.id)

    await async_wheelq.async_client.schedule("orders", {"id": 42}, delay=1800, key="order-42")
    async_wheelq.assert_scheduled("orders", "order-42", due_in=1800)
    await async_wheelq.advance(minutes=30)
    assert await done == "order-42"
    async_wheelq.assert_scheduled("orders-closed", payload={"id": 42}, due_in=timedelta(days=7))
    before = async_wheelq.now
    await async_wheelq.advance_to(before + timedelta(days=6))
    assert await async_wheelq.run_due() == []


async def test_the_plain_kind_says_what_to_use_on_asyncio(wheelq: WheelqTest) -> None:
    with pytest.raises(ConfigurationError, match="on asyncio use AsyncWheelqTest"):
        wheelq.advance(1)


async def test_the_asyncio_kind_without_fixtures() -> None:
    async with AsyncWheelqTest(START) as wheelq:
        await wheelq.async_client.schedule("orders", delay=60)
        await wheelq.advance(59)
        wheelq.assert_scheduled("orders", due_in=1)


# where tests are run

PROGRAM = """
import pytest
from wheelq import Client, Worker

worker = Worker.connect("redis://nowhere.invalid:1")

@worker.handler("orders")
def close_order(job): ...

@pytest.mark.parametrize("n", range(8))
def test_an_order_is_closed(wheelq, n):
    wheelq.add(worker)
    Client.connect().schedule("orders", delay=1800, key="k")
    wheelq.advance(hours=1)
    wheelq.assert_ran("orders", "k", times=1)
"""


UNITTEST = """
import unittest
from wheelq import AsyncClient, Client
from wheelq.testing import AsyncWheelqTest, WheelqTest

class Plain(unittest.TestCase):
    def setUp(self):
        self.wheelq = self.enterContext(WheelqTest())

    def test_an_order_is_closed(self):
        self.wheelq.worker.handler("orders")(lambda job: None)
        Client.connect().schedule("orders", delay=1800, key="k")
        self.wheelq.advance(hours=1)
        self.wheelq.assert_ran("orders", "k")

class OnAsyncio(unittest.IsolatedAsyncioTestCase):
    async def test_an_order_is_closed(self):
        async with AsyncWheelqTest() as wheelq, AsyncClient.connect() as client:
            wheelq.worker.handler("orders")(lambda job: None)
            await client.schedule("orders", delay=1800, key="k")
            await wheelq.advance(hours=1)
            wheelq.assert_ran("orders", "k")

unittest.main()
"""


def run(directory: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WHEELQ", "PYTEST"))}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a project of its own has not all that this one has
    command = [sys.executable, "-W", "error::ResourceWarning", *arguments]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=4 * PATIENCE, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("more", [[], ["-p", "xdist", "-n", "2"]])
def test_the_fixtures_work_in_a_project_of_its_own_also_under_xdist(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "test_shop.py").write_text(PROGRAM)
    said = run(tmp_path, "-m", "pytest", "-p", "wheelq.testing.plugin", "-p", "no:cacheprovider", *more)
    assert "8 passed" in said


def test_it_works_in_plain_unittest(tmp_path: Path) -> None:
    (tmp_path / "shop_tests.py").write_text(UNITTEST)
    assert "OK" in run(tmp_path, "shop_tests.py")
