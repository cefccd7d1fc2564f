"""forward: due jobs of a topic become messages, from a process of its own; and what it says to mistakes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.servers.kafka import KafkaCluster
from tests.cli.commands import Running, wheelq
from tests.kafka import cluster_of_one, sent
from wheelq import AsyncClient, Client, JobSpec
from wheelq.cli.forward import kafka_url, read_properties
from wheelq.cli.process import needs_extra
from wheelq.errors import ConfigurationError, InvalidInput

Start = Callable[..., Running]


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with cluster_of_one() as cluster:
        yield cluster


@pytest.mark.parametrize("options", [(), ("--ordered",), ("--envelope", "--group", "others")])
async def test_due_jobs_become_messages_and_the_process_stops_in_good_order(
    url: str, topic: str, tmp_path: Path, start: Start, cluster: KafkaCluster, options: tuple[str, ...]
) -> None:
    (tmp_path / "kafka.properties").write_text("# of this test\n\nclient.id = forwarding\n")
    forwarding = start(
        tmp_path,
        "forward",
        topic,
        "--to",
        f"kafka://{cluster.servers}/due",
        "--properties",
        "kafka.properties",
        *options,
        url=url,
    )
    forwarding.wait_for(f"jobs of {topic} go to Kafka at {cluster.servers}")
    start(tmp_path, "scheduler", url=url)
    with Client.connect(url) as client:
        client.schedule_many(topic, [JobSpec({"n": n}, delay=0.1, partition_key=f"key-{n % 3}") for n in range(30)])
    found = await sent(cluster.servers, "due", 30)
    values = [json.loads(one.value) for one in found]
    if "--envelope" in options:
        assert {value["topic"] for value in values} == {topic}
        values = [json.loads(value["content"]) for value in values]
    assert sorted(value["n"] for value in values) == list(range(30))
    assert {one.key for one in found} == {b"key-0", b"key-1", b"key-2"}
    forwarding.signal(signal.SIGTERM)
    assert forwarding.end() == 0
    assert "forwarding has stopped; 30 jobs sent" in forwarding.said
    async with AsyncClient.connect(url) as aclient:
        [group] = await aclient.groups(topic)
        assert (group.name, group.lag, group.pending) == ("others" if "others" in options else "kafka", 0, 0)


def test_an_address_names_servers_and_perhaps_a_topic() -> None:
    assert kafka_url("kafka://a:9092,b:9093/orders") == ("a:9092,b:9093", "orders")
    assert kafka_url("kafka://a") == ("a", "")


@pytest.mark.parametrize(
    "wrong",
    ["redis://a", "kafka:///orders", "a:9092", "kafka://user:word@a/orders", "kafka://a/orders?acks=1"],
)
def test_other_addresses_are_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="to"):
        kafka_url(wrong)


def test_a_password_is_not_shown_when_its_address_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        kafka_url("kafka://user:word@a/orders")
    assert "word@" not in str(refused.value)


def test_properties_are_lines_with_names_and_values(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# comment\n\nsasl.password = a=b \nclient.id=x\n")
    assert read_properties(file) == {"sasl.password": "a=b", "client.id": "x"}
    file.write_text("client.id=x\nsecurity.protocol\n")
    with pytest.raises(ConfigurationError, match="line 2: must be NAME=VALUE"):
        read_properties(file)


@pytest.mark.parametrize(
    ("arguments", "line", "words"),
    [
        (["orders", "--to", "kafka://a/not a topic"], "", "topic"),
        (["orders", "--to", "kafka://a/orders"], "no.such=1", 'No such configuration property: "no.such"'),
        (["orders", "--to", "kafka://a/orders"], "acks=1", "must not have 'acks'"),
    ],
)
def test_mistakes_end_it_with_a_message_before_it_runs(
    url: str, tmp_path: Path, arguments: list[str], line: str, words: str
) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(line)
    answer = wheelq("forward", *arguments, "--properties", file, url=url)
    assert answer.code == 2
    assert words in answer.err


def test_without_the_extra_it_names_it() -> None:
    with pytest.raises(ConfigurationError, match=r"needs no_such_module: pip install 'wheelq\[kafka\]'"):
        needs_extra("wheelq forward", "no_such_module", extra="kafka")
