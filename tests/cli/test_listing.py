"""jobs: lists of jobs by state."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cli.commands import wheelq
from wheelq import Client, JobSpec
from wheelq.cli import jobs
from wheelq.producer import listing

MOMENT = datetime(2031, 1, 1, tzinfo=UTC)


def test_jobs_lists_those_of_one_state(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        for n in range(3):
            client.schedule(topic, delay=600 + n, key=f"j{n}")
    lines = wheelq("jobs", topic, url=url).out.splitlines()
    assert [line.split()[:2] for line in lines] == [["id", "due"], ["j0", "in"], ["j1", "in"], ["j2", "in"]]
    assert wheelq("jobs", topic, "--state", "dead", url=url).out == f"no dead jobs in {topic}\n"
    assert wheelq("jobs", topic, "--since", "+1h", url=url).out == f"no waiting jobs in {topic}\n"


def test_jobs_goes_on_at_a_cursor(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        client.schedule(topic, at=MOMENT, key="a")
        client.schedule(topic, at=MOMENT, key="b")
    answer = wheelq("jobs", topic, "--limit", 1, "--json", url=url).json
    assert [(job["id"], job["state"], job["at"]) for job in answer["jobs"]] == [("a", "waiting", MOMENT.isoformat())]
    rest = wheelq("jobs", topic, "--cursor", answer["cursor"], "--json", url=url).json
    assert ([job["id"] for job in rest["jobs"]], rest["cursor"]) == (["b"], None)
    assert "more: --cursor " in wheelq("jobs", topic, "-n", 1, url=url).out


def test_jobs_finds_ids_by_their_beginning_and_says_where_it_stopped(
    url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client.connect(url) as client:
        client.schedule_many(topic, [JobSpec(key=f"bill-{n}", at=MOMENT) for n in range(1_000)])
        client.schedule_many(topic, [JobSpec(key=f"order-4{n}", at=MOMENT) for n in range(2)])
    found = wheelq("jobs", topic, "--prefix", "order-4", "--json", url=url)
    assert [job["id"] for job in found.json["jobs"]] == ["order-40", "order-41"]
    assert (found.json["cursor"], found.err) == (None, "")
    monkeypatch.setattr(listing, "ROUNDS", 1)
    monkeypatch.setattr(jobs, "SEARCHES", 1)
    early = wheelq("jobs", topic, "--prefix", "order-4", url=url)
    assert "more: --cursor " in early.out
    assert early.err == "stopped early: there are more jobs to look at, from --cursor on\n"


def test_jobs_refuses_an_unknown_state(url: str, topic: str) -> None:
    assert wheelq("jobs", topic, "--state", "cancelled", url=url).code == 2
