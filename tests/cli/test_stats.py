"""topics, stats, doctor: what a real server and those who use it say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
import redis

from tests.cli.commands import Running, wheelq
from tests.waiting import eventually
from wheelq import Client, JobSpec, __version__
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.keys import Keys

MODULE = """
from wheelq import Worker
worker = Worker.connect(group="billing")

@worker.handler("{topic}")
async def handle(job):
    pass
"""


@pytest.fixture
def own_url(private_server: Callable[..., EmbeddedServer]) -> str:
    """A server that nobody else uses."""
    return private_server().url


def levels(answer: object) -> dict[str, str]:
    assert isinstance(answer, list)
    return {finding["title"]: finding["level"] for finding in answer}


def test_topics_shows_what_each_topic_holds(own_url: str) -> None:
    with Client.connect(own_url) as client:
        client.schedule("orders", delay=1800)
        client.schedule("mails", delay=0)
    shown = [line.split()[:7] for line in wheelq("topics", url=own_url).out.splitlines()]
    assert shown == [
        ["topic", "waiting", "ready", "running", "retrying", "dead", "shards"],
        ["mails", "0", "1", "0", "0", "0", "1"],
        ["orders", "1", "0", "0", "0", "0", "1"],
    ]
    counts = [
        (found["name"], found["waiting"], found["ready"]) for found in wheelq("topics", "--json", url=own_url).json
    ]
    assert counts == [("mails", 0, 1), ("orders", 1, 0)]


def test_a_new_server_has_no_topics(own_url: str) -> None:
    assert wheelq("topics", url=own_url).out == "no topics yet: the first job of a topic creates it\n"
    assert wheelq("topics", "--json", url=own_url).json == []


def test_stats_shows_who_is_there_and_what_they_do(own_url: str, tmp_path: Path, start: Callable[..., Running]) -> None:
    (tmp_path / "jobs.py").write_text(MODULE.format(topic="orders"))
    start(tmp_path, "scheduler", url=own_url)
    start(tmp_path, "worker", "jobs:worker", url=own_url)
    with Client.connect(own_url) as client:
        client.schedule("orders", delay=0.1)

    def everyone_has_said_so() -> bool:  # in the next heartbeat: every 5 s
        stats = wheelq("stats", "--json", url=own_url).json
        leading = [(node["shards"], node["leading"], node["promoted"]) for node in stats["nodes"]]
        done = [(worker["group"], worker["topics"], worker["handled"]) for worker in stats["workers"]]
        return (leading, done) == ([(1, 1, 1)], [("billing", ["orders"], 1)])

    assert eventually(everyone_has_said_so), wheelq("stats", url=own_url).out
    stats = wheelq("stats", "--json", url=own_url).json
    shown = wheelq("stats", url=own_url).out
    assert {one["version"] for one in (*stats["nodes"], *stats["workers"])} == {__version__}
    assert shown.count(__version__) == 2
    assert stats["nodes"][0]["name"] in shown
    assert stats["workers"][0]["name"] in shown
    assert levels(wheelq("doctor", "--json", url=own_url).json)["1 scheduler runs, nothing is overdue"] == "ok"


def test_stats_says_when_nobody_is_there(own_url: str) -> None:
    shown = wheelq("stats", url=own_url).out
    assert "no scheduler runs" in shown
    assert "no worker runs" in shown


def test_a_heartbeat_older_than_15_seconds_is_nobodys(own_url: str) -> None:
    server = redis.Redis.from_url(own_url)
    now_ms = int(server.time()[0]) * 1000
    said = {"killed": now_ms - 17_000, "alive": now_ms}
    server.hset("wheelq:nodes", mapping={name: msgpack.packb({"seen_ms": ms}) for name, ms in said.items()})
    assert [node["name"] for node in wheelq("stats", "--json", url=own_url).json["nodes"]] == ["alive"]


def test_a_mixed_fleet_shows_its_versions(own_url: str) -> None:
    """Also one of a release whose heartbeats do not tell it."""
    server = redis.Redis.from_url(own_url)
    now_ms = int(server.time()[0]) * 1000
    told = {"seen_ms": now_ms, "group": "g", "topics": []}
    server.hset("wheelq:nodes", "newer", msgpack.packb({"seen_ms": now_ms, "version": "99.1"}))
    server.hset(
        "wheelq:workers", mapping={"newer": msgpack.packb({**told, "version": "99.1"}), "old": msgpack.packb(told)}
    )
    stats = wheelq("stats", "--json", url=own_url).json
    assert [one["version"] for one in (*stats["nodes"], *stats["workers"])] == ["99.1", "99.1", "-"]
    title = "Schedulers and workers run different versions of wheelq: - (1), 99.1 (2)"
    assert levels(wheelq("doctor", "--json", url=own_url).json)[title] == "warning"
    server.hdel("wheelq:workers", "old")
    assert not any("different versions" in title for title in levels(wheelq("doctor", "--json", url=own_url).json))


# doctor


def test_doctor_finds_nothing_wrong_with_a_good_server(private_server: Callable[..., EmbeddedServer]) -> None:
    answer = wheelq("doctor", "--json", url=private_server(fsync="everysec").url)
    assert answer.code == 0
    assert levels(answer.json)["Jobs reach the disk every second (appendfsync everysec)"] == "ok"
    assert {title for title, level in levels(answer.json).items() if level != "ok"} == {"No scheduler runs"}


def test_doctor_speaks_in_plain_words(own_url: str) -> None:
    shown = wheelq("doctor", url=own_url).out
    assert "ok      Nothing is evicted\n" in shown
    assert "warning No scheduler runs\n" in shown


def test_doctor_tells_of_a_server_that_refuses_all_writes(private_server: Callable[..., EmbeddedServer]) -> None:
    """And takes that for no right that its user lacks."""
    server = private_server()
    redis.Redis.from_url(server.url).config_set("min-replicas-to-write", 1)
    found = levels(wheelq("doctor", "--json", url=server.url).json)
    assert found["The server refuses writes"] == "problem"
    assert not any("refused to this user" in title for title in found)


def test_doctor_refuses_a_server_that_evicts(private_server: Callable[..., EmbeddedServer]) -> None:
    server = private_server(options={"maxmemory-policy": "allkeys-lru", "maxmemory": "1gb"})
    answer = wheelq("doctor", url=server.url)
    assert answer.code == 1
    assert "problem maxmemory-policy is allkeys-lru\n" in answer.out
    assert "CONFIG SET maxmemory-policy noeviction" in answer.out


def test_doctor_says_that_nothing_is_kept(private_server: Callable[..., EmbeddedServer]) -> None:
    answer = wheelq("doctor", "--json", url=private_server(appendonly=False).url)
    assert levels(answer.json)["Nothing is written to disk"] == "warning"


def test_doctor_warns_when_more_replicas_follow_than_calls_wait_for(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    primary = private_server(port=0, options={"repl-diskless-sync-delay": "0"})
    followed = {"replicaof": f"127.0.0.1 {primary.url.rpartition(':')[2]}"}
    for _ in range(2):
        private_server(port=0, options=followed)
    config = tmp_path / "wheelq.toml"
    title = "durability='replicated' waits for 1 of 2 replicas"
    assert eventually(lambda: levels(wheelq("doctor", "--json", url=primary.url).json).get(title) == "warning")
    config.write_text("[client]\nreplicas = 2\n")
    assert title not in levels(wheelq("doctor", "--json", "--config", config, url=primary.url).json)


def test_doctor_tells_jobs_that_are_overdue_because_nobody_promotes_them(own_url: str) -> None:
    with Client.connect(own_url) as client:
        client.schedule("orders", delay=0.001)
    overdue = "problem No scheduler runs, and jobs are overdue: orders"
    assert eventually(lambda: overdue in wheelq("doctor", url=own_url).out)
    assert wheelq("doctor", url=own_url).code == 1


def test_doctor_tells_jobs_that_no_worker_handles(own_url: str) -> None:
    with Client.connect(own_url) as client:
        client.schedule("orders", delay=0)
    assert "warning 1 job of orders is ready and no live worker" in wheelq("doctor", url=own_url).out


def test_doctor_takes_a_consumer_in_another_language_for_one(own_url: str) -> None:
    """So one over HTTP, too: it has read one job of two just now."""
    with Client.connect(own_url) as client, redis.Redis.from_url(own_url) as raw:
        client.make_group("orders", "other")
        client.schedule_many("orders", [JobSpec(delay=0), JobSpec(delay=0)])
        ready = Keys().shard("orders", 0).ready
        assert eventually(lambda: raw.xlen(ready) == 2)
        raw.xreadgroup("other", "a-consumer", {ready: ">"}, count=1)
    assert "no live worker" not in wheelq("doctor", url=own_url).out


def test_doctor_gets_by_without_config(private_server: Callable[..., EmbeddedServer]) -> None:
    """Managed servers deny CONFIG to their users."""
    server = private_server(port=0, options={"user": "app on nopass ~* &* +@all -config"})
    answer = wheelq("doctor", "--json", url=server.url.replace("redis://", "redis://app:x@"))
    assert answer.code == 0, answer
    assert levels(answer.json)["The server's configuration cannot be read"] == "warning"


def test_doctor_tells_what_the_user_may_not_do(private_server: Callable[..., EmbeddedServer]) -> None:
    """What only workers need is a warning: the user may be one that looks, or schedules."""
    server = private_server(port=0, options={"user": "app on nopass ~* &* +@all -xautoclaim -zcard"})
    answer = wheelq("doctor", url=server.url.replace("redis://", "redis://app:x@"))
    assert answer.code == 1
    assert "problem EVALSHA was refused\n" in answer.out
    assert "warning XAUTOCLAIM was refused to this user\n" in answer.out


def test_doctor_says_to_a_producer_what_it_could_not_look_at_and_nothing_false(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    """It used to say five times that jobs do not run, and that only snapshots were written."""
    rights = Path("config/acl/producer.acl").read_text().splitlines()[-1].removeprefix("user wheelq-producer off ")
    server = private_server(port=0, options={"user": f"app on nopass {rights}"})
    answer = wheelq("doctor", "--json", url=server.url.replace("redis://", "redis://app:x@"))
    assert answer.code == 0, answer
    found = levels(answer.json)
    assert found["What the server reports about itself cannot be read"] == "warning"
    assert not [title for title in found if "written" in title or "memory" in title or "CONFIG" in title]


def test_doctor_names_api_keys_that_cannot_be_read(own_url: str) -> None:
    with redis.Redis.from_url(own_url) as server:
        server.hset("wheelq:access", "k1", b"\xc1")
        said = wheelq("doctor", "--json", url=own_url)
        assert (said.code, levels(said.json)["API key k1 cannot be read: not msgpack (FormatError)"]) == (1, "problem")
        listed = wheelq("keys", "list", "--json", url=own_url)
        assert (listed.json, "k1" in listed.err) == ([], True)
        assert wheelq("keys", "revoke", "k1", url=own_url).code == 0
        server.set("wheelq:access", "text")
        assert any(
            "The API keys cannot be read" in title for title in levels(wheelq("doctor", "--json", url=own_url).json)
        )
