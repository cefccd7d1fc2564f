"""Brokers for tests, and what they have stored: librdkafka's mock cluster, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from loadtest.servers.kafka import PARTITIONS, KafkaCluster, stored
from tests.waiting import PATIENCE


class Sent(NamedTuple):
    """One message as a consumer sees it."""

    value: bytes
    key: bytes | None
    headers: list[tuple[str, bytes]]

    @property
    def job(self) -> str:
        return dict(self.headers)["wheelq-job"].decode()

    @property
    def attempt(self) -> str:
        return dict(self.headers)["wheelq-attempt"].decode()


@contextmanager
def cluster_of_one() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster()
    try:
        yield cluster
    finally:
        cluster.close()


async def sent(servers: str, topic: str, at_least: int, partitions: int = PARTITIONS) -> list[Sent]:
    """Wait for so many messages; returns all, and those that come right after them."""

    def read() -> list[Sent]:
        found: list[Any] = []
        for some in stored(servers, topic, partitions):
            found += some
            if not some and len(found) >= at_least:
                break
        return [Sent(one.value(), one.key(), one.headers() or []) for one in found]

    async with asyncio.timeout(PATIENCE):
        return await asyncio.to_thread(read)
