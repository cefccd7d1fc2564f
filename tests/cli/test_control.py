"""configure, pause, resume."""

from __future__ import annotations

from tests.cli.commands import wheelq


def test_a_topic_is_configured_and_shown(url: str, topic: str) -> None:
    answer = wheelq("configure", topic, "--max-rate", 200, "--retention", "3d", "--json", url=url)
    assert (answer.code, answer.json["max_rate"], answer.json["retention_ms"]) == (0, 200.0, 3 * 86_400_000)
    shown = next(line for line in wheelq("topics", url=url).out.splitlines() if topic in line)
    assert "max_rate=200" in shown
    assert wheelq("configure", topic, "--misfire", "skip", url=url).code == 2, "it needs a grace"


def test_a_topic_is_paused_and_resumed(url: str, topic: str) -> None:
    """While it is paused `run-now` says so, and the job goes first when it is resumed."""
    wheelq("schedule", topic, "--key", "k", "--delay", "1h", url=url)
    assert wheelq("pause", topic, url=url).out == f"{topic}: paused\n"
    assert "resumed" in wheelq("run-now", topic, "k", url=url).out
    assert wheelq("job", topic, "k", "--json", url=url).json["state"] == "delayed"
    assert wheelq("resume", topic, url=url).out == f"{topic}: no limits\n"
    assert wheelq("pause", topic + "-unused", url=url).code == 1
