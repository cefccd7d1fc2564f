"""Fixtures for pytest, which finds them wherever wheelq is installed.

    wheelq          a `WheelqTest`, for plain tests
    async_wheelq    an `AsyncWheelqTest`, for tests on asyncio, with any plugin that runs them

While a test uses one, `Client.connect()`, `AsyncClient.connect()` and `Worker.connect()` without a URL connect to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # pytest loads this file for every run, so imports wait until a fixture is used
    from wheelq.testing.kit import AsyncWheelqTest, WheelqTest


@pytest.fixture
def wheelq() -> Iterator[WheelqTest]:
    """A wheelq in memory: `wheelq.advance(hours=3)` runs the jobs that fall due."""
    from wheelq.testing.kit import WheelqTest

    with WheelqTest() as kit:
        yield kit


@pytest.fixture
def async_wheelq() -> Iterator[AsyncWheelqTest]:
    """A wheelq in memory: `await async_wheelq.advance(hours=3)` runs the jobs that fall due."""
    from wheelq.testing.kit import AsyncWheelqTest

    with AsyncWheelqTest() as kit:
        yield kit
