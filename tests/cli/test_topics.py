"""configure, pause, resume."""

from __future__ import annotations

from tests.cli.commands import wheelq
from wheelq.model.topic import TopicChanges


def test_a_topic_is_configured_and_shown(url: str, topic: str) -> None:
    answer = wheelq("configure", topic, "--max-rate", 200, "--retention", "3d", "--json", url=url)
    assert (answer.code, answer.json["max_rate"], answer.json["retention_ms"]) == (0, 200.0, 3 * 86_400_000)
    shown = next(line for line in wheelq("topics", "--wide", url=url).out.splitlines() if topic in line)
    assert "max_rate=200" in shown


def test_an_option_that_makes_no_sense_is_named(url: str, topic: str) -> None:
    """Not the setting that it stands for."""
    refused = {
        "--grace: must be more than 0": ("--misfire", "skip"),
        "--max-rate: must be at least 0, not -1": ("--max-rate", "-1"),
        "--keep-done: 'long' is not a duration": ("--keep-done", "long"),
        "--retention: must be at least 0": ("--retention", "-5"),
        "--result-max-bytes: must be at least 1, not 0": ("--result-max-bytes", "0"),
    }
    for words, options in refused.items():
        answer = wheelq("configure", topic, *options, url=url)
        assert (answer.code, words in answer.err) == (2, True), answer.err
    answer = wheelq("configure", "a topic", "--max-rate", "1", url=url)
    assert "topic: " in answer.err
    assert "--topic" not in answer.err


def test_every_setting_that_the_library_changes_is_changed_and_shown(url: str, topic: str) -> None:
    everything: TopicChanges = {
        "retention_ms": 1_000,
        "dead_retention_ms": 2_000,
        "dead_max": 3,
        "keep_done_ms": 4_000,
        "result_max_bytes": 1_048_576,
        "max_rate": 6.0,
        "max_pending": 7,
        "max_ready": 8,
        "key_concurrency": 11,
        "key_rate": 12.5,
        "misfire": "bury",
        "grace_ms": 9_000,
        "on_mismatch": "bury",
        "mismatch_ms": 10_000,
        "on_dead": "billing:/dead",
    }
    assert everything.keys() == TopicChanges.__annotations__.keys()
    options = [
        part
        for name, value in everything.items()
        for part in (
            "--" + name.removesuffix("_ms").replace("_", "-"),
            f"{value}ms" if name.endswith("_ms") else str(value),
        )
    ]
    answer = wheelq("configure", topic, *options, "--json", url=url)
    assert answer.code == 0, answer.err
    assert {name: answer.json[name] for name in everything} == everything
    shown = next(line for line in wheelq("topics", "--wide", url=url).out.splitlines() if topic in line)
    for words in (
        "dead_max=3",
        "result_max_bytes=1,048,576",
        "dead_retention=2s",
        "keep_done=4s",
        "bury after 9s",
        "on_mismatch=bury",
    ):
        assert words in shown


def test_a_topic_is_paused_and_resumed(url: str, topic: str) -> None:
    """While it is paused `run-now` says so, and the job goes first when it is resumed."""
    wheelq("schedule", topic, "--key", "k", "--delay", "1h", url=url)
    assert wheelq("pause", topic, url=url).out == f"{topic}: paused\n"
    assert "resumed" in wheelq("run-now", topic, "k", url=url).out
    assert wheelq("job", topic, "k", "--json", url=url).json["state"] == "waiting"
    assert wheelq("resume", topic, url=url).out == f"{topic}: no limits\n"
    assert wheelq("pause", topic + "-unused", url=url).code == 1
