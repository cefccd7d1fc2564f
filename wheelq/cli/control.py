"""configure, pause, resume: a topic as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from wheelq.cli.options import Config, Json, Topic, Url, client_of
from wheelq.cli.output import plain, say, say_json
from wheelq.cli.values import parse_delay, span
from wheelq.errors import InvalidInput
from wheelq.settings import Misfire
from wheelq.topics import Topic as TopicState
from wheelq.topics import TopicChanges


def configure(
    topic: Topic,
    max_rate: Annotated[float | None, typer.Option(help="Most jobs promoted in a second; 0: no limit.")] = None,
    max_pending: Annotated[int | None, typer.Option(help="Most jobs that wait; 0: no limit.")] = None,
    max_ready: Annotated[int | None, typer.Option(help="Most promoted jobs that are unread; 0: no limit.")] = None,
    retention: Annotated[str | None, typer.Option(help="How long consumed entries are kept: 3d, 1h; 0: not.")] = None,
    dead_retention: Annotated[
        str | None, typer.Option(help="How long dead jobs are kept: 30d; 0: until they are purged.")
    ] = None,
    dead_max: Annotated[int | None, typer.Option(help="Most dead jobs in each shard; 0: no limit.")] = None,
    keep_done: Annotated[str | None, typer.Option(help="How long finished jobs are known: 1h, 1d; 0: not.")] = None,
    result_max_bytes: Annotated[int | None, typer.Option(help="Largest result kept with a finished job.")] = None,
    misfire: Annotated[Misfire | None, typer.Option(help="What becomes of jobs that would start too late.")] = None,
    grace: Annotated[str | None, typer.Option(help="How late is too late: 30s, 5m.")] = None,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Change settings of a topic, live. A topic that is new is made with them.

    wheelq configure orders --max-rate 200
    """
    times = {
        "retention_ms": retention,
        "dead_retention_ms": dead_retention,
        "keep_done_ms": keep_done,
        "grace_ms": grace,
    }
    others = {
        "max_rate": max_rate,
        "max_pending": max_pending,
        "max_ready": max_ready,
        "dead_max": dead_max,
        "result_max_bytes": result_max_bytes,
        "misfire": misfire,
    }
    changes: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
    with _options_named(), client_of(url, config) as client:
        changes |= {name: _parsed(name, text) for name, text in times.items() if text is not None}
        _show(topic, client.configure(topic, **changes), json)


def _parsed(setting: str, text: str) -> int:
    try:
        return round(1000 * parse_delay(text))
    except InvalidInput as error:
        raise InvalidInput(setting, error.problem) from error


@contextmanager
def _options_named() -> Iterator[None]:
    """An error about a setting names the option instead."""
    try:
        yield
    except InvalidInput as error:
        if error.field not in TopicChanges.__annotations__:
            raise
        raise InvalidInput("--" + error.field.removesuffix("_ms").replace("_", "-"), error.problem) from error


def pause(topic: Topic, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Let a topic promote nothing, and its workers begin nothing. Jobs can be scheduled, and wait."""
    with client_of(url, config) as client:
        _show(topic, client.pause(topic), json)


def resume(topic: Topic, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Let a paused topic go on. What fell due meanwhile runs at once, earliest first."""
    with client_of(url, config) as client:
        _show(topic, client.resume(topic), json)


def forecast(topic: Topic, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Show how many jobs are due when."""
    with client_of(url, config) as client:
        spans = client.forecast(topic)
    if json:
        say_json([plain(found) for found in spans])
        return
    for found in spans:
        until = "later" if found.until_ms is None else f"within {span(found.until_ms)}" if found.until_ms else "due now"
        say(f"{until:<16}{found.jobs:>12,}")


def settings_shown(topic: TopicState) -> str:
    """What a topic has besides its number of shards and what every topic has, in few words."""
    words = ["paused"] if topic.paused else []
    usual = asdict(TopicState())
    changed = {name: value for name, value in asdict(topic).items() if value != usual[name]}
    numbers = ("max_rate", "max_pending", "max_ready", "dead_max", "result_max_bytes")
    words += [f"{name}={changed[name]:,.15g}" for name in numbers if name in changed]
    times = {"retention_ms": "retention", "dead_retention_ms": "dead_retention", "keep_done_ms": "keep_done"}
    words += [f"{shown}={span(changed[name])}" for name, shown in times.items() if name in changed]
    if topic.misfire != "run":
        words.append(f"{topic.misfire} after {span(topic.grace_ms)}")
    return ", ".join(words)


def _show(topic: str, state: TopicState, json: bool) -> None:
    if json:
        say_json(state)
    else:
        say(f"{topic}: {settings_shown(state) or 'no limits'}")
