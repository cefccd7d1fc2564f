"""Fixtures: a shard of its own for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lua.shard import Ear, Shard


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
