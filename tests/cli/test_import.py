"""import: whole files, broken lines told by number, nothing twice, and on where it was ended."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import Running, wheelq
from tests.waiting import eventually
from wheelq import Client

CSV = """\
key,delay,customer,amount,header.source
order-1,30m,ann,12.50,web
order-2,1h,bob,,
,2h,"eve, of
two lines",7,shop
"""

BROKEN_CSV = """\
key,delay,at,payload,customer
good-1,30m,,,ann
bad-3,soon,,,ann
bad-4,-5,,,ann
bad-5,,2030-01-01T00:00,,ann
bad-6,9999999d,,,ann
bad-7,30m
bad-8,30m,,{oops,ann

bad-10,,,,ann
bad-11,30m,2030-01-01T00:00Z,,ann
bad-12,30m,,[1],ann
"bad-13"x,30m,,,ann
good-14,,2030-01-01T00:00Z,"{""a"": 1}",ann
"""

REASONS = {
    3: "delay: 'soon' is not a duration: write 30m",
    4: "delay: must not be negative",
    5: "no time zone",
    6: "beyond the limit",
    7: "2 cells, but the header names 5",
    8: "payload: '{oops' is not JSON",
    10: "delay: missing: add a column delay or at, or give --delay",
    11: "at: give either delay or at, not both",
    12: "payload: must be a JSON object to take in the columns customer",
    13: "not CSV: ",
}


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    file = tmp_path / "orders.csv"
    file.write_text(CSV)
    return file


def waiting(url: str, topic: str) -> int:
    with Client.connect(url) as client:
        return sum(found.waiting for found in client.topics() if found.name == topic)


def payload(url: str, topic: str, id: str) -> object:
    with Client.connect(url) as client:
        found = client.get(topic, id)
    return found and found.payload


# What the columns mean


def test_a_csv_file_is_scheduled_line_by_line(url: str, topic: str, orders: Path) -> None:
    answer = wheelq("import", orders, "--topic", topic, url=url)
    assert answer == (0, "orders.csv: 3 scheduled, 0 already existed, 0 lines broken\n", "")
    job = wheelq("job", topic, "order-1", "--json", url=url).json
    assert (job["payload"], job["headers"]) == ({"customer": "ann", "amount": "12.50"}, {"source": "web"})
    assert payload(url, topic, "order-2") == {"customer": "bob", "amount": ""}


def test_json_lines_keep_their_types(url: str, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    rows = [
        {"topic": topic, "id": 7, "delay": 3600, "amount": 12.5, "tags": ["a"]},
        {"topic": topic, "key": "k", "id": 8, "delay": "1h", "header.n": 1},
        {"topic": topic, "key": "p", "at": "2030-01-01T00:00Z", "payload": [1, None]},
    ]
    file.write_text("\n\n".join(map(json.dumps, rows)))
    assert wheelq("import", file, "--json", url=url).json == {"records": 3, "broken": 0, "created": 3, "kept": 0}
    assert payload(url, topic, "7") == {"amount": 12.5, "tags": ["a"]}
    assert payload(url, topic, "k") == {"id": 8}
    assert payload(url, topic, "p") == [1, None]


def test_stdin_is_a_file_too(url: str, topic: str) -> None:
    answer = wheelq("import", "-", "--format", "csv", "--topic", topic, url=url, stdin=CSV)
    assert answer == (0, "stdin: 3 scheduled, 0 already existed, 0 lines broken\n", "")


def test_the_byte_order_mark_of_a_spreadsheet_is_no_part_of_the_first_column(
    url: str, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "orders.csv"
    file.write_bytes(b"\xef\xbb\xbfkey,delay\r\nk,30m\r\n")
    wheelq("import", file, "--topic", topic, url=url)
    assert payload(url, topic, "k") is None
    assert waiting(url, topic) == 1


def test_rows_without_a_time_take_the_commands_delay(url: str, topic: str) -> None:
    wheelq("import", "-", "--format", "csv", "--topic", topic, "--delay", "1h", url=url, stdin="key\nk\n")
    assert waiting(url, topic) == 1


# Broken lines


def test_broken_lines_are_told_by_number_and_the_rest_is_imported(url: str, topic: str, tmp_path: Path) -> None:
    file, errors = tmp_path / "broken.csv", tmp_path / "errors.txt"
    file.write_text(BROKEN_CSV)
    answer = wheelq("import", file, "--topic", topic, "--errors", errors, url=url)
    assert answer.code == 2
    assert answer.out == "broken.csv: 2 scheduled, 0 already existed, 10 lines broken\n"
    for told, (line, reason) in zip(answer.err.splitlines(), REASONS.items(), strict=True):
        assert told.startswith(f"line {line}: ")
        assert reason in told
    assert errors.read_text() == answer.err
    assert payload(url, topic, "good-14") == {"a": 1, "customer": "ann"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "must be a JSON object, not list"),
        ("{", "not JSON: "),
        ('{"topic": "no topic", "delay": 1}', "topic: 'no topic' is not a topic name"),
        ('{"delay": true}', "delay: must be seconds (a number) or a timedelta, not bool"),
        ('{"delay": 1, "n": 99999999999999999999}', "payload.n: 99999999999999999999 does not fit into 64 bits"),
        ('{"delay": 1, "s": "\\ud800"}', "payload.s: is not valid Unicode text"),
        ('{"delay": 1, "key": ["k"]}', "key: must be a non-empty string"),
        ('{"delay": 1, "s": "%s"}' % ("x" * 70_000), "payload: 70,008 bytes packed, the limit is 65,536"),
    ],
)
def test_a_broken_json_line_does_not_disturb_its_neighbours(url: str, topic: str, line: str, reason: str) -> None:
    good = '{"delay": 3600}'
    text = f"{good}\n{line}\n{good}\n"
    answer = wheelq("import", "-", "--format", "jsonl", "--topic", topic, url=url, stdin=text)
    assert answer.code == 2
    assert answer.out.startswith("stdin: 2 scheduled")
    assert answer.err.startswith(f"line 2: {reason}")


def test_bytes_that_are_not_utf8_break_only_their_line(url: str, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_bytes(b"key,delay,customer\na,1h,ann\nb,1h,\xff\xfe\nc,1h,bob\n")
    answer = wheelq("import", file, "--topic", topic, url=url)
    assert (answer.code, waiting(url, topic)) == (2, 2)
    assert answer.err == "line 3: payload.customer: is not valid Unicode text (surrogates not allowed)\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must name the columns: every column needs a name"),
        ("key,,delay\n", "every column needs a name"),
        ("key,delay,key\n", "it has key twice"),
    ],
)
def test_a_csv_file_without_a_usable_header_is_refused(url: str, text: str, words: str) -> None:
    answer = wheelq("import", "-", "--format", "csv", "--topic", "t", url=url, stdin=text)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err


def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    nowhere = "redis://127.0.0.1:1"
    assert "no.csv: No such file" in wheelq("import", tmp_path / "no.csv", url=nowhere).err
    answer = wheelq("import", tmp_path / "orders.xlsx", url=nowhere)
    assert answer.code == 2
    assert "give --format csv or --format jsonl" in answer.err


# Nothing twice


def test_importing_twice_creates_nothing_twice(url: str, topic: str, orders: Path) -> None:
    wheelq("import", orders, "--topic", topic, url=url)
    again = wheelq("import", orders, "--topic", topic, url=url)
    assert again.out == "orders.csv: 0 scheduled, 3 already existed, 0 lines broken\n"
    assert waiting(url, topic) == 3


def test_a_mended_line_is_imported_without_disturbing_the_others(url: str, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("delay,n\n1h,1\nsoon,2\n1h,3\n")
    assert wheelq("import", file, "--topic", topic, url=url).code == 2
    file.write_text("delay,n\n1h,1\n2h,2\n1h,3\n")
    again = wheelq("import", file, "--topic", topic, url=url)
    assert again.out == "orders.csv: 1 scheduled, 2 already existed, 0 lines broken\n"


def test_equal_lines_without_a_key_are_different_jobs(url: str, topic: str) -> None:
    wheelq("import", "-", "--format", "csv", "--topic", topic, url=url, stdin="delay\n1h\n1h\n")
    assert waiting(url, topic) == 2


# Ended and resumed


def journal_of(file: Path) -> Path:
    return file.with_name(file.name + ".wheelq-progress")


def is_killed_midway(running: Running, imported: Path) -> bool:
    """Kill an import that has begun. False: it was done before this process came to it."""
    journal = journal_of(imported)
    assert eventually(lambda: journal.exists() or running.process.poll() is not None), running.said
    running.signal(signal.SIGKILL)
    running.end()
    return journal.exists()


def write_journal(imported: Path, topic: str, **changes: object) -> None:
    found = imported.stat()
    says = {"file": [found.st_size, found.st_mtime_ns], "options": [topic, None, "csv"], "records": 2, "broken": 1}
    journal_of(imported).write_text(json.dumps(says | {"created": 1, "kept": 0} | changes))


def test_a_finished_import_leaves_no_journal(url: str, topic: str, orders: Path) -> None:
    wheelq("import", orders, "--topic", topic, url=url)
    assert not journal_of(orders).exists()


def test_an_import_goes_on_where_the_journal_says(url: str, topic: str, orders: Path) -> None:
    write_journal(orders, topic)
    answer = wheelq("import", orders, "--topic", topic, url=url)
    assert answer.err == "orders.csv: continuing after the first 2 lines\n"
    assert answer.out == "orders.csv: 2 scheduled, 0 already existed, 1 line broken\n"
    assert answer.code == 2, "a line was broken before it was ended"
    assert waiting(url, topic) == 1


def test_restart_begins_at_the_first_line(url: str, topic: str, orders: Path) -> None:
    write_journal(orders, topic)
    assert wheelq("import", orders, "--topic", topic, "--restart", url=url).code == 0
    assert waiting(url, topic) == 3


@pytest.mark.parametrize("changes", [{"file": [1, 2]}, {"options": ["other", None, "csv"]}])
def test_the_journal_of_another_file_or_other_options_does_not_count(
    url: str, topic: str, orders: Path, changes: dict[str, object]
) -> None:
    write_journal(orders, topic, **changes)
    assert wheelq("import", orders, "--topic", topic, url=url).code == 0
    assert waiting(url, topic) == 3


def test_a_torn_journal_does_not_count(url: str, topic: str, orders: Path) -> None:
    journal_of(orders).write_text('{"file": [')
    assert wheelq("import", orders, "--topic", topic, url=url).code == 0


def test_a_killed_import_goes_on_and_ends_with_every_line_scheduled_once(
    url: str, topic: str, tmp_path: Path, start: Callable[..., Running]
) -> None:
    lines = 40_000
    file = tmp_path / "orders.csv"
    file.write_text("delay,n\n" + "".join(f"1h,{n}\n" for n in range(lines)))
    names = (f"{topic}-{n}" for n in itertools.count())
    topic = next(
        name for name in names if is_killed_midway(start(tmp_path, "import", file, "--topic", name, url=url), file)
    )
    done = json.loads(journal_of(file).read_text())["records"]
    assert 0 < done < lines

    second = wheelq("import", file, "--topic", topic, "--json", url=url)
    assert f"continuing after the first {done:,} lines" in second.err
    assert second.json["records"] == lines
    assert waiting(url, topic) == lines


def test_when_the_server_goes_away_it_says_how_to_go_on(topic: str, orders: Path) -> None:
    answer = wheelq("import", orders, "--topic", topic, url="redis://127.0.0.1:1")
    assert answer.code == 1
    assert "orders.csv: 0 lines are done; run the same command again to continue" in answer.err
    assert "no connection to redis://127.0.0.1:1" in answer.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere")
def test_a_directory_that_cannot_be_written_costs_only_the_journal(url: str, topic: str, orders: Path) -> None:
    orders.parent.chmod(0o500)
    try:
        assert wheelq("import", orders, "--topic", topic, url=url).code == 0
    finally:
        orders.parent.chmod(0o700)
    assert waiting(url, topic) == 3
