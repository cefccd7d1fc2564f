"""The dashboard's sign-in in a real browser, in front of two server processes on one Redis."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest.servers.nodes import free_port
from tests.cli.commands import Running, wheelq
from tests.waiting import eventually
from wheelq import Client
from wheelq.embedded import EmbeddedServer

SETTINGS = """[server]
access = "keys"
keys_ms = 200
"""


class Guarded:
    """Two processes of the dashboard that ask for keys, which they have read; and a topic with a job."""

    def __init__(self, url: str, sites: list[str]) -> None:
        self.url = url
        self.sites = sites
        self.id, self.token = self.key("*:*")
        _, self.reader = self.key("read:*")

    def key(self, *scopes: str) -> tuple[str, str]:
        """A new API key: its id, and what is typed to sign in."""
        chosen = [word for scope in scopes for word in ("--scope", scope)]
        said = wheelq("keys", "create", "somebody", *chosen, url=self.url)
        [token] = re.findall(r"wq_[\w-]+", said.out)[:1]
        return token.split("_")[1], token

    def revoke(self, id: str) -> None:
        """Take a key away, from outside of both processes."""
        assert wheelq("keys", "revoke", id, url=self.url).code == 0


@pytest.fixture
def guarded(start: Callable[..., Running], private_server: Callable[..., EmbeddedServer], tmp_path: Path) -> Guarded:
    url, ports = private_server(appendonly=False).url, [free_port(), free_port()]
    file = tmp_path / "wheelq.toml"
    file.write_text(SETTINGS)
    with Client.connect(url) as client:
        client.schedule("orders", delay=3_000, key="order-1")
    guarded = Guarded(url, [f"http://127.0.0.1:{port}" for port in ports])
    servers = [start(tmp_path, "server", "--port", port, "--config", file, url=url) for port in ports]
    for server in servers:
        server.wait_for("its manual is at")
    return guarded


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    return new_page()


def sign_in(page: Any, token: str) -> None:
    """Type a key, and wait for what follows."""
    page.fill("[name=key]", token)
    with page.expect_navigation():
        page.click("button:text-is('Sign in')")


def is_signed_in(page: Any, site: str) -> bool:
    """Whether a page of this process is shown without asking for a key."""
    page.goto(f"{site}/topics")
    return "/sign-in" not in page.url


def test_a_wrong_key_is_refused_and_a_right_one_leads_to_the_page_that_was_asked_for(
    page: Any, guarded: Guarded
) -> None:
    first, second = guarded.sites
    page.goto(f"{first}/topics/orders")
    assert page.url == f"{first}/sign-in?next=%2Ftopics%2Forders"
    token = guarded.token
    sign_in(page, f"{token[:-1]}{'a' if token[-1] != 'a' else 'b'}")
    assert "not known" in page.inner_text("[role=alert]")
    assert not is_signed_in(page, second)
    page.goto(f"{first}/topics/orders")
    sign_in(page, token)
    assert page.url == f"{first}/topics/orders"
    assert page.inner_text("h1") == "orders"
    assert is_signed_in(page, second), "another process accepts the session"


def test_signing_out_ends_the_session_in_both_processes(page: Any, guarded: Guarded) -> None:
    page.goto(guarded.sites[0])
    sign_in(page, guarded.token)
    with page.expect_navigation():
        page.click("button:text-is('Sign out')")
    assert page.url.startswith(f"{guarded.sites[0]}/sign-in")
    assert [is_signed_in(page, site) for site in guarded.sites] == [False, False]


def test_revoking_the_key_ends_the_session_in_every_process(page: Any, guarded: Guarded) -> None:
    page.goto(guarded.sites[0])
    sign_in(page, guarded.token)
    assert [is_signed_in(page, site) for site in guarded.sites] == [True, True]
    guarded.revoke(guarded.id)
    for site in guarded.sites:
        assert eventually(lambda site=site: not is_signed_in(page, site))


def test_a_key_that_only_reads_sees_jobs_and_no_actions(page: Any, guarded: Guarded) -> None:
    site = guarded.sites[0]
    page.goto(site)
    sign_in(page, guarded.reader)
    page.goto(f"{site}/topics/orders/jobs")
    assert "order-1" in page.inner_text("#jobs")
    for path in ("/", "/topics/orders", "/topics/orders/jobs", "/topics/orders/job?id=order-1", "/dead", "/recurring"):
        page.goto(f"{site}{path}")
        assert page.locator("form[method=post] button").all_inner_texts() == ["Sign out"], path
        assert page.locator("text=Cancel all of these").count() == 0, path
    assert "Read only" in page.inner_text("footer")
