"""dead list, show, replay, purge: on a real server, with dead jobs of two groups."""

from __future__ import annotations

import json

import pytest
import redis

from tests.cli.commands import wheelq
from wheelq import Client
from wheelq.base.clock import wall_ms
from wheelq.protocol import codec
from wheelq.protocol.keys import Keys


@pytest.fixture
def dead_ids(url: str, topic: str) -> list[str]:
    """Three dead jobs: a and b of group billing, a of group mail."""
    keys = Keys().shard(topic, 0)
    with Client.connect(url) as client, redis.Redis.from_url(url) as raw:
        client.schedule(topic, delay=3600, key="other")
        entries = []
        for group in ("billing", "mail"):
            raw.xgroup_create(keys.ready, group, mkstream=True)
        records = {id: codec.encode({"id": 42}, {"trace": "x"}, 1000) for id in ("a", "b")}
        for id, group in (("a", "billing"), ("b", "billing"), ("a", "mail")):
            told = {"group": group, "reason": "failed", "error": "ValueError: bad", "traceback": "Traceback …"}
            entry = {"id": id, **told, "attempt": 5, "due": wall_ms(), "record": records[id]}
            entries.append(raw.xadd(keys.dead, entry).decode() + ":0")  # type: ignore[arg-type]
        return entries


def test_list_shows_who_gave_up_what_and_why_the_newest_first(url: str, topic: str, dead_ids: list[str]) -> None:
    lines = [line.split() for line in wheelq("dead", "list", topic, url=url).out.splitlines()]
    assert lines[0] == ["dead", "id", "job", "group", "reason", "attempts", "buried", "error"]
    assert [line[:5] for line in lines[1:]] == [
        [dead_ids[2], "a", "mail", "failed", "5"],
        [dead_ids[1], "b", "billing", "failed", "5"],
        [dead_ids[0], "a", "billing", "failed", "5"],
    ]
    assert lines[1][-2:] == ["ValueError:", "bad"]


def test_list_takes_a_filter_and_pages(url: str, topic: str, dead_ids: list[str]) -> None:
    first = wheelq("dead", "list", topic, "--oldest", "--limit", 1, "--group", "billing", "--json", url=url).json
    assert [job["dead_id"] for job in first["jobs"]] == [dead_ids[0]]
    options = ("--oldest", "--group", "billing", "--since", "1h", "--cursor", first["cursor"], "--json")
    rest = wheelq("dead", "list", topic, *options, url=url).json
    assert ([job["dead_id"] for job in rest["jobs"]], rest["cursor"]) == ([dead_ids[1]], None)
    assert "no such dead jobs" in wheelq("dead", "list", topic, "--until", "1h", url=url).out


def test_show_tells_everything(url: str, topic: str, dead_ids: list[str]) -> None:
    said = wheelq("dead", "show", topic, dead_ids[0], url=url).out
    assert f"{topic}/a was given up by group billing after attempt 5" in said
    assert "Traceback" in said
    assert json.dumps({"id": 42}) in said
    assert wheelq("dead", "show", topic, dead_ids[0], "--json", url=url).json["headers"] == {"trace": "x"}
    assert wheelq("dead", "show", topic, "1763000000000-0:0", url=url).code == 3


def test_replay_of_named_ones(url: str, topic: str, dead_ids: list[str]) -> None:
    answer = wheelq("dead", "replay", topic, dead_ids[0], url=url)
    assert (answer.code, answer.out) == (0, f"{dead_ids[0]} runs again\n")
    again = wheelq("dead", "replay", topic, *dead_ids[:2], "--json", url=url)
    assert again.code == 3
    assert [one["outcome"] for one in again.json] == ["not_found", "replayed"]


def test_replay_by_filter(url: str, topic: str, dead_ids: list[str]) -> None:
    said = wheelq("dead", "replay", topic, "--group", "billing", "--rate", 100, url=url).out
    assert said == f"2 jobs of {topic} run again\n"
    assert wheelq("dead", "replay", topic, "--all", "--json", url=url).json == {"replayed": 1, "kept": 0}
    said = wheelq("job", topic, "a", url=url).out
    assert "is retrying" in said


@pytest.mark.parametrize("command", ["replay", "purge"])
def test_replay_and_purge_need_a_choice(url: str, topic: str, dead_ids: list[str], command: str) -> None:
    for arguments in ((), (dead_ids[0], "--all"), ("--all", "--group", "mail")):
        assert wheelq("dead", command, topic, *arguments, url=url).code == 2


def test_purge_asks_first(url: str, topic: str, dead_ids: list[str]) -> None:
    assert wheelq("dead", "purge", topic, "--all", url=url, stdin="n\n").code == 1
    assert wheelq("dead", "purge", topic, "--group", "mail", "--yes", "--json", url=url).json == {"purged": 1}
    assert wheelq("dead", "purge", topic, dead_ids[0], url=url).out == f"{dead_ids[0]} removed\n"
    assert wheelq("dead", "purge", topic, dead_ids[0], url=url).code == 3
    assert "1 dead job of" in wheelq("dead", "purge", topic, "--all", url=url, stdin="y\n").out
