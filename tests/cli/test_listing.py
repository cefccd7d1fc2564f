"""jobs: lists of jobs by state."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.cli.commands import wheelq
from wheelq import Client

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


def test_jobs_refuses_an_unknown_state(url: str, topic: str) -> None:
    assert wheelq("jobs", topic, "--state", "cancelled", url=url).code == 2
