"""Producer and consumer in Node, with its package `redis`: jobs of several shards, a retry, a dead consumer.

The package is installed for the test, by npm from the registry that it knows. Where that cannot be done the tests are
skipped, with the reason.
"""

from __future__ import annotations

import json
import select
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cli.commands import wheelq
from tests.once import made_once
from tests.protocol.conftest import Service, without_wheelq
from tests.waiting import PATIENCE, eventually
from wheelq import Client, JobState, Settings
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings

HERE = Path(__file__).parent
SHARDS = 3


@pytest.fixture(scope="session")
def node_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both programs, the scripts and the package."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed")

    def install(home: Path) -> None:
        command = ["npm", "install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "redis@>=5"]
        try:
            done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("npm's registry does not answer")
        if done.returncode:
            pytest.skip(f"npm could not install the package: {done.stderr.strip()[-200:]}")
        for program in ("producer.mjs", "consumer.mjs"):
            shutil.copy(HERE / program, home)
        assert wheelq("script", "--into", home / "scripts").code == 0

    return made_once(tmp_path_factory, "node", install)


class Node:
    """Runs the two programs."""

    def __init__(self, home: Path, service: Service, topic: str) -> None:
        self._home, self._url, self._topic = home, service.url, topic
        self._consumers: list[subprocess.Popen[str]] = []

    def schedule(self, id: str, delay_ms: int, text: str, url: str | None = None) -> Any:
        words = ["node", "producer.mjs", url or self._url, "scripts", self._topic, id, str(delay_ms), text]
        done = subprocess.run(
            words,
            cwd=self._home,
            env=without_wheelq(),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def consume(self, group: str, count: int) -> subprocess.Popen[str]:
        words = ["node", "consumer.mjs", self._url, "scripts", self._topic, group, str(count)]
        child = subprocess.Popen(words, cwd=self._home, env=without_wheelq(), stdout=subprocess.PIPE, text=True)
        self._consumers.append(child)
        return child

    def close(self) -> None:
        for child in self._consumers:
            child.kill()
            child.communicate()


@pytest.fixture
def node(node_home: Path, service: Service, topic: str) -> Iterator[Node]:
    node = Node(node_home, service, topic)
    yield node
    node.close()


def runs(consumer: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What it printed, once it has ended."""
    said, _ = consumer.communicate(timeout=2 * PATIENCE)
    assert consumer.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


@pytest.mark.slow
def test_jobs_scheduled_in_node_are_run_in_node(node: Node, service: Service, topic: str) -> None:
    """Once in each group, never early; the one that fails again, in its group only; a taken id stays as it is."""
    settings = Settings(topic=TopicSettings(shards=SHARDS))
    shards = [Keys().shard(topic, number) for number in range(SHARDS)]
    with Client.connect(service.url, settings) as client, redis.Redis.from_url(service.url) as connection:
        client.configure(topic, misfire="run")  # which makes it, with these shards
        first = node.schedule("late", 3_600_000, "moved")
        assert node.schedule("late", 1_000, "other") == {**first, "created": False}
        found = client.get(topic, "late")
        assert found is not None
        assert (found.state, found.due_ms, found.payload) == (JobState.WAITING, first["due_ms"], "moved")
        client.cancel(topic, "late")

        for keys in shards:
            connection.xgroup_create(keys.ready, "mail", "0", mkstream=True)
        consumers = [node.consume(group, 3) for group in ("billing", "mail")]
        assert eventually(lambda: all(len(connection.xinfo_groups(keys.ready)) == 2 for keys in shards))
        for id, text in {"a": "héllo", "b": "fail once", "c": "x" * 70_000}.items():
            assert node.schedule(id, 500, text)["created"]
        for found_runs in map(runs, consumers):
            texts = {(run["id"], run["attempt"]): run["text"] for run in found_runs}
            assert texts == {("a", 1): "héllo", ("b", 1): "fail once", ("b", 2): "fail once", ("c", 1): "x" * 70_000}
            assert all(run["late_ms"] >= 0 for run in found_runs)
        assert [(connection.hlen(keys.jobs), connection.zcard(keys.delayed)) for keys in shards] == [(0, 0)] * SHARDS


class LosesAReply(socketserver.ThreadingUnixStreamServer):
    """Passes everything on to a server; the reply to the first call with a tag is lost, behind `meanwhile`."""

    def __init__(self, path: Path, server: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(str(path), PassingOn)
        self.server_path, self.meanwhile, self.has_lost = server, meanwhile, False


class PassingOn(socketserver.BaseRequestHandler):
    """One connection."""

    server: LosesAReply

    def handle(self) -> None:
        seen, client = b"", self.request
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(self.server.server_path)
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65_536)
                    if not data:
                        return
                    if ready is server:
                        client.sendall(data)
                        continue
                    seen += data
                    server.sendall(data)
                    if b":tags:" in seen and not self.server.has_lost:
                        self.server.has_lost = True
                        server.recv(65_536)
                        self.server.meanwhile()
                        return


def test_a_call_whose_reply_is_lost_is_repeated_and_makes_no_second_job(
    node: Node, service: Service, topic: str, tmp_path: Path
) -> None:
    """Although the first one is gone meanwhile."""
    with Client.connect(service.url) as client:
        relay = LosesAReply(tmp_path / "relay.sock", service.socket, lambda: client.cancel(topic, "job"))
        with relay:
            threading.Thread(target=relay.serve_forever, daemon=True).start()
            told = node.schedule("job", 60_000, "hello", f"unix://{relay.server_address}")
            relay.shutdown()
        assert (relay.has_lost, told["created"]) == (True, True)
        assert client.get(topic, "job") is None


def test_the_next_consumer_runs_a_dead_ones_jobs(node: Node, service: Service, topic: str) -> None:
    """Taken over after 3.5 s of silence, on a stream to which nothing new comes."""
    node.schedule("job", 0, "fail once")
    stream = Keys().shard(topic, 0).ready
    with redis.Redis.from_url(service.url) as connection:
        connection.xgroup_create(stream, "billing", "0")
        connection.xreadgroup("billing", "dead", {stream: ">"}, count=1)  # and never heard of again
        assert [run["attempt"] for run in runs(node.consume("billing", 1))] == [1, 2]
        assert connection.xlen(stream) == 0


def test_a_job_that_takes_long_stays_with_its_consumer(node: Node, service: Service, topic: str) -> None:
    """Renewed while it runs, twice as long as a delivery that nobody renews: the other consumer never gets it."""
    node.schedule("job", 0, "slow")
    consumers = [node.consume("billing", 1) for _ in range(2)]
    assert eventually(lambda: any(consumer.poll() is not None for consumer in consumers))
    for consumer in consumers:
        consumer.terminate()
    said = [line for consumer in consumers for line in consumer.communicate(timeout=2 * PATIENCE)[0].splitlines()]
    assert len(said) == 1
