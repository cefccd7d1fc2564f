"""Fixtures for the deployment kit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cli.commands import Running, stopped_at_the_end


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """`start(directory, *arguments, url=…)` runs a command in a process of its own; ended with the test."""
    yield from stopped_at_the_end([])
