"""schedule, cancel, reschedule, run-now, job: definite answers in words, in JSON and as exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.commands import wheelq
from wheelq import Client, JobState, Settings, __version__
from wheelq.embedded import EmbeddedServer
from wheelq.errors import Unavailable

NOBODY = "redis://127.0.0.1:1"

# Scheduling


def test_schedule_says_what_and_when(url: str, topic: str) -> None:
    answer = wheelq("schedule", topic, '{"id": 42}', "--delay", "30m", "--key", "order-42", url=url)
    assert answer.code == 0
    assert answer.out.startswith(f"{topic}/order-42 scheduled, due 20")
    assert re.search(r", in (30m|29m 5\d?s)\n$", answer.out), answer.out


def test_a_job_has_limits_of_its_own_and_shows_them(url: str, topic: str) -> None:
    wheelq("schedule", topic, "--delay", "1h", "--key", "a", "--attempts", "3", "--timeout", "1m", url=url)
    shown = wheelq("job", topic, "a", url=url).out
    assert "at most 3 attempts" in shown
    assert "at most 1m for each attempt" in shown
    found = wheelq("job", topic, "a", "--json", url=url).json
    assert (found["max_attempts"], found["timeout"]) == (3, 60)


def test_a_job_that_is_held_back_says_why(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        client.configure(topic, key_concurrency=1)
        for id in ("first", "second"):
            client.schedule(topic, key=id, partition_key="ann", delay=3_600)
            client.run_now(topic, id, partition_key="ann")
    said = "held back: partition key ann is at a limit of the topic"
    shown = [wheelq("job", topic, id, url=url).out for id in ("first", "second")]
    assert [said in one for one in shown] == [False, True]


def test_calls_debounce_a_key(url: str, topic: str) -> None:
    call = ("schedule", topic, "--key", "a", "--delay", "1h", "--on-duplicate", "replace", "--max-wait", "90m")
    for _ in range(2):
        assert wheelq(*call, url=url).code == 0
    wheelq("run-now", topic, "a", url=url)
    assert "a~second scheduled" in wheelq(*call, url=url).out
    assert "second job of its key: a~second" in wheelq("job", topic, "a", url=url).out
    refused = wheelq("schedule", topic, "--delay", "1h", "--max-wait", "90m", url=url)
    assert "max_wait" in refused.err


def test_distances_from_now_are_by_the_servers_clock(url: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose clock was an hour ahead, a job that was due in a minute was shown as "59m ago"."""
    right = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: right() + 3_600 * 10**9)
    soon = re.compile(r"in (10m|9m 5\d?s)\b")
    assert soon.search(wheelq("schedule", topic, "--key", "a", "--delay", "10m", url=url).out)
    for words in (("job", topic, "a"), ("jobs", topic), ("jobs", topic, "--since", "1m", "--until", "+11m")):
        shown = wheelq(*words, url=url).out
        assert soon.search(shown), shown


def test_a_topic_that_is_new_is_called_so_and_the_near_one_named(url: str, topic: str) -> None:
    """On stderr: scripts read the answer."""
    first = wheelq("schedule", topic, "--delay", "1h", "--json", url=url)
    again = wheelq("schedule", topic, "--delay", "1h", url=url)
    misspelt = wheelq("schedule", topic + "s", "--delay", "1h", url=url)
    assert first.json["created"]
    assert first.err.startswith(f"topic {topic} is new")
    assert again.err == ""
    assert re.search(rf"^topic {topic}s is new: did you mean .*\b{topic}\b.*\?$", misspelt.err)
    assert misspelt.code == 0


def test_the_first_topic_of_a_prefix_names_another_prefix_in_use(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    """Perhaps the producer has the wrong one."""
    own_url = private_server().url
    with Client.connect(own_url, Settings(prefix="shop")) as client:
        client.schedule("orders", delay=60)
    said = wheelq("schedule", "orders", "--delay", "1h", url=own_url).err
    assert said == (
        "topic orders is new, and the first of its prefix; in use on this server: the prefix shop (WHEELQ_PREFIX)\n"
    )


def test_a_scheduled_job_is_there(url: str, topic: str) -> None:
    wheelq("schedule", topic, '{"id": 42}', "--delay", "1h", "--key", "k", "--header", "source=web", url=url)
    with Client.connect(url) as client:
        found = client.get(topic, "k")
    assert found is not None
    assert (found.payload, found.headers, found.state) == ({"id": 42}, {"source": "web"}, JobState.WAITING)


def test_schedule_answers_scripts_in_json(url: str, topic: str) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    answer = wheelq("schedule", topic, "--at", at.isoformat(), "--key", "k", "--json", url=url).json
    assert answer["created"]
    assert (answer["topic"], answer["id"]) == (topic, "k")
    assert datetime.fromisoformat(answer["due"]) - at < timedelta(milliseconds=1)


def test_a_time_from_now_is_by_the_servers_clock(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        before = client.schedule(topic, delay=600)
        answer = wheelq("schedule", topic, "--at", "+10m", "--json", url=url).json
        after = client.schedule(topic, delay=600)
    assert before.due <= datetime.fromisoformat(answer["due"]) <= after.due


@pytest.mark.parametrize(
    ("arguments", "stdin", "payload"),
    [
        ([], None, None),
        (["[1, 2]"], None, [1, 2]),
        (["plain words", "--text"], None, "plain words"),
        (["-"], '{"from": "stdin"}', {"from": "stdin"}),
        (["-", "--text"], "from stdin", "from stdin"),
    ],
)
def test_a_payload_is_json_or_text_from_the_command_or_stdin(
    url: str, topic: str, arguments: list[str], stdin: str | None, payload: object
) -> None:
    wheelq("schedule", topic, *arguments, "--delay", "1h", "--key", "k", url=url, stdin=stdin)
    assert wheelq("job", topic, "k", "--json", url=url).json["payload"] == payload


def test_a_live_key_is_kept_replaced_or_refused(url: str, topic: str) -> None:
    command = ("schedule", topic, "--delay", "1h", "--key", "k")
    wheelq(*command, url=url)
    assert "was there already and is unchanged" in wheelq(*command, url=url).out
    assert "took the new payload and time" in wheelq(*command, "--on-duplicate", "replace", url=url).out
    refused = wheelq(*command, "--on-duplicate", "raise", url=url)
    assert (refused.code, refused.err) == (1, f"topic '{topic}' already has a live job with id k\n")


# What is waiting


def test_a_waiting_job_is_rescheduled_shown_and_cancelled(url: str, topic: str) -> None:
    wheelq("schedule", topic, "7", "--delay", "1h", "--key", "k", "--header", "a=b", url=url)
    assert wheelq("reschedule", topic, "k", "--delay", "2d", url=url) == (0, f"{topic}/k rescheduled\n", "")
    shown = wheelq("job", topic, "k", url=url)
    assert shown.code == 0
    assert shown.out.startswith(f"{topic}/k is waiting, due 20")
    assert re.search(r", in (2d|1d 23h), attempt 1\n7\na=b\n$", shown.out), shown.out  # rounded down after a second
    assert wheelq("cancel", topic, "k", url=url) == (0, f"{topic}/k cancelled: it will not run\n", "")


@pytest.mark.parametrize("command", [["cancel"], ["reschedule", "--delay", "1"], ["run-now"]])
def test_no_such_job_is_exit_code_3(url: str, topic: str, command: list[str]) -> None:
    answer = wheelq(*command, topic, "k", url=url)
    assert (answer.code, answer.out) == (3, f"{topic}/k not found: no live job has this id\n")
    assert wheelq(*command, topic, "k", "--json", url=url).json["outcome"] == "not_found"


def test_job_of_no_live_id_is_exit_code_3(url: str, topic: str) -> None:
    assert wheelq("job", topic, "k", url=url).code == 3
    assert wheelq("job", topic, "k", "--json", url=url) == (3, "null\n", "")


@pytest.mark.parametrize("command", [["cancel"], ["reschedule", "--delay", "1"], ["run-now"]])
def test_too_late_is_exit_code_4(url: str, topic: str, command: list[str]) -> None:
    wheelq("schedule", topic, "--delay", "1h", "--key", "k", url=url)
    assert wheelq("run-now", topic, "k", url=url) == (0, f"{topic}/k is with the workers now\n", "")
    answer = wheelq(*command, topic, "k", url=url)
    assert (answer.code, answer.out) == (4, f"{topic}/k is with the workers already, or waits for a retry: too late\n")


# What cannot work: one sentence, exit code 2, nothing sent (the address leads nowhere)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["t", "--delay", "-5"], "delay: must not be negative"),
        (["t", "--delay", "99999d"], "delay: 8639913600.0 s is beyond the limit"),
        (["t", "--delay", "soon"], "delay: 'soon' is not a duration: write 30m"),
        (["t", "--at", "9999-12-31T23:59:59Z"], "beyond the limit of 316,224,000 s from now"),
        (["t", "--at", "2030-01-01T09:00"], "has no time zone"),
        (["t", "--at", "2030-01-01T09:00Z", "--delay", "1"], "give either --delay or --at, not both"),
        (["t"], "--delay: missing: give --delay 30m or --at 2026-12-01T09:00+01:00"),
        (["no topic", "--delay", "1"], "topic: 'no topic' is not a topic name"),
        (["t", "{", "--delay", "1"], "payload: '{' is not JSON"),
        (["t", "NaN", "--delay", "1"], "payload: 'NaN' is not JSON"),
        (["t", "{", "--delay", "1"], "; --text takes it as it is"),
        (["t", '{"n": 99999999999999999999}', "--delay", "1"], "payload.n: 99999999999999999999 does not fit"),
        (["t", "x" * 70_000, "--text", "--delay", "1"], "payload: 70,005 bytes packed, the limit is 65,536"),
        (["t", "--delay", "1", "--header", "a"], "header: 'a' is not NAME=VALUE"),
        (["t", "--delay", "1", "--config", "none.toml"], "cannot read the settings file none.toml"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(arguments: list[str], words: str) -> None:
    answer = wheelq("schedule", *arguments, url=NOBODY)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("url", ["http://localhost:6379", "redis://localhost:port"])
def test_a_wrong_server_url_is_refused_with_an_example(url: str) -> None:
    answer = wheelq("cancel", "t", "k", "--url", url)
    assert answer.code == 2
    assert f"'{url}' is not a server URL" in answer.err
    assert "write redis://host:port/0" in answer.err


def test_without_a_url_it_says_how_to_name_one() -> None:
    answer = wheelq("cancel", "t", "k")
    assert (answer.code, answer.out) == (2, "")
    assert "--url, or set WHEELQ_URL" in answer.err


# The server


@pytest.mark.parametrize(
    "command", [["schedule", "t", "--delay", "1"], ["cancel", "t", "k"], ["topics"], ["stats"], ["doctor"]]
)
def test_a_server_that_is_away_is_named_with_what_to_do(command: list[str]) -> None:
    answer = wheelq(*command, url=NOBODY)
    assert (answer.code, answer.out) == (1, "")
    assert f"no connection to {NOBODY}: " in answer.err
    assert "start one: wheelq up" in answer.err


@pytest.mark.parametrize(
    ("login", "told"),
    [("", "wants a password: write redis://:PASSWORD@"), (":wrong@", "check user and password in the URL")],
)
def test_a_missing_or_wrong_password_is_told_without_repeating_it(
    private_server: Callable[..., EmbeddedServer], login: str, told: str
) -> None:
    server = private_server(port=0, password="right", appendonly=False)
    answer = wheelq("cancel", "t", "k", url=f"redis://{login}{server.url.rpartition('@')[2]}")
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
    assert "wrong" not in answer.err


def test_the_traceback_is_shown_on_request() -> None:
    with pytest.raises(Unavailable):
        wheelq("--debug", "cancel", "t", "k", url=NOBODY)


# The command itself


def test_it_runs_as_a_module() -> None:
    said = subprocess.run([sys.executable, "-m", "wheelq", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"wheelq {__version__}\n"


def test_without_its_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['typer'] = None; from wheelq.cli import main; main()"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert said.stderr == "The wheelq command needs typer, which is not installed: pip install 'wheelq[cli]'\n"


# reshard


def test_reshard_changes_the_number_while_jobs_wait(url: str, topic: str) -> None:
    """The jobs that wait are still found; a topic that was never used, or a senseless number, is told."""
    wheelq("schedule", topic, "--key", "k", "--delay", "1h", url=url)
    answer = wheelq("reshard", topic, 4, "--json", url=url)
    assert (answer.code, answer.json["shards"], answer.json["waiting"]) == (0, 4, 1)
    assert wheelq("cancel", topic, "k", url=url).code == 0
    assert wheelq("reshard", topic + "-unused", 2, url=url).code == 1
    assert wheelq("reshard", topic, 0, url=url).code == 2
