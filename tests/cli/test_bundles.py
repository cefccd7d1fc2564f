"""bundle show, cancel."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import wheelq
from wheelq import Client, Continuation, JobSpec


@pytest.fixture
def bundle(url: str, topic: str) -> str:
    with Client.connect(url) as client:
        client.configure(f"{topic}-next", keep_done_ms=60_000)
        specs = [JobSpec(n, delay=600) for n in range(3)]
        return client.schedule_many(topic, specs, then=Continuation(f"{topic}-next", key="k")).bundle or ""


def test_show_tells_how_many_members_stand_where(url: str, topic: str, bundle: str) -> None:
    shown = wheelq("bundle", "show", bundle, url=url).out
    assert f"{bundle} is closed; when all are done, {topic}-next/k follows" in shown
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["members", "3"],
        ["done", "0"],
        ["dead", "0"],
        ["cancelled", "0"],
        ["left", "3"],
    ]
    assert json.loads(wheelq("bundle", "show", bundle, "--json", url=url).out)["left"] == 3


def test_cancel_ends_it(url: str, bundle: str) -> None:
    assert wheelq("bundle", "cancel", bundle, "--yes", url=url).out == "3 members cancelled\n"
    assert json.loads(wheelq("bundle", "cancel", bundle, "--yes", "--json", url=url).out)["cancelled"] == 0
    assert "is cancelled" in wheelq("bundle", "show", bundle, url=url).out


def test_one_that_is_not_known(url: str, topic: str) -> None:
    shown = wheelq("bundle", "show", f"{topic}:01H", url=url)
    assert (shown.code, "is not known" in shown.out) == (3, True)
    assert wheelq("bundle", "cancel", f"{topic}:none", "--yes", url=url).code == 3
