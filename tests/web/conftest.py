"""Fixtures of the tests in a real browser: the browser, and a server of the dashboard and the manual."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running, stopped_at_the_end
from tests.waiting import PATIENCE
from wheelq.embedded import EmbeddedServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(
    scope="module"
)  # a process with an open browser has a running event loop, which other tests cannot bear
def browser() -> Iterator[Any]:
    """Chromium, whose contexts wait as long as tests do: its own thirty seconds may not do on a busy machine."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE * 1000)
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """`new_page(**options)` opens a page in a context of its own, which waits as long as tests do."""
    contexts = []

    def open_one(**options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(PATIENCE * 1000)
        return contexts[-1].new_page()

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def site(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an HTTP server on the server that tests share."""
    started: list[Running] = []
    for start in stopped_at_the_end(started):
        port = free_port()
        start(tmp_path_factory.mktemp("site"), "server", "--port", port, url=server.url).wait_for("its manual is at")
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    yield from stopped_at_the_end([])
