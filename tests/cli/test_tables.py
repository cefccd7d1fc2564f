"""What commands print fits 80 columns: no line is longer, no id is cut. `--wide` shows all of it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.cli.commands import wheelq
from tests.waiting import eventually
from wheelq import Client, JobSpec
from wheelq.cli.output import FittingTable
from wheelq.protocol.calls import worker
from wheelq.protocol.calls.worker import Burial
from wheelq.protocol.keys import Keys
from wheelq.settings import TopicSettings
from wheelq.transport import Address, Transport

LONG = "x" * 36
ERROR = "TimeoutError: " + "the printer does not answer, " * 12
MOMENT = datetime(2031, 1, 1, tzinfo=UTC)


def printed(table: FittingTable, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_columns_fall_away_from_the_right_where_there_is_no_room() -> None:
    columns, row = ("id", ">jobs", "group?", "worker?"), (LONG, 1_234, "billing", "host-12345-abcdef")
    for width, shown in ((80, ["id", "jobs", "group", "worker"]), (60, ["id", "jobs", "group"]), (50, ["id", "jobs"])):
        lines = printed(FittingTable(columns, [row]), width)
        assert lines[0].split() == shown
        assert lines[1].split()[:2] == [LONG, "1,234"]
        assert max(map(cell_len, lines)) <= width


def test_long_text_is_cut_before_a_line_gets_too_long() -> None:
    [_, line] = printed(FittingTable(("id", "error~"), [(LONG, ERROR)]))
    assert line.startswith(f"{LONG}  TimeoutError: the")
    assert line.endswith("…")
    assert cell_len(line) == 80


def test_an_id_that_is_longer_than_a_line_goes_on_in_the_next_one() -> None:
    lines = printed(FittingTable(("id", "due", "group?"), [("y" * 200, "in 4s", "g")]))
    assert "".join("".join(line.split()) for line in lines).count("y") == 200
    assert max(map(cell_len, lines)) <= 80


def test_text_that_looks_like_markup_is_shown_as_text() -> None:
    assert "[red]id[/red]" in printed(FittingTable(("id",), [("[red]id[/red]",)]))[1]


def test_a_table_without_rows_has_its_header() -> None:
    assert printed(FittingTable(("id", ">jobs?"), []))[0].split() == ["id", "jobs"]


@pytest.fixture
def filled(url: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic with long names in it: jobs that wait, a dead one, a recurring one; and a terminal of 80 columns."""
    with Client.connect(url) as client:
        client.schedule_many(topic, [JobSpec(key=f"{LONG}-{n}", at=MOMENT + timedelta(days=n)) for n in range(5)])
        client.recurring.put(topic, f"{LONG}-r", cron="0 9 * * mon-fri", tz="America/Argentina/Buenos_Aires")
        client.schedule(topic, delay=0, key=f"{LONG}-dead")
        client.configure(topic, max_pending=100_000, keep_done_ms=3_600_000, max_rate=1_000)
    keys, transport = Keys().shard(topic, 0), Transport(Address(url))
    transport.send(worker.make_group(keys, "a-group-with-a-name"))
    [[entry]] = transport.send(worker.read([keys], "a-group-with-a-name", "w", 1, None))
    burial = Burial("failed", ERROR[:500], "", 1, entry.due_ms)
    assert transport.send(worker.bury(keys, "a-group-with-a-name", "w", entry, burial, TopicSettings()))
    transport.close()
    return topic


COMMANDS = [
    ("topics",),
    ("stats",),
    ("top", "--once", "--interval", "0.5"),
    ("jobs", "TOPIC"),
    ("jobs", "TOPIC", "--state", "dead"),
    ("dead", "list", "TOPIC"),
    ("group", "list", "TOPIC"),
    ("recurring", "list"),
    ("forecast", "TOPIC"),
    ("script", "--list"),
]


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_line_of_a_command_is_longer_than_80_columns_and_no_id_is_cut(
    url: str, filled: str, command: tuple[str, ...]
) -> None:
    arguments = [filled if word == "TOPIC" else word for word in command]
    environment = {**os.environ, "WHEELQ_URL": url, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "wheelq", *arguments], env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    if command[0] not in ("stats",):  # its first line is the server's address, which may be any
        assert max(map(cell_len, lines)) <= 80
    shown = {
        "jobs": [f"{LONG}-dead"] if "dead" in command else [f"{LONG}-{n}" for n in range(5)],
        "dead": [f"{LONG}-dead"],
        "recurring": [f"{LONG}-r"],
        "group": ["a-group-with-a-name"],
    }
    words = done.stdout.split()
    assert all(id in words for id in shown.get(command[0], []))
    if "TOPIC" not in command and command[0] in ("topics", "stats", "top"):
        assert filled in done.stdout


def test_wide_shows_every_column_whole(url: str, filled: str) -> None:
    narrow, wide = wheelq("dead", "list", filled, url=url).out, wheelq("dead", "list", filled, "--wide", url=url).out
    assert ERROR[:400].strip() in wide
    assert ERROR[:400].strip() not in narrow
    assert f"{LONG}-dead" in narrow


def test_a_forecast_is_a_histogram(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        client.schedule_many(topic, [JobSpec(delay=30) for _ in range(100)])
        client.schedule_many(topic, [JobSpec(delay=7_200) for _ in range(50)])
        client.schedule(topic, delay=200_000)
    lines = {line.split("  ")[0]: line for line in wheelq("forecast", topic, url=url).out.splitlines()}
    bars = {name: line.count("█") for name, line in lines.items()}
    assert (bars["within 1m"], bars["within 6h"], bars["within 7d"]) == (50, 25, 0)
    assert lines["within 7d"].split()[-1] == "▌"
    assert lines["later"].split()[-1] == "0"


def test_a_job_that_is_not_known_is_finished_or_unknown(url: str, topic: str) -> None:
    answer = wheelq("job", topic, "a", url=url)
    assert answer.code == 3
    assert answer.out.startswith(f"{topic}/a is finished or unknown; keep_done_ms keeps it")


def completed(url: str | None, words: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WHEELQ_")}
    environment |= {"_WHEELQ_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    if url is not None:
        environment["WHEELQ_URL"] = url
    done = subprocess.run(
        [sys.executable, "-m", "wheelq"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_completes_topics(url: str, topic: str) -> None:
    with Client.connect(url) as client:
        client.schedule(topic, delay=60)
    assert eventually(lambda: completed(url, f"wheelq forecast {topic[:-2]}") == [topic])
    assert completed(url, "wheelq forecast no-such-topic") == []


def test_completion_is_silent_where_there_is_no_server() -> None:
    assert completed("redis://127.0.0.1:1", "wheelq forecast o") == []
