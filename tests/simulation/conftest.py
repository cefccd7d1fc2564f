"""Fixtures for tests of the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.simulation.operations import OPERATIONS


@pytest.fixture
def known() -> Iterator[dict[str, Any]]:
    """The operations, to which a test may add some."""
    before = dict(OPERATIONS)
    yield OPERATIONS
    OPERATIONS.clear()
    OPERATIONS.update(before)
