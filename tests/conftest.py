"""Fixtures: real servers, and topics that no other test knows. And which tests a run takes.

| run                               | takes                                                                      |
|-----------------------------------|----------------------------------------------------------------------------|
| `pytest`                          | every promise once: on Valkey; `tests/lua` and tests marked `every_server` |
|                                   | on each kind of server (see `servers.py`); no `long`, no `soak`            |
| `pytest -m quick`                 | what needs no processes: `tests/unit`, `tests/lua` on Valkey, house rules  |
| `pytest --every-server`           | every test on each kind of server, but those of the rooms above the library|
| `pytest --another-server`         | half of these on one other kind, too; the test's name decides on which     |
| `… --every-server -m elsewhere`   | of these, only what the plain run leaves out                               |
| `pytest --servers redis62,redis7` | every test on these kinds                                                  |

Each pytest-xdist worker starts servers of its own.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.servers import FLAVOURS
from wheelq.embedded import EmbeddedServer

ABOVE = ("cli", "http", "callbacks", "contrib", "web", "loadtest")
"""Folders whose tests are about what lies above the library: one kind of server proves them."""
QUICK = ("unit", "lua", "test_house_rules.py")

hypothesis.settings.register_profile(  # timings are not judged: machines may be busy
    "wheelq", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("wheelq")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-server", action="store_true", help="run tests of the library on each kind of server")
    parser.addoption("--another-server", action="store_true", help="run half of them on one other kind, too")
    parser.addoption("--servers", default="", help=f"run on these kinds, separated by commas: {','.join(FLAVOURS)}")


def pytest_configure(config: pytest.Config) -> None:
    if unknown := set(_named(config)) - set(FLAVOURS):
        raise pytest.UsageError(f"--servers: {', '.join(sorted(unknown))} unknown; there are {', '.join(FLAVOURS)}")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background: its processes would ignore it, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if (path := os.environ.get("SKIPPED_TESTS")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skipped(Path(path)))


class Skipped:
    """Stores which tests were skipped, so that `pytest @FILE` runs them where their programs and servers are."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._ids.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text("\n".join(self._ids))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_binary" in metafunc.fixturenames:
        servers = _named(metafunc.config) or _servers_of(metafunc.definition)
        metafunc.parametrize("server_binary", servers, indirect=True, scope="session")


def _named(config: pytest.Config) -> list[str]:
    named: str = config.getoption("--servers")
    return [name.strip() for name in named.split(",")] if named else []


def _servers_of(test: pytest.Item) -> Sequence[Any]:
    first, *others = FLAVOURS
    folder = test.path.parent.name
    if folder == "lua" or test.get_closest_marker("every_server"):
        return list(FLAVOURS)
    if folder in ABOVE:
        return [first]
    if not test.config.getoption("--every-server"):
        mine = zlib.crc32(test.name.encode()) % (2 * len(others))  # half of these places have no server
        others = others[mine : mine + 1] if test.config.getoption("--another-server") else []
    return [first, *(pytest.param(other, marks=pytest.mark.elsewhere) for other in others)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick`, only what has quick tests is imported."""
    is_top = collection_path.parent == Path(__file__).parent
    return True if config.option.markexpr == "quick" and is_top and collection_path.name not in QUICK else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Marks what is quick before `-m` chooses; of what is chosen, puts slow tests first in each process's share.

    pytest-xdist deals the tests out in this order.
    """
    for item in items:
        if _is_quick(item):
            item.add_marker(pytest.mark.quick)
    yield
    slow = [item for item in items if _is_marked(item, "slow", "long")]
    others = iter([item for item in items if not _is_marked(item, "slow", "long")])
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = -(-len(items) // processes)
    ordered: list[pytest.Item] = []
    for process in range(processes):
        first = slow[process::processes]
        ordered += [*first, *islice(others, share - len(first))]
    items[:] = [*ordered, *others]


def pytest_collection_finish() -> None:
    """The collected tests live until the end, so the garbage collector does not have to scan them."""
    gc.collect()
    gc.freeze()


def _is_marked(item: pytest.Item, *marks: str) -> bool:
    return any(item.get_closest_marker(mark) for mark in marks)


def _is_quick(item: pytest.Item) -> bool:
    if item.path.parent.name not in QUICK and item.path.name not in QUICK:
        return False
    servers = getattr(item, "callspec", None) and item.callspec.params.get("server_binary")  # type: ignore[attr-defined]
    return servers in (None, next(iter(FLAVOURS))) and not _is_marked(item, "slow", "long", "soak")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which every test was skipped has shown nothing: it fails, as one without tests does."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    has_run = reporter and not session.config.option.collectonly
    if exitstatus == pytest.ExitCode.OK and has_run and not reporter.stats.get("passed"):
        reporter.write_line("Every test was skipped, so nothing was shown.", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


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

    Takes the arguments of `EmbeddedServer`; what is still running at the end of the test is killed. Every write is
    synced: with "everysec" a disk that lags (tests run side by side) may cost a killed server what it had answered for.
    """
    with ExitStack() as running:

        def start(directory: Path | None = None, **settings: Any) -> EmbeddedServer:
            server = EmbeddedServer(directory, **{"binary": server_binary, "fsync": "always", **settings})
            running.enter_context(server)
            running.callback(lambda: server.is_running and server.kill())  # one with replicas would wait for them
            return server

        yield start
