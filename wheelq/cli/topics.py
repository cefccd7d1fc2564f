"""topics, topic list, topic remove, configure, pause, resume, forecast: commands for whole topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from wheelq.cli.options import Config, Force, Json, Topic, Url, Wide, Yes, client_of, inspector_of
from wheelq.cli.output import distance, plain, say, say_json, stdout, table
from wheelq.cli.values import parse_delay, span
from wheelq.errors import InvalidInput
from wheelq.model.topic import Topic as TopicState
from wheelq.model.topic import TopicChanges, TopicInfo
from wheelq.settings import Misfire, TopicSettings
from wheelq.settings.declaration import declarations

topic = typer.Typer(help="List and remove topics.", no_args_is_help=True)

BAR_CELLS = 50
SETTINGS = declarations(TopicSettings)


@topic.command("list")
def topics(url: Url = None, config: Config = None, wide: Wide = False, json: Json = False) -> None:
    """Show every topic with its job counts."""
    with inspector_of(url, config) as inspector:
        found = inspector.stats().topics
    if json:
        say_json(found)
    else:
        stdout(wide).print(topics_table(found))


@topic.command("remove")
def remove_topic(
    topic: Topic, yes: Yes = False, force: Force = False, url: Url = None, config: Config = None, json: Json = False
) -> None:
    """Remove a topic with everything in it: groups, dead jobs, recurring and finished jobs, settings. Asks first.

    Takes 10 seconds, until no producer has the topic in its cache. Exit code 1: it has live workers, unfinished jobs or
    recurring jobs.
    """
    with client_of(url, config) as client:
        if not yes:
            typer.confirm(f"Remove topic {topic} and everything in it, for good?", abort=True, err=True)
        client.remove_topic(topic, force=force)
    if json:
        say_json({"topic": topic, "removed": True})
    else:
        say(f"topic {topic} is removed")


def _changes(name: str) -> Any:
    """The option that changes a setting; a time is text such as 30s."""
    how = " As in 30s, 5m, 3d." if SETTINGS[name].unit == "ms" else ""
    return typer.Option(help=f"{SETTINGS[name].brief}.{how}")


def configure(
    topic: Topic,
    max_rate: Annotated[float | None, _changes("max_rate")] = None,
    max_pending: Annotated[int | None, _changes("max_pending")] = None,
    max_ready: Annotated[int | None, _changes("max_ready")] = None,
    misfire: Annotated[Misfire | None, _changes("misfire")] = None,
    grace: Annotated[str | None, _changes("grace_ms")] = None,
    retention: Annotated[str | None, _changes("retention_ms")] = None,
    keep_done: Annotated[str | None, _changes("keep_done_ms")] = None,
    result_max_bytes: Annotated[int | None, _changes("result_max_bytes")] = None,
    dead_retention: Annotated[str | None, _changes("dead_retention_ms")] = None,
    dead_max: Annotated[int | None, _changes("dead_max")] = None,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Change settings of a live topic, or create a new topic with them.

    wheelq configure orders --max-rate 200
    """
    given = locals()
    asked = {name: given[name.removesuffix("_ms")] for name in TopicChanges.__annotations__}
    with _options_named(), client_of(url, config) as client:
        changes: Any = {name: _parsed(name, value) for name, value in asked.items() if value is not None}
        _show(topic, client.configure(topic, **changes), json)


def _parsed(setting: str, value: Any) -> Any:
    try:
        return round(1000 * parse_delay(value)) if SETTINGS[setting].unit == "ms" else value
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


def topics_table(found: list[TopicInfo]) -> RenderableType:
    """Returns the table of topics with their job counts."""
    if not found:
        return "no topics yet: the first job of a topic creates it"
    return table(
        "topic",
        ">waiting",
        ">ready",
        ">running",
        ">retrying",
        ">dead",
        ">shards?",
        "next due?",
        "overdue?",
        "settings?~",
        rows=(
            (
                topic.name,
                topic.waiting,
                topic.ready,
                topic.running,
                topic.retrying,
                topic.dead,
                topic.shards,
                "-" if topic.first_due_ms is None else distance(topic.first_due_ms),
                span(topic.overdue_ms) if topic.overdue_ms else "-",
                settings_shown(topic.settings) or "-",
            )
            for topic in found
        ),
    )


def settings_shown(topic: TopicState) -> str:
    """Returns a topic's settings that differ from the defaults, except the number of shards, as short text."""
    words = ["being removed"] if topic.removing else ["paused"] if topic.paused else []
    for name in TopicChanges.__annotations__:
        value = getattr(topic, name)
        if value == SETTINGS[name].default or name == "grace_ms":
            continue
        if name == "misfire":
            words.append(f"{value} after {span(topic.grace_ms)}")
        else:
            shown = span(value) if SETTINGS[name].unit == "ms" else f"{value:,.15g}"
            words.append(f"{name.removesuffix('_ms')}={shown}")
    return ", ".join(words)


def _show(topic: str, state: TopicState, json: bool) -> None:
    if json:
        say_json(state)
    else:
        say(f"{topic}: {settings_shown(state) or 'no limits'}")
