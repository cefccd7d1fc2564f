"""Fixtures: a shard of its own for every test, and what most tests begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lua.shard import Ear, Shard
from wheelq.protocol.calls.worker import Entry


@pytest.fixture
def shard(url: str, topic: str) -> Iterator[Shard]:
    """An empty shard on the shared server."""
    shard = Shard(url, topic)
    yield shard
    shard.close()


@pytest.fixture
def ear(shard: Shard) -> Iterator[Ear]:
    """Receives the messages of the shard's `near` channel."""
    ear = Ear(shard)
    yield ear
    ear.close()


@pytest.fixture
def token(shard: Shard) -> str:
    """The token of a leader, which has taken the lease of the empty shard."""
    return shard.lead()


@pytest.fixture
def a(shard: Shard) -> Entry:
    """The delivery of job `a` to consumer `w1` of group `g`."""
    [delivered] = shard.deliver("a")
    return delivered
