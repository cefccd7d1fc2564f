"""Fixtures: real servers, and topics that no other test knows.

Every test that asks for `url`, `server` or `private_server` runs once per server flavour (see `servers.py`). Tests of
the rooms above the library run on one flavour only. An option chooses others: `python -m pytest --servers
valkey,redis62`. Each pytest-xdist worker starts servers of its own.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.servers import FLAVOURS
from wheelq.embedded import EmbeddedServer

ONE_WILL_DO = ("cli", "http", "callbacks", "contrib", "web", "loadtest")
"""Folders whose tests are about what lies above the library, whatever the server below it is."""

hypothesis.settings.register_profile(  # timings are not judged: machines may be busy
    "wheelq", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("wheelq")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--servers",
        default="",
        help=f"the servers to run on, separated by commas (default: {','.join(FLAVOURS)}; "
        f"{' '.join(ONE_WILL_DO)}: the first of them)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if unknown := set(_wanted(config)) - set(FLAVOURS):
        raise pytest.UsageError(f"--servers: {', '.join(sorted(unknown))} unknown; there are {', '.join(FLAVOURS)}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background: its processes would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_binary" in metafunc.fixturenames:
        wanted = _wanted(metafunc.config)
        folder = metafunc.definition.path.parent.name
        if folder in ONE_WILL_DO and not metafunc.config.getoption("--servers"):
            wanted = wanted[:1]
        metafunc.parametrize("server_binary", wanted, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long tests first in each process's share of the tests: pytest-xdist deals them out in this order."""
    long = [item for item in items if item.get_closest_marker("long")]
    others = iter([item for item in items if not item.get_closest_marker("long")])
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = -(-len(items) // processes)
    ordered: list[pytest.Item] = []
    for process in range(processes):
        first = long[process::processes]
        ordered += [*first, *islice(others, share - len(first))]
    items[:] = [*ordered, *others]


def _wanted(config: pytest.Config) -> list[str]:
    named: str = config.getoption("--servers")
    return [name.strip() for name in named.split(",")] if named else list(FLAVOURS)


@pytest.fixture(scope="session")
def server_binary(request: pytest.FixtureRequest) -> Path:
    """The binary of the flavour that this test runs on; skips the test if it is not installed."""
    flavour = FLAVOURS[request.param]
    binary = flavour.find()
    if binary is None:
        pytest.skip(flavour.missing)
    return binary


@pytest.fixture(scope="session")
def server(server_binary: Path) -> Iterator[EmbeddedServer]:
    """A running server that tests share: use a `topic` of your own, leave settings alone, never flush it."""
    with EmbeddedServer(binary=server_binary, appendonly=False) as running:
        yield running


@pytest.fixture
def url(server: EmbeddedServer) -> str:
    """The URL of the shared server."""
    return server.url


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Sets the log levels back after each test: a command run in this process may have changed them (`--debug`)."""
    loggers = [logging.getLogger(), logging.getLogger("wheelq")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def private_server(server_binary: Path) -> Iterator[Callable[..., EmbeddedServer]]:
    """Starts servers that only this test uses, to be killed, restarted, filled or reconfigured.

    Takes the arguments of `EmbeddedServer`; what is still running at the end of the test is stopped. Every write is
    synced: with "everysec" a disk that lags (tests run side by side) may cost a killed server what it had answered for.
    """
    with ExitStack() as running:

        def start(directory: Path | None = None, **settings: Any) -> EmbeddedServer:
            return running.enter_context(
                EmbeddedServer(directory, **{"binary": server_binary, "fsync": "always", **settings})
            )

        yield start
