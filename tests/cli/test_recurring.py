"""recurring put, list, show, pause, resume, trigger, remove: answers in words, in JSON and as exit codes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cli.commands import wheelq
from wheelq import Client


def test_put_says_when_it_is_next_due(url: str, topic: str) -> None:
    said = ("recurring", "put", topic, "nightly", '{"a": 1}', "--cron", "0 2 * * *", "--tz", "Europe/Berlin")
    first = wheelq(*said, url=url)
    assert first.code == 0
    assert first.out.startswith(f"{topic}/nightly is new; next due 20")
    assert "is unchanged" in wheelq(*said, url=url).out
    assert f"{topic}/nightly is changed; next due" in wheelq(*said, "--jitter", "5m", url=url).out


def test_put_takes_everything_that_the_library_takes(url: str, topic: str) -> None:
    options = ("--every", "90m", "--start", "2030-01-01T00:00Z", "--end", "2031-01-01T00:00Z", "--jitter", "30s")
    more = ("--missed", "skip", "--grace", "2m", "--header", "source=cli", "--json")
    answer = wheelq("recurring", "put", topic, "tick", "-", *options, *more, url=url, stdin="[1]").json
    assert (answer["outcome"], answer["next"][:10]) == ("created", "2030-01-01")
    with Client.connect(url) as client:
        found = client.recurring.get(topic, "tick")
    assert found is not None
    rule = found.rule
    assert (rule.every_ms, rule.jitter_ms, rule.missed, rule.grace_ms) == (5_400_000, 30_000, "skip", 120_000)
    assert (found.payload, found.headers) == ([1], {"source": "cli"})
    assert rule.end_ms == datetime(2031, 1, 1, tzinfo=UTC).timestamp() * 1000


def test_list_and_show(url: str, topic: str) -> None:
    assert "no recurring jobs" in wheelq("recurring", "list", topic, url=url).out
    wheelq("recurring", "put", topic, "nightly", '{"a": 1}', "--cron", "0 2 * * *", url=url)
    wheelq("recurring", "put", topic, "tick", "--every", "1h30m", url=url)
    wheelq("recurring", "pause", topic, "tick", url=url)
    wheelq("recurring", "put", topic, "past", "--every", "60", "--end", "2020-01-01T00:00Z", url=url)
    lines = wheelq("recurring", "list", topic, url=url).out.splitlines()
    assert [line.split()[1] for line in lines] == ["name", "nightly", "past", "tick"]
    assert "0 2 * * * (UTC)" in lines[1]
    assert "never: it has ended" in lines[2]
    assert "every 1h 30m" in lines[3]
    assert lines[3].split()[-1] == "paused"
    [first, *_] = wheelq("recurring", "list", topic, "--json", url=url).json
    assert (first["name"], first["rule"]["cron"], first["payload"]) == ("nightly", "0 2 * * *", {"a": 1})
    shown = wheelq("recurring", "show", topic, "nightly", url=url).out
    assert f"{topic}/nightly occurs 0 2 * * * (UTC)" in shown
    assert '{"a": 1}' in shown
    assert wheelq("recurring", "show", topic, "nightly", "--json", url=url).json["is_paused"] is False


def test_pause_resume_trigger_and_remove_say_what_happened(url: str, topic: str) -> None:
    wheelq("recurring", "put", topic, "nightly", "--cron", "@daily", url=url)
    assert "is paused" in wheelq("recurring", "pause", topic, "nightly", url=url).out
    assert wheelq("recurring", "pause", topic, "nightly", "--json", url=url).json["outcome"] == "unchanged"
    assert "occurs again" in wheelq("recurring", "resume", topic, "nightly", url=url).out
    assert f"{topic}/nightly@" in wheelq("recurring", "trigger", topic, "nightly", url=url).out
    assert wheelq("recurring", "trigger", topic, "nightly", "--json", url=url).json["created"]
    assert "is removed" in wheelq("recurring", "remove", topic, "nightly", url=url).out


@pytest.mark.parametrize("command", ["show", "pause", "resume", "trigger", "remove"])
def test_a_missing_recurring_job_is_exit_code_3(url: str, topic: str, command: str) -> None:
    answer = wheelq("recurring", command, topic, "nightly", url=url)
    assert answer.code == 3
    assert "not found" in answer.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give either --cron"),
        (["--cron", "0 25 * * *"], "'25' is not a valid hour: use 0 to 23"),
        (["--cron", "@daily", "--tz", "Berlin"], "did you mean Europe/Berlin?"),
        (["{", "--every", "1h"], "payload: '{' is not JSON"),
        (["--every", "soon"], "'soon' is not a duration"),
    ],
)
def test_a_mistake_is_named_and_is_exit_code_2(url: str, topic: str, options: list[str], words: str) -> None:
    answer = wheelq("recurring", "put", topic, "nightly", *options, url=url)
    assert answer.code == 2
    assert words in answer.err
    assert "--text" not in answer.err, "this command has no such option"
