"""import: whole files, refused lines told by number, nothing twice, and on where it was ended."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cli.commands import Running, wheelq
from tests.waiting import eventually
from wheelq import Client

LINES = """\
{"key": "order-1", "delay": "30m", "payload": {"amount": 12.5, "tags": ["a"]}, "headers": {"source": "web"}}

{"key": "order-2", "at": "2030-01-01T00:00Z", "priority": "high", "partition_key": "bob", "expires": "1h"}
{"delay": 7200, "spread": "5s", "payload": null, "attempts": 3, "timeout": "10s"}
"""

REFUSED = {
    "{": "job: is not JSON (",
    '{"delay": 1, "payload": Infinity}': "job: is not JSON (",
    "[1]": "job: must be a JSON object, not list",
    '{"delay": 1, "amount": 2}': "amount: is not a field of a job; the fields are topic, payload, delay, ",
    '{"topic": "no topic", "delay": 1}': "topic: 'no topic' is not a topic name",
    '{"delay": "soon"}': "delay: 'soon' is not a duration: write 30m",
    '{"delay": -5}': "delay: must not be negative",
    '{"delay": true}': "delay: must be seconds (a number) or a timedelta, not bool",
    '{"delay": "9999999d"}': "delay: 863999913600.0 s is beyond the limit",
    '{"at": "2030-01-01T00:00"}': "at: '2030-01-01T00:00' has no time zone",
    '{"at": 5}': "at: '5' is not an ISO 8601 time",
    '{"delay": 1, "at": "2030-01-01T00:00Z"}': "at: give either delay or at, not both",
    '{"key": "k"}': "delay: missing: ",
    '{"delay": 1, "key": ["k"]}': "key: must be a non-empty string",
    '{"delay": 1, "headers": [1]}': "headers: must be a mapping",
    '{"delay": 1, "priority": ["high"]}': "priority: must be high, normal, low",
    '{"delay": 1, "attempts": 0}': "attempts: must be a whole number from 1 to 1,000,000, not 0",
    '{"delay": 1, "timeout": "0s"}': "timeout: must be more than 0 seconds",
    '{"delay": 1, "payload": {"n": 99999999999999999999}}': "payload.n: 99999999999999999999 does not fit into 64 bits",
    '{"delay": 1, "payload": {"s": "\\ud800"}}': "job: is not JSON (unexpected end of hex escape",
    '{"delay": 1, "payload": "%s"}' % ("x" * 70_000): "payload: 70,005 bytes packed, the limit is 65,536",
}


MANY = 40_000
"""Lines of a file that takes long enough to be killed in its middle."""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    file = tmp_path / "orders.jsonl"
    file.write_text(LINES)
    return file


def waiting(url: str, topic: str) -> int:
    with Client.connect(url) as client:
        return sum(found.waiting for found in client.topics() if found.name == topic)


def test_a_file_is_scheduled_line_by_line(url: str, topic: str, orders: Path) -> None:
    answer = wheelq("import", orders, "--topic", topic, url=url)
    assert answer == (0, "orders.jsonl: 3 scheduled, 0 already existed, 0 lines refused\n", "")
    job = wheelq("job", topic, "order-1", "--json", url=url).json
    assert (job["payload"], job["headers"]) == ({"amount": 12.5, "tags": ["a"]}, {"source": "web"})
    assert wheelq("job", topic, "order-2", "--json", url=url).json["due"] == "2030-01-01T00:00:00+00:00"


def test_a_line_names_its_own_topic(url: str, topic: str, orders: Path) -> None:
    orders.write_text(json.dumps({"topic": topic, "delay": 60}))
    answer = wheelq("import", orders, "--topic", "another", "--json", url=url)
    assert answer.json == {"scheduled": 1, "kept": 0, "refused": 0}
    assert waiting(url, topic) == 1


def test_standard_input_is_a_file_too(url: str, topic: str) -> None:
    answer = wheelq("import", "-", "--topic", topic, url=url, stdin=LINES)
    assert answer == (0, "stdin: 3 scheduled, 0 already existed, 0 lines refused\n", "")


def test_a_line_without_a_time_takes_the_commands_delay(url: str, topic: str) -> None:
    lines = '{"key": "later"}\n{"key": "then", "at": "2030-01-01T00:00Z"}\n'
    assert wheelq("import", "-", "--topic", topic, "--delay", "1h", url=url, stdin=lines).code == 0
    assert wheelq("job", topic, "then", "--json", url=url).json["due"] == "2030-01-01T00:00:00+00:00"
    assert waiting(url, topic) == 2


# Refused lines


def test_refused_lines_are_told_by_number_and_the_others_are_scheduled(url: str, topic: str, tmp_path: Path) -> None:
    file, good = tmp_path / "orders.jsonl", '{"delay": 3600}'
    file.write_text("\n".join(line for refused in REFUSED for line in (good, refused)))
    answer = wheelq("import", file, "--topic", topic, url=url)
    count = len(REFUSED)
    assert answer.code == 2
    assert answer.out == f"orders.jsonl: {count} scheduled, 0 already existed, {count} lines refused\n"
    for number, (told, reason) in enumerate(zip(answer.err.splitlines(), REFUSED.values(), strict=True), 1):
        assert told.startswith(f"line {2 * number}: {reason}")
    assert waiting(url, topic) == count


def test_lines_for_a_full_topic_are_told_and_those_of_other_topics_are_scheduled(
    url: str, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    jobs = [(f"{topic}-full", 60), (topic, 60), (f"{topic}-full", 60), (topic, -1)]
    file.write_text("\n".join(json.dumps({"topic": name, "delay": delay}) for name, delay in jobs))
    with Client.connect(url) as client:
        client.configure(f"{topic}-full", max_pending=1)
    answer = wheelq("import", file, url=url)
    assert (answer.code, answer.out) == (2, "orders.jsonl: 2 scheduled, 0 already existed, 2 lines refused\n")
    assert answer.err.splitlines() == [
        f"line 3: topic '{topic}-full' is full",
        "line 4: delay: must not be negative, not -1; 0 means at once",
    ]
    assert (waiting(url, topic), waiting(url, f"{topic}-full")) == (1, 1)


def test_lines_of_a_program_that_goes_on_writing_are_scheduled_at_once(url: str, topic: str) -> None:
    def has_jobs(number: int) -> bool:
        return waiting(url, topic) == number

    command = [sys.executable, "-m", "wheelq", "import", "-", "--topic", topic, "--url", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin
        for number in (1, 2):
            running.stdin.write('{"delay": "1h"}\n{"delay"')
            running.stdin.flush()
            assert eventually(partial(has_jobs, number))
            running.stdin.write(': "soon"}\n' if number == 1 else ': "2h"}')
        said, _ = running.communicate()
    assert said == "stdin: 3 scheduled, 0 already existed, 1 line refused\n"


def test_a_line_without_a_topic_is_refused(url: str) -> None:
    answer = wheelq("import", "-", url=url, stdin='{"delay": 1}\n')
    assert (answer.code, answer.err) == (2, "line 1: topic: missing: give it in the line, or with --topic\n")


def test_bytes_that_are_not_utf8_are_refused_with_their_line(url: str, topic: str, orders: Path) -> None:
    orders.write_bytes(b'{"delay": 1}\n{"delay": 1, "payload": "\xff\xfe"}\n{"delay": 1}\n')
    answer = wheelq("import", orders, "--topic", topic, url=url)
    assert answer.code == 2
    assert answer.out.startswith("orders.jsonl: 2 scheduled")
    assert answer.err.startswith("line 2: job: is not JSON (")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "no.jsonl", "No such file"), (tmp_path, "Is a directory")):
        answer = wheelq("import", path, url="redis://127.0.0.1:1")
        assert answer.code == 2
        assert f"cannot read {path}: {why}" in answer.err


# Nothing twice


def test_importing_twice_creates_nothing_twice(url: str, topic: str, orders: Path) -> None:
    wheelq("import", orders, "--topic", topic, url=url)
    again = wheelq("import", orders, "--topic", topic, url=url)
    assert again.out == "orders.jsonl: 0 scheduled, 3 already existed, 0 lines refused\n"
    assert waiting(url, topic) == 3


def test_a_last_line_is_the_same_job_once_its_line_break_is_there(url: str, topic: str, orders: Path) -> None:
    """A file that is appended to later may lack it at first."""
    orders.write_text('{"delay": "1h"}')
    wheelq("import", orders, "--topic", topic, url=url)
    orders.write_text('{"delay": "1h"}\n{"delay": "1h"}\n')
    again = wheelq("import", orders, "--topic", topic, url=url)
    assert again.out == "orders.jsonl: 1 scheduled, 1 already existed, 0 lines refused\n"


def test_a_corrected_line_is_scheduled_without_disturbing_the_others(url: str, topic: str, orders: Path) -> None:
    orders.write_text('{"delay": "1h"}\n{"delay": "soon"}\n{"delay": "1h"}\n')
    assert wheelq("import", orders, "--topic", topic, url=url).code == 2
    orders.write_text('{"delay": "1h"}\n{"delay": "2h"}\n{"delay": "1h"}\n')
    again = wheelq("import", orders, "--topic", topic, url=url)
    assert again.out == "orders.jsonl: 1 scheduled, 2 already existed, 0 lines refused\n"


def test_equal_lines_without_a_key_are_different_jobs(url: str, topic: str) -> None:
    wheelq("import", "-", "--topic", topic, url=url, stdin='{"delay": "1h"}\n{"delay": "1h"}\n')
    assert waiting(url, topic) == 2


def is_killed_midway(running: Running, url: str, topic: str) -> bool:
    """Kill an import that has begun. False: it was done before this process came to it."""
    assert eventually(lambda: waiting(url, topic) > 0), running.said
    running.signal(signal.SIGKILL)
    running.end()
    return waiting(url, topic) < MANY


def test_a_killed_import_goes_on_and_ends_with_every_line_scheduled_once(
    url: str, topic: str, tmp_path: Path, start: Callable[..., Running]
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("".join(f'{{"delay": "1h", "payload": {n}}}\n' for n in range(MANY)))
    names = (f"{topic}-{n}" for n in itertools.count())
    topic = next(
        name for name in names if is_killed_midway(start(tmp_path, "import", file, "--topic", name, url=url), url, name)
    )
    second = wheelq("import", file, "--topic", topic, "--json", url=url).json
    assert second["scheduled"] > 0
    assert second["kept"] > 0
    assert (second["scheduled"] + second["kept"], second["refused"]) == (MANY, 0)
    assert waiting(url, topic) == MANY


def test_when_the_server_goes_away_it_says_how_to_go_on(topic: str, orders: Path) -> None:
    answer = wheelq("import", orders, "--topic", topic, url="redis://127.0.0.1:1")
    assert answer.code == 1
    assert "orders.jsonl: 0 lines are done; run the same command again to continue" in answer.err
    assert "no connection to redis://127.0.0.1:1" in answer.err
