"""How a topic stands is confirmed as its jobs are: what no topic names no scheduler finds.

The hash of topics and a shard may be on two masters of a cluster. Here they are two servers, of which only one has a
replica, so that a confirmation that was not waited for shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest

from tests.faults.test_durability import Pair, Start, ask, pair
from tests.transports import BlockingWith, ReplyLost
from wheelq import AsyncClient, Client, JobSpec
from wheelq.embedded import EmbeddedServer
from wheelq.errors import NotReplicated
from wheelq.protocol.call import Call
from wheelq.protocol.keys import Keys
from wheelq.settings import ClientSettings
from wheelq.transport import Address, AsyncTransport, Transport

__all__ = ["pair"]

T = TypeVar("T")
KEYS = Keys()
SETTINGS = ClientSettings(durability="replicated", replicated_timeout_ms=100)


@dataclass(frozen=True)
class Places:
    """Where the hash of topics is, and where all shards are."""

    topics: str
    shards: str

    def of(self, call: Call[object]) -> str:
        return self.topics if KEYS.topics in (*call.keys, *call.args) else self.shards


class Split(Transport):
    """A way to two servers."""

    def __init__(self, places: Places) -> None:
        super().__init__(Address(places.shards))
        self._places, self._topics = places, Transport(Address(places.topics))

    def send(self, call: Call[T]) -> T:
        return self._topics.send(call) if self._places.of(call) == self._places.topics else super().send(call)

    def close(self) -> None:
        self._topics.close()
        super().close()


class AsyncSplit(AsyncTransport):
    """The same on asyncio."""

    def __init__(self, places: Places) -> None:
        super().__init__(Address(places.shards))
        self._places, self._topics = places, AsyncTransport(Address(places.topics))

    def spare(self) -> AsyncTransport:
        return AsyncSplit(self._places)

    async def send(self, call: Call[T]) -> T:
        if self._places.of(call) == self._places.topics:
            return await self._topics.send(call)
        return await super().send(call)

    async def close(self) -> None:
        await self._topics.close()
        await super().close()


class Following(Transport):
    """A way to the primary, wherever that is."""

    def __init__(self, url: str) -> None:
        super().__init__(Address(url))
        self._primary = Transport(Address(url))

    def follow(self, url: str) -> None:
        """Another server is the primary now."""
        self._primary.close()
        self._primary = Transport(Address(url))

    def send(self, call: Call[T]) -> T:
        return self._primary.send(call)

    def stream(self, calls: Iterable[Call[T]], refused: Callable[[], object] | None = None) -> Iterator[T]:
        return self._primary.stream(calls, refused)

    def close(self) -> None:
        self._primary.close()


@pytest.fixture
def lonely(private_server: Start) -> EmbeddedServer:
    """A server without a replica."""
    return private_server(port=0)


@pytest.fixture
def unconfirmed_topics(pair: Pair, lonely: EmbeddedServer) -> Places:
    return Places(topics=lonely.url, shards=pair.primary.url)


@pytest.fixture
def unconfirmed_shards(pair: Pair, lonely: EmbeddedServer) -> Places:
    return Places(topics=pair.primary.url, shards=lonely.url)


def known(url: str) -> bool:
    return bool(ask(url, "HEXISTS", KEYS.topics, "orders"))


# The first job of a topic


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_is_not_safe_before_its_topic_is(unconfirmed_topics: Places, count: int) -> None:
    """The replica has the job and not the topic: were that forgotten, no scheduler would look for the job."""
    with Client(Split(unconfirmed_topics), settings=SETTINGS) as client, pytest.raises(NotReplicated) as told:
        schedule(client, count)
    assert (told.value.confirmed, told.value.wanted, len(told.value.receipts)) == (0, 1, count)


def schedule(client: Client, count: int) -> None:
    if count == 1:
        client.schedule("orders", delay=60)
    else:
        client.schedule_many("orders", [JobSpec(delay=60)] * count)


async def test_a_job_is_not_safe_before_its_topic_is_with_an_asyncio_client(unconfirmed_topics: Places) -> None:
    async with AsyncClient(AsyncSplit(unconfirmed_topics), settings=SETTINGS) as client:
        with pytest.raises(NotReplicated):
            await client.schedule("orders", delay=60)


def test_a_topic_that_is_there_already_is_confirmed_too(unconfirmed_topics: Places) -> None:
    """Whoever made it may not have waited."""
    with Client(Split(unconfirmed_topics)) as client:
        client.schedule("orders", delay=60)
        with pytest.raises(NotReplicated):
            client.schedule("orders", delay=60, durability="replicated")


def test_a_topic_is_confirmed_once_as_long_as_it_is_known(pair: Pair) -> None:
    """Once more after its first job, when the server could have lost it in between."""
    counting = BlockingWith(pair.primary.url, ReplyLost("register_topic", after=2, times=2))
    with Client(counting, settings=ClientSettings(durability="replicated", replicated_timeout_ms=9_000)) as client:
        for _ in range(3):
            client.schedule("orders", delay=60)
    assert known(pair.replica.url)


def test_a_lost_reply_to_the_registration_is_mended(pair: Pair) -> None:
    transport = BlockingWith(pair.primary.url, ReplyLost("register_topic"))
    with Client(transport, settings=ClientSettings(durability="replicated", replicated_timeout_ms=9_000)) as client:
        assert client.schedule("orders", delay=60).created
    assert known(pair.replica.url)


@pytest.mark.every_server
def test_after_a_failover_a_topic_that_was_not_confirmed_is_registered_again(pair: Pair) -> None:
    """The client still knows the topic, and the new primary does not."""
    transport = Following(pair.primary.url)
    with Client(transport, settings=SETTINGS) as client:
        ask(pair.replica.url, "REPLICAOF", "NO", "ONE")
        with pytest.raises(NotReplicated):
            client.schedule("orders", delay=60)
        assert not known(pair.replica.url)
        pair.primary.kill()
        transport.follow(pair.replica.url)
        with pytest.raises(NotReplicated):  # there is no second replica
            client.schedule("orders", delay=60)
    assert known(pair.replica.url)


# Changes


def test_a_change_whose_terms_are_not_confirmed_says_so(unconfirmed_shards: Places) -> None:
    with Client(Split(unconfirmed_shards), settings=SETTINGS) as client:
        Client(Split(unconfirmed_shards)).configure("orders")
        with pytest.raises(NotReplicated, match="it is done, but only 0 of 1 confirmed it"):
            client.set_shards("orders", 3)
        assert client.topics()[0].shards == 3


async def test_a_change_that_is_published_unconfirmed_says_so(unconfirmed_topics: Places) -> None:
    async with AsyncClient(AsyncSplit(unconfirmed_topics), settings=SETTINGS) as client:
        await AsyncClient(AsyncSplit(unconfirmed_topics)).configure("orders")
        for change in (
            lambda: client.set_shards("orders", 3),
            lambda: client.configure("orders", max_rate=5.0),
            lambda: client.pause("orders"),
            lambda: client.resume("orders"),
        ):
            with pytest.raises(NotReplicated):
                await change()
        [info] = await client.topics()
        assert (info.shards, info.settings.max_rate, info.settings.paused) == (3, 5.0, False)


@pytest.mark.every_server
def test_when_a_change_returns_the_replica_has_it(pair: Pair) -> None:
    patient = ClientSettings(durability="replicated", replicated_timeout_ms=9_000)
    with Client.connect(pair.primary.url) as client:
        client.configure("orders")
    with Client(Transport(Address(pair.primary.url)), settings=patient) as client:
        client.set_shards("orders", 3)
    with Client.connect(pair.replica.url) as replica:
        assert next(info for info in replica.topics() if info.name == "orders").shards == 3
    assert [ask(pair.replica.url, "GET", KEYS.shard("orders", n).shards) for n in range(3)] == [b"3"] * 3


def test_a_job_that_relies_on_a_change_by_another_is_not_safe_before_that_is(unconfirmed_topics: Places) -> None:
    """Were the change forgotten, no scheduler would lead the shard into which the job went."""
    with Client(Split(unconfirmed_topics)) as other, Client(Split(unconfirmed_topics), settings=SETTINGS) as client:
        client.schedule("orders", delay=60, durability="server")
        other.set_shards("orders", 3)
        with pytest.raises(NotReplicated) as told:
            client.schedule("orders", delay=60)
        assert len(told.value.receipts) == 1
