"""group list, group remove, topic list, topic remove; and what doctor says of groups that nobody serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.cli.commands import wheelq
from tests.running import running
from tests.waiting import until
from wheelq import Client, Job, Settings, Worker
from wheelq.embedded import EmbeddedServer


@pytest.fixture
def own_url(private_server: Callable[..., EmbeddedServer]) -> str:
    """A server that nobody else uses."""
    return private_server().url


def test_groups_are_listed(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        client.make_group(topic, "billing")
        client.schedule(topic, delay=0)
    [found] = wheelq("group", "list", topic, "--json", url=url).json
    oldest_ms = found.pop("oldest_ms")
    assert found == {"name": "billing", "lag": 1, "pending": 0, "workers": []}
    assert oldest_ms > 1_700_000_000_000
    shown = wheelq("group", "list", topic, url=url).out.splitlines()
    assert shown[0].split() == ["group", "lag", "pending", "oldest", "workers"]
    assert shown[1].split()[:3] == ["billing", "1", "0"]


def test_a_group_is_removed(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        client.make_group(topic, "billing")
        client.schedule(topic, key="a", delay=0)
        assert wheelq("group", "remove", topic, "billing", url=url, stdin="n\n").code == 1
        assert len(client.groups(topic)) == 1
        answer = wheelq("group", "remove", topic, "billing", "--yes", "--json", url=url)
        assert (answer.code, answer.json["removed"]) == (0, True)
        assert client.groups(topic) == []
        assert client.schedule(topic, key="a", delay=60).created
    assert wheelq("group", "remove", topic, "billing", "--yes", url=url).code == 3
    assert wheelq("group", "remove", "no-such-topic", "billing", "--yes", url=url).code == 1
    assert wheelq("group", "list", topic, "--json", url=url).json == []


async def test_a_group_with_workers_needs_force(url: str, topic: str) -> None:
    worker = Worker.connect(url, group="billing", settings=Settings())

    @worker.handler(topic)
    async def handle(job: Job) -> None: ...

    with Client.connect(url) as client:
        client.schedule(topic, delay=0)
    async with running(worker):

        async def is_there() -> bool:
            answer = await asyncio.to_thread(wheelq, "group", "list", topic, "--json", url=url)
            return [found["workers"] for found in answer.json] == [[worker.name]]

        await until(is_there)
        answer = await asyncio.to_thread(wheelq, "group", "remove", topic, "billing", "--yes", url=url)
        assert answer.code == 1
        assert worker.name in answer.err


def test_topic_list_says_what_topics_says(own_url: str) -> None:
    with Client.connect(own_url) as client:
        client.schedule("orders", delay=1800)
    heads = [wheelq(*words, url=own_url).out.splitlines()[0].split() for words in (("topic", "list"), ("topics",))]
    assert heads[0] == heads[1]  # their widths may differ: a column tells how long it is until the next job
    assert wheelq("topic", "list", "--json", url=own_url).json[0]["name"] == "orders"


def test_a_topic_is_removed(own_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELQ_CLIENT_TOPICS_TTL_MS", "200")  # a removal waits until no producer relies on the topic
    with Client.connect(own_url) as client:
        client.schedule("orders", delay=1800)
        refused = wheelq("topic", "remove", "orders", "--yes", url=own_url)
        assert (refused.code, "not finished" in refused.err) == (1, True)
        answer = wheelq("topic", "remove", "orders", "--yes", "--force", "--json", url=own_url)
        assert (answer.code, answer.json) == (0, {"topic": "orders", "removed": True})
        assert client.topics() == []


def test_doctor_names_groups_that_nobody_serves(own_url: str) -> None:
    with Client.connect(own_url) as client:
        client.make_group("orders", "old-name")
        client.schedule("orders", delay=0)
    answer = wheelq("doctor", "--json", url=own_url)
    [finding] = [found for found in answer.json if "old-name" in found["title"]]
    assert finding["level"] == "warning"
    assert finding["title"] == "No live worker serves group old-name of orders, which has 1 job to do"
    assert "wheelq group remove orders old-name" in finding["explanation"]
