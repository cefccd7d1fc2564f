"""Fixtures of the tests of faults."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
import redis


@pytest.fixture
def prefix() -> str:
    """A wheelq of its own, for tests that run schedulers and workers: they serve all topics of one."""
    return f"faults-{secrets.token_hex(6)}"


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url, decode_responses=False) as connection:
        yield connection
