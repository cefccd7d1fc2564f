"""What facts about a server mean: every finding, from facts made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wheelq.admin.diagnosis import Finding, JobFacts, Level, ServerFacts, diagnose, diagnose_server
from wheelq.admin.figures import CourierInfo

GOOD_INFO = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.2",
    "role": "master",
    "connected_slaves": "0",
    "aof_enabled": "1",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "used_memory": "1000000",
    "connected_clients": "3",
    "maxclients": "10000",
}
GOOD_CONFIG = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec", "save": ""}
GOOD = ServerFacts(GOOD_INFO, GOOD_CONFIG)
SERVED = JobFacts(waiting=5, schedulers=1, unread={"orders": 2}, served=frozenset({"orders"}))


def info(facts: ServerFacts = GOOD, **changes: str) -> ServerFacts:
    return replace(facts, info={**facts.info, **changes})


def config(**changes: str) -> ServerFacts:
    return replace(GOOD, config=GOOD_CONFIG | {name.replace("_", "-"): value for name, value in changes.items()})


def replicas(count: int, state: str = "online", **changes: str) -> ServerFacts:
    """A primary with so many replicas, and these settings."""
    lines = {f"slave{n}": f"ip=10.0.0.{n},port=6379,state={state},offset=42,lag=0" for n in range(count)}
    return replace(config(**changes), info=GOOD_INFO | {"connected_slaves": str(count)} | lines)


def redis(version: str) -> ServerFacts:
    plain = {name: value for name, value in GOOD_INFO.items() if name != "valkey_version"}
    return replace(GOOD, info=plain | {"redis_version": version})


def find(findings: list[Finding], words: str) -> Finding:
    """The one finding with these words in its title."""
    found = [finding for finding in findings if words in finding.title]
    assert len(found) == 1, [finding.title for finding in findings]
    return found[0]


def test_a_good_server_with_everyone_at_work_is_ok_throughout() -> None:
    assert {finding.level for finding in diagnose(GOOD, SERVED)} == {Level.OK}


def test_every_finding_that_is_not_ok_explains_itself() -> None:
    bad = ServerFacts({}, None, ("XAUTOCLAIM",), {"INFO": "NOPERM"})
    for finding in diagnose(bad, JobFacts(overdue_ms={"orders": 9_000}, unread={"orders": 1})):
        assert finding.level is Level.OK or finding.explanation.endswith(".")


# The server's version


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("5.0.14", Level.PROBLEM),
        ("6.2.1", Level.PROBLEM),
        ("6.2.2", Level.OK),
        ("6.2.14", Level.OK),
        ("7.0.15", Level.OK),
        ("8.6.2", Level.OK),
    ],
)
def test_redis_before_6_2_2_is_too_old(version: str, level: Level) -> None:
    assert find(diagnose_server(redis(version)), f"Redis {version}").level is level


# What is thrown away


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
def test_any_evicting_policy_is_a_problem_with_the_command_that_mends_it(policy: str) -> None:
    finding = find(diagnose_server(config(maxmemory_policy=policy)), policy)
    assert finding.level is Level.PROBLEM
    assert "CONFIG SET maxmemory-policy noeviction" in finding.explanation


@pytest.mark.parametrize(
    ("used", "level"), [("799", Level.OK), ("800", Level.WARNING), ("999", Level.WARNING), ("1000", Level.PROBLEM)]
)
def test_memory_near_its_limit_is_told_before_it_is_reached(used: str, level: Level) -> None:
    assert find(diagnose_server(info(maxmemory="1000", used_memory=used)), "of maxmemory is used").level is level


# What can be lost


@pytest.mark.parametrize(
    ("facts", "title", "level"),
    [
        (config(appendfsync="always"), "before its call returns", Level.OK),
        (config(appendfsync="everysec"), "every second", Level.OK),
        (config(appendfsync="no"), "operating system decides", Level.WARNING),
        (info(aof_enabled="0"), "Nothing is written to disk", Level.WARNING),
        (replace(info(aof_enabled="0"), config=GOOD_CONFIG | {"save": "900 1"}), "Only snapshots", Level.WARNING),
        (replace(info(aof_enabled="0"), config=None), "Only snapshots", Level.WARNING),
        (replace(GOOD, config=None), "An append-only file is written", Level.OK),
        (info(aof_last_write_status="err"), "append-only file cannot be written", Level.PROBLEM),
        (info(rdb_last_bgsave_status="err"), "last snapshot failed", Level.PROBLEM),
        (replicas(1), "1 replica follows", Level.WARNING),
        (replicas(2), "2 replicas follow", Level.WARNING),
        (replicas(1, appendfsync="always"), "before its call returns", Level.OK),
        (replicas(2, "wait_bgsave"), "2 of 2 replicas are not in step", Level.WARNING),
        (replicas(1, min_replicas_to_write="1"), "while fewer than 1 replica answer", Level.OK),
        (replicas(1, min_replicas_to_write="2"), "min-replicas-to-write is 2, and 1 replica is", Level.PROBLEM),
        (replicas(1, "send_bulk", min_replicas_to_write="1"), "is 1, and 0 replicas are", Level.PROBLEM),
        (config(min_replicas_to_write="1"), "min-replicas-to-write is 1, and 0 replicas are", Level.PROBLEM),
        (info(replicas(1), aof_enabled="0"), "Nothing is written to disk, and replicas copy that", Level.PROBLEM),
        (info(redis_version="6.0.0"), "Valkey 9.1.2", Level.OK),  # judged by its commands, not by the version it names
        (replace(redis("7.4.0"), missing=("XAUTOCLAIM",)), "lacks XAUTOCLAIM", Level.PROBLEM),
        (replace(info(maxmemory_policy="allkeys-lru"), config=None), "allkeys-lru", Level.PROBLEM),
        (info(redis_mode="cluster"), "is a cluster", Level.OK),
        (info(server_mode="cluster"), "is a cluster", Level.OK),
    ],
)
def test_the_diagnosis_names_the_server_and_what_can_be_lost(facts: ServerFacts, title: str, level: Level) -> None:
    assert find(diagnose_server(facts), title).level is level


def test_with_replicas_the_doctor_names_what_waits_for_them() -> None:
    assert "durability='replicated'" in find(diagnose_server(replicas(1)), "1 replica follows").explanation


def test_replicas_that_are_not_waited_for_are_a_warning_that_names_the_way_to_switch() -> None:
    finding = find(diagnose_server(replicas(2)), "durability='replicated' waits for 1 of 2 replicas")
    assert finding.level is Level.WARNING
    assert "Set [client] replicas to 2" in finding.explanation
    assert "FAILOVER TO host port" in finding.explanation
    for facts in (replicas(1), replace(replicas(2), waited_for=2)):
        assert not [found for found in diagnose_server(facts) if "waits for" in found.title]


def test_without_replicas_nothing_is_said_of_them() -> None:
    assert not [finding for finding in diagnose_server(GOOD) if "replica" in finding.title]


# Who may do what, and where


def test_a_denied_config_is_a_warning_and_no_more() -> None:
    findings = diagnose_server(replace(GOOD, config=None))
    assert find(findings, "configuration cannot be read").level is Level.WARNING
    assert Level.PROBLEM not in {finding.level for finding in findings}


def test_a_refused_command_is_a_problem_in_the_servers_own_words() -> None:
    finding = find(diagnose_server(replace(GOOD, refused={"EVALSHA": "NOPERM no permissions"})), "EVALSHA was refused")
    assert finding.level is Level.PROBLEM
    assert "NOPERM no permissions" in finding.explanation


def test_without_info_one_warning_names_what_was_not_looked_at_and_nothing_is_guessed() -> None:
    findings = diagnose_server(ServerFacts({}, None))
    assert [(one.level, one.title) for one in findings if one.level is not Level.OK] == [
        (Level.WARNING, "What the server reports about itself cannot be read"),
        (Level.WARNING, "The eviction policy cannot be seen"),
    ]
    assert not [one for one in findings if "disk" in one.title or "memory" in one.title or "unknown" in one.title]


@pytest.mark.parametrize("operation", ["XAUTOCLAIM", "ZMSCORE", "CLIENT LIST ID"])
def test_a_right_that_only_some_parts_need_is_a_warning_that_names_them(operation: str) -> None:
    finding = find(
        diagnose_server(replace(GOOD, refused={operation: "NOPERM"})), f"{operation} was refused to this user"
    )
    assert finding.level is Level.WARNING
    assert "need it" in finding.explanation or "use it" in finding.explanation


def test_a_replica_is_a_problem_that_names_its_primary() -> None:
    finding = find(diagnose_server(info(role="slave", master_host="db1", master_port="6379")), "is a replica")
    assert finding.level is Level.PROBLEM
    assert "db1:6379" in finding.explanation


def test_running_out_of_connections_is_told_at_nine_tenths() -> None:
    assert find(diagnose_server(info(connected_clients="90", maxclients="100")), "connections are in use")


@pytest.mark.parametrize(
    ("skew_ms", "words", "level"),
    [
        (3_600_000.0, "1h ahead of", Level.WARNING),
        (-1_002.0, "1s behind", Level.WARNING),
        (1_001.0, "1,001 ms ahead of", Level.OK),
        (-20.0, "20 ms behind", Level.OK),
    ],
)
def test_a_clock_that_is_surely_more_than_a_second_off_is_a_warning(skew_ms: float, words: str, level: Level) -> None:
    finding = find(diagnose_server(replace(GOOD, clock_skew_ms=skew_ms, clock_error_ms=1.0)), words)
    assert finding.level is level
    assert "Only the server's clock decides" in finding.explanation


# Who looks after the jobs


@pytest.mark.parametrize(
    ("schedulers", "overdue_ms", "title", "level"),
    [
        (0, 0, "No scheduler runs", Level.WARNING),
        (0, 61_000, "jobs are overdue: orders for 61 s", Level.PROBLEM),
        (1, 2_001, "Jobs are overdue", Level.PROBLEM),
        (1, 2_000, "1 scheduler runs", Level.OK),
    ],
)
def test_no_scheduler_is_a_warning_and_overdue_jobs_are_a_problem(
    schedulers: int, overdue_ms: int, title: str, level: Level
) -> None:
    jobs = replace(SERVED, schedulers=schedulers, overdue_ms={"orders": overdue_ms} if overdue_ms else {})
    assert find(diagnose(GOOD, jobs), title).level is level


def test_ready_jobs_that_no_live_worker_handles_are_a_warning() -> None:
    jobs = replace(SERVED, unread={"orders": 2, "mails": 3, "quiet": 0})
    assert find(diagnose(GOOD, jobs), "3 jobs of mails are ready").level is Level.WARNING
    assert not [finding for finding in diagnose(GOOD, jobs) if "quiet" in finding.title]


def test_followers_that_their_topics_do_not_take_are_a_warning() -> None:
    jobs = replace(SERVED, outgoing={"orders": 3})
    assert find(diagnose(GOOD, jobs), "3 jobs that follow jobs of orders").level is Level.WARNING


def test_what_has_one_cause_is_one_finding() -> None:
    """However many topics, groups and receivers it concerns; the first ten are named."""
    topics = [f"t{n:02}" for n in range(12)]
    jobs = replace(
        SERVED,
        unread=dict.fromkeys(topics, 2),
        unserved={(topic, "default"): 2 for topic in topics},
        paused=dict.fromkeys(topics, 0) | {"t05": 3_000},
        open_destinations=("bank", "shop"),
    )
    named = "t00, t01, t02, t03, t04, t05, t06, t07, t08, t09 and 2 more"
    groups = ", ".join(f"default of {topic}" for topic in topics[:10])
    assert [finding.title for finding in diagnose(GOOD, jobs) if finding.level is Level.WARNING] == [
        f"12 topics are paused, and jobs have been due for 3 s: {named}",
        "2 receivers are not called: bank, shop",
        f"24 jobs in 12 topics are ready and no live worker handles these: {named}",
        f"No live worker serves 12 groups, which have 24 jobs to do: {groups} and 2 more",
    ]


@pytest.mark.parametrize(
    ("changes", "says", "level"),
    [
        ({"lives": False}, "No courier delivers what is in the SQL outbox db/shop/calls", Level.PROBLEM),
        ({"oldest_s": 90.0}, "The first call in the SQL outbox db/shop/calls has waited for 90 s", Level.WARNING),
        ({"aside": 2}, "2 calls were put aside in the SQL outbox db/shop/calls", Level.WARNING),
    ],
)
def test_a_sql_outbox_that_is_not_delivered_is_named(changes: dict[str, Any], says: str, level: Level) -> None:
    told = replace(COURIER, **changes)
    finding = find(diagnose(GOOD, replace(SERVED, couriers=tuple(told.troubles()))), says)
    assert (finding.level, "wheelq" in finding.explanation) == (level, True)


def test_a_sql_outbox_whose_courier_delivers_needs_no_word() -> None:
    assert list(COURIER.troubles()) == []


COURIER = CourierInfo("db/shop/calls", 1, "host-1", 3, 1.0, 0, 5, "-", True)
