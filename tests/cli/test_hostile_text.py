"""What others put into jobs cannot steer the terminal of the person who looks at them."""

from __future__ import annotations

import io

import pytest
import redis

from tests.cli.commands import wheelq
from wheelq import Client
from wheelq.base.clock import wall_ms
from wheelq.cli.output import SafeConsole, complain, table
from wheelq.errors import WheelqError
from wheelq.protocol import codec
from wheelq.protocol.calls import producer, worker
from wheelq.protocol.keys import Keys
from wheelq.transport import Address, Transport

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x85\u202e\u2028\r"
ESCAPED = r"\x1b]0;owned\x07\x1b[2J\x9b31m\x85\u202e\u2028\r"
OLD_ID = "old\x9b31m"
GROUP = "g\x9b2J"


@pytest.fixture
def dead_id(url: str, topic: str) -> str:
    """A dead job, and a waiting one whose id only another program can make, all with texts that steer terminals."""
    keys = Keys().shard(topic, 0)
    record = codec.encode({"a": HOSTILE}, {f"h{HOSTILE}": HOSTILE}, 1000)
    with Client.connect(url) as client:
        client.schedule(topic, delay=3600, key="other")
    transport = Transport(Address(url))
    transport.send(producer.schedule(keys, [(OLD_ID, "+3600000", record)], "keep", "1"))
    transport.send(worker.make_group(keys, GROUP))
    transport.close()
    told = {"group": GROUP, "reason": "failed", "error": f"{HOSTILE}\nforged row", "traceback": HOSTILE}
    with redis.Redis.from_url(url) as raw:
        entry = {"id": "a", **told, "attempt": 5, "due": wall_ms(), "record": record}
        return f"{raw.xadd(keys.dead, entry).decode()}:0"


def test_control_characters_of_others_are_shown_as_escapes(url: str, topic: str, dead_id: str) -> None:
    for command, shown in (
        (("dead", "list", topic, "--wide"), rf"{ESCAPED}\nforged row"),
        (("dead", "show", topic, dead_id), ESCAPED),
        (("jobs", topic), r"old\x9b31m"),
        (("job", topic, OLD_ID), ESCAPED),
        (("group", "list", topic), r"g\x9b2J"),
    ):
        for options in ((), ("--json",)):
            answer = wheelq(*command, *options, url=url)
            assert answer.code == 0
            steering = [char for char in answer.out if not char.isprintable() and char != "\n"]
            assert steering == [], (command, options)
        assert shown in wheelq(*command, url=url).out


def test_json_holds_the_text_itself(url: str, topic: str, dead_id: str) -> None:
    shown = wheelq("dead", "show", topic, dead_id, "--json", url=url).json
    assert (shown["payload"], shown["traceback"]) == ({"a": HOSTILE}, HOSTILE)
    assert wheelq("job", topic, OLD_ID, "--json", url=url).json["id"] == OLD_ID


def test_errors_and_tables_are_shown_without_steering(capsys: pytest.CaptureFixture[str]) -> None:
    complain(WheelqError(HOSTILE))
    assert ESCAPED in capsys.readouterr().err
    console = SafeConsole(file=io.StringIO(), width=200, highlight=False, force_terminal=True, color_system="standard")
    console.print(table("worker", rows=[[HOSTILE]]), f"[red]{HOSTILE}[/]")
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert said.count(ESCAPED) == 2
    assert "\x1b[31m" in said, "the colours of wheelq itself stay"
