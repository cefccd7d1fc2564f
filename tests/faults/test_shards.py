"""The number of a topic's shards changes while jobs wait, fall due and are scheduled by producers who do not know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from loadtest.judge import Promise, judge
from loadtest.torture.fleet import Fleet, read_promotions
from tests.found import job_of
from tests.records import RECORD
from tests.waiting import eventually
from wheelq import CancelOutcome, Client, JobSpec, RescheduleOutcome, Settings
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.call import command
from wheelq.protocol.calls import producer, registry
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport

TOPIC = "sharded"
SETTINGS = Settings(topic=TopicSettings(retention_ms=3_600_000))


@pytest.fixture
def clients(url: str, topic: str) -> Iterator[tuple[Client, Client]]:
    """Two producers: what one changes the other does not know yet."""
    with Client.connect(url) as one, Client.connect(url) as other:
        one.schedule(topic, key="first", delay=3600)
        other.schedule(topic, key="second", delay=3600)
        yield one, other


def test_jobs_that_waited_before_a_change_are_found_after_it(clients: tuple[Client, Client], topic: str) -> None:
    """Looked up, moved and cancelled by id, by those who know of the change and those who do not."""
    one, other = clients
    ids = [receipt.id for receipt in one.schedule_many(topic, [JobSpec(n, delay=3600) for n in range(60)])]
    info = one.set_shards(topic, 5)
    assert (info.shards, info.waiting) == (5, 62)
    for n, id in enumerate(ids):
        client = clients[n % 2]
        found = job_of(client, topic, id)
        assert found.payload == n
        assert client.reschedule(topic, id, delay=7200) is RescheduleOutcome.RESCHEDULED
        assert client.cancel(topic, id) is CancelOutcome.CANCELLED
        assert other.get(topic, id) is None


def test_jobs_placed_after_a_change_are_found_by_a_client_that_does_not_know_of_it(
    clients: tuple[Client, Client], topic: str
) -> None:
    """It looks where the number that it knows places them, and then reads the number in force."""
    one, other = clients
    one.set_shards(topic, 5)
    keys = [f"k{n}" for n in range(20)]
    one.schedule_many(topic, [JobSpec(delay=3600, key=key) for key in keys])
    assert [other.cancel(topic, key) for key in keys] == [CancelOutcome.CANCELLED] * 20


def test_a_producer_that_does_not_know_of_a_change_places_jobs_right(
    clients: tuple[Client, Client], topic: str
) -> None:
    """Its calls are refused by the shards, it learns the new number, and each job exists once."""
    one, other = clients
    one.set_shards(topic, 4)
    keys = [f"k{n}" for n in range(1_200)]
    receipts = other.schedule_many(topic, [JobSpec(delay=3600, key=key) for key in keys])
    assert [receipt.id for receipt in receipts] == keys
    assert all(receipt.created for receipt in receipts)
    again = one.schedule_many(topic, [JobSpec(delay=3600, key=key) for key in keys])
    assert not any(receipt.created for receipt in again)
    assert one.topics()[[info.name for info in one.topics()].index(topic)].waiting == 1_202


def test_an_occurrence_of_a_recurring_job_is_found_in_shard_0(url: str, topic: str) -> None:
    """Wherever the number of shards would place its id."""
    keys, ids = Keys().shard(topic, 0), [f"nightly-{n}@2040-01-01T00:00:00Z" for n in range(5)]
    with (
        Client.connect(url, Settings(topic=TopicSettings(shards=5))) as client,
        closing(Transport(Address(url))) as raw,
    ):
        client.schedule(topic, delay=3600)
        raw.send(producer.schedule(keys, [(id, "+3600000", RECORD) for id in ids], "keep", "5"))
        assert [client.cancel(topic, id) for id in ids] == [CancelOutcome.CANCELLED] * 5


def test_a_key_stays_taken_where_a_former_number_placed_it(clients: tuple[Client, Client], topic: str) -> None:
    """Scheduling a live key again keeps, replaces or refuses it at its old place, whatever the number is now."""
    one, other = clients
    keys = [f"k{n}" for n in range(50)]
    before = one.schedule_many(topic, [JobSpec("old", delay=3600, key=key) for key in keys])
    for shards in (6, 2, 3):
        one.set_shards(topic, shards)
        kept = other.schedule_many(topic, [JobSpec("new", delay=60, key=key) for key in keys])
        assert [(one.id, one.due_ms, one.created) for one in kept] == [(was.id, was.due_ms, False) for was in before]
    replaced = one.schedule(topic, "newer", delay=60, key=keys[0], on_duplicate="replace")
    assert replaced.replaced
    found = job_of(other, topic, keys[0])
    assert found.payload == "newer"
    fresh = one.schedule(topic, "fresh", delay=60, key="fresh")
    assert fresh.created


def test_the_next_client_finishes_an_interrupted_change(clients: tuple[Client, Client], topic: str, url: str) -> None:
    """The shards ask for a number that was never published: the next producer publishes it."""
    one, other = clients
    transport = Transport(Address(url))
    shard = Keys().shard(topic, 0)
    transport.send(registry.fence(shard, "3", 1))
    assert other.schedule(topic, delay=3600, key="third").created
    assert next(info for info in one.topics() if info.name == topic).shards == 3
    transport.close()


def test_nothing_is_lost_or_doubled_while_the_number_changes_under_load(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    """1 → 4 → 2 → 6 shards, two schedulers and two workers, three producers that learn of it by being refused."""
    server = private_server()
    promises: dict[str, Promise] = {}
    stop = threading.Event()

    def produce(number: int) -> None:
        with Client.connect(server.url, SETTINGS) as client:
            n = 0
            while not stop.is_set():
                keyed = number == 0
                specs = [JobSpec(delay=0.3 + 0.002 * k, key=f"{number}-{n + k}" if keyed else None) for k in range(20)]
                for receipt in client.schedule_many(TOPIC, specs):
                    promises[receipt.id] = Promise(receipt.due_ms, must_run=True)
                n += len(specs)
                time.sleep(0.02)

    def wait_for_more() -> None:
        before = len(promises)
        time.sleep(1.0)
        assert eventually(lambda: len(promises) > before + 500)

    with Fleet(server.url, tmp_path) as fleet, Client.connect(server.url, SETTINGS) as client:
        client.schedule(TOPIC, delay=0, key="first")
        promises["first"] = Promise(0, must_run=True)
        for _ in range(2):
            fleet.start("scheduler")
            fleet.start("worker", TOPIC, "g")
        producers = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
        for producer in producers:
            producer.start()
        for shards in (4, 2, 6):
            wait_for_more()
            client.set_shards(TOPIC, shards)
        wait_for_more()
        stop.set()
        for producer in producers:
            producer.join()
        eventually(lambda: set(promises) <= {run.id for run in fleet.runs()})
        transport = Transport(Address(server.url))
        promotions = [
            promotion
            for shard in range(6)
            for promotion in read_promotions(
                transport.send(command("XRANGE", Keys().shard(TOPIC, shard).ready, "-", "+", read=list))
            )
        ]
        verdict = judge(promises, promotions, fleet.runs())
        assert verdict.is_clean, f"{verdict}\n{fleet.output()}"
        assert len(promises) > 1_000
