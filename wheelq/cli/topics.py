"""configure, pause, resume, forecast: commands for a whole topic."""

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
from wheelq.model.topic import Topic as TopicState
from wheelq.model.topic import TopicChanges
from wheelq.settings import Misfire

BAR_CELLS = 50


def configure(
    topic: Topic,
    max_rate: Annotated[float | None, typer.Option(help="Most jobs promoted per second; 0: no limit.")] = None,
    max_pending: Annotated[int | None, typer.Option(help="Most jobs that wait; 0: no limit.")] = None,
    max_ready: Annotated[int | None, typer.Option(help="Most promoted jobs that are unread; 0: no limit.")] = None,
    retention: Annotated[
        str | None, typer.Option(help="How long consumed entries are kept: 3d; 0: not at all.")
    ] = None,
    dead_retention: Annotated[
        str | None, typer.Option(help="How long dead jobs are kept: 30d; 0: until they are purged.")
    ] = None,
    dead_max: Annotated[int | None, typer.Option(help="Most dead jobs in each shard; 0: no limit.")] = None,
    keep_done: Annotated[str | None, typer.Option(help="How long finished jobs are kept: 1d; 0: not at all.")] = None,
    result_max_bytes: Annotated[int | None, typer.Option(help="Largest result kept with a finished job.")] = None,
    misfire: Annotated[Misfire | None, typer.Option(help="What happens to jobs that would start too late.")] = None,
    grace: Annotated[str | None, typer.Option(help="How late is too late: 30s, 5m.")] = None,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Change settings of a live topic, or create a new topic with them.

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
    """Make errors about a setting name its option."""
    try:
        yield
    except InvalidInput as error:
        if error.field not in TopicChanges.__annotations__:
            raise
        raise InvalidInput("--" + error.field.removesuffix("_ms").replace("_", "-"), error.problem) from error


def pause(topic: Topic, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Pause a topic: nothing is promoted or started until it is resumed. Jobs can still be scheduled, and wait."""
    with client_of(url, config) as client:
        _show(topic, client.pause(topic), json)


def resume(topic: Topic, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Resume a paused topic. Jobs that fell due meanwhile run at once, earliest first."""
    with client_of(url, config) as client:
        _show(topic, client.resume(topic), json)


def forecast(topic: Topic, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Show how many jobs fall due in the next second, minute, hour and so on."""
    with client_of(url, config) as client:
        spans = client.forecast(topic)
    if json:
        say_json([plain(found) for found in spans])
        return
    most = max(found.jobs for found in spans)
    for found in spans:
        until = "later" if found.until_ms is None else f"within {span(found.until_ms)}" if found.until_ms else "due now"
        say(f"{until:<12}{found.jobs:>13,}  {_bar(found.jobs, most)}".rstrip())


def _bar(jobs: int, most: int) -> str:
    """Returns a bar of up to 50 cells, in eighths; even a single job is visible."""
    eighths = 0 if not jobs else max(1, round(8 * BAR_CELLS * jobs / most))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def settings_shown(topic: TopicState) -> str:
    """Returns a topic's settings that differ from the defaults, except the number of shards, as short text."""
    words = ["being removed"] if topic.removing else ["paused"] if topic.paused else []
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
