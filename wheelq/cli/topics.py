"""Commands for whole topics and their groups: topics, topic, group, configure, pause, resume, forecast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from wheelq.admin import Stats
from wheelq.base.plural import counted
from wheelq.cli.options import Force, Session, Topic, Wide, Yes
from wheelq.cli.output import NOT_FOUND, distance, plain, say, say_json, table_of
from wheelq.errors import InvalidInput
from wheelq.model.durations import parse_duration, span
from wheelq.model.topic import Group, TopicChanges, TopicInfo
from wheelq.model.topic import Topic as TopicState
from wheelq.settings import Misfire, OnMismatch, TopicSettings
from wheelq.settings.declaration import declarations

topic = typer.Typer(help="List and remove topics.", no_args_is_help=True)
group = typer.Typer(help="List and remove the consumer groups of a topic.", no_args_is_help=True)

GroupName = Annotated[str, typer.Argument(help="The group's name.", show_default=False)]

BAR_CELLS = 50
SETTINGS = declarations(TopicSettings)


@topic.command("list")
def topics(session: Session, wide: Wide = False) -> None:
    """Show every topic with its job counts."""
    with session.inspector() as inspector:
        found = inspector.stats()
    session.answer(found.topics, topics_table(found), wide)


@topic.command("remove")
def remove_topic(session: Session, topic: Topic, yes: Yes = False, force: Force = False) -> None:
    """Remove a topic with everything in it: groups, dead jobs, recurring and finished jobs, settings. Asks first.

    Takes 10 seconds, until no producer has the topic in its cache. Exit code 1: it has live workers, unfinished jobs or
    recurring jobs.
    """
    with session.client() as client:
        if not yes:
            typer.confirm(f"Remove topic {topic} and everything in it, for good?", abort=True, err=True)
        client.remove_topic(topic, force=force)
    session.answer({"topic": topic, "removed": True}, f"topic {topic} is removed")


def _changes(name: str) -> Any:
    """The option that changes a setting; a time is text such as 30s."""
    how = " As in 30s, 5m, 3d." if SETTINGS[name].unit == "ms" else ""
    return typer.Option(help=f"{SETTINGS[name].brief}.{how}")


def configure(
    session: Session,
    topic: Topic,
    max_rate: Annotated[float | None, _changes("max_rate")] = None,
    max_pending: Annotated[int | None, _changes("max_pending")] = None,
    max_ready: Annotated[int | None, _changes("max_ready")] = None,
    key_concurrency: Annotated[int | None, _changes("key_concurrency")] = None,
    key_rate: Annotated[float | None, _changes("key_rate")] = None,
    misfire: Annotated[Misfire | None, _changes("misfire")] = None,
    grace: Annotated[str | None, _changes("grace_ms")] = None,
    on_mismatch: Annotated[OnMismatch | None, _changes("on_mismatch")] = None,
    mismatch: Annotated[str | None, _changes("mismatch_ms")] = None,
    retention: Annotated[str | None, _changes("retention_ms")] = None,
    keep_done: Annotated[str | None, _changes("keep_done_ms")] = None,
    result_max_bytes: Annotated[int | None, _changes("result_max_bytes")] = None,
    dead_retention: Annotated[str | None, _changes("dead_retention_ms")] = None,
    dead_max: Annotated[int | None, _changes("dead_max")] = None,
    on_dead: Annotated[str | None, _changes("on_dead")] = None,
) -> None:
    """Change settings of a live topic, or create a new topic with them.

    wheelq configure orders --max-rate 200
    """
    given = locals()
    asked = {name: given[name.removesuffix("_ms")] for name in TopicChanges.__annotations__}
    with _options_named(), session.client() as client:
        changes: Any = {name: _parsed(name, value) for name, value in asked.items() if value is not None}
        _show(session, topic, client.configure(topic, **changes))


def _parsed(setting: str, value: Any) -> Any:
    return round(1000 * parse_duration(value, setting)) if SETTINGS[setting].unit == "ms" else value


@contextmanager
def _options_named() -> Iterator[None]:
    """Make errors about a setting name its option."""
    try:
        yield
    except InvalidInput as error:
        if error.field not in TopicChanges.__annotations__:
            raise
        raise InvalidInput("--" + error.field.removesuffix("_ms").replace("_", "-"), error.problem) from error


def pause(session: Session, topic: Topic) -> None:
    """Pause a topic: nothing is promoted or started until it is resumed. Jobs can still be scheduled, and wait."""
    with session.client() as client:
        _show(session, topic, client.pause(topic))


def resume(session: Session, topic: Topic) -> None:
    """Resume a paused topic. Jobs that fell due meanwhile run at once, earliest first."""
    with session.client() as client:
        _show(session, topic, client.resume(topic))


def forecast(session: Session, topic: Topic) -> None:
    """Show how many jobs fall due in the next second, minute, hour and so on."""
    with session.client() as client:
        spans = client.forecast(topic)
    if session.json:
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


def topics_table(found: Stats) -> RenderableType:
    """Returns the table of topics with their job counts."""
    if not found.topics:
        return "no topics yet: the first job of a topic creates it"
    return table_of(
        found.topics,
        {
            "topic": "name",
            ">waiting": "waiting",
            ">ready": "ready",
            ">running": "running",
            ">retrying": "retrying",
            ">dead": "dead",
            ">shards?": "shards",
            "next due?": lambda topic: (
                "-" if topic.first_due_ms is None else distance(topic.first_due_ms, found.server_ms)
            ),
            "overdue?": lambda topic: span(topic.overdue_ms) if topic.overdue_ms else "-",
            "held back?": lambda topic: _held_back(topic) or "-",
            "settings?~": lambda topic: settings_shown(topic.settings) or "-",
        },
    )


def _held_back(topic: TopicInfo) -> str:
    """Returns how many due jobs the limits per key hold back, and for how long; empty if there are none."""
    if not topic.held_back:
        return ""
    keys = "100 keys or more" if topic.keys_at_limit >= 100 else counted(topic.keys_at_limit, "key")
    return f"{topic.held_back:,} of {keys}, {span(topic.longest_held_ms)}"


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
            shown = span(value) if SETTINGS[name].unit == "ms" else value if type(value) is str else f"{value:,.15g}"
            words.append(f"{name.removesuffix('_ms')}={shown}")
    return ", ".join(words)


def _show(session: Session, topic: str, state: TopicState) -> None:
    session.answer(state, f"{topic}: {settings_shown(state) or 'no limits'}")


@group.command("list")
def list_groups(session: Session, topic: Topic, wide: Wide = False) -> None:
    """Show the groups of a topic: how far behind each is, and its workers."""
    with session.client() as client:
        found = client.groups(topic)
    now_ms = session.now_ms()
    shown = table_of(
        found,
        {
            "group": "name",
            ">lag": _lag,
            ">pending": "pending",
            "oldest?": lambda one: "-" if one.oldest_ms is None else distance(one.oldest_ms, now_ms),
            "workers?~": lambda one: " ".join(one.workers) or "-",
        },
    )
    nothing = f"{topic} has no group: the first worker of a group creates it"
    session.answer([_plain(one) for one in found], shown if found else nothing, wide)


@group.command("remove")
def remove_group(session: Session, topic: Topic, name: GroupName, yes: Yes = False, force: Force = False) -> None:
    """Remove a group with its unread, running, retrying and dead jobs. Asks first.

    Other groups keep their jobs. Exit code 1: the group has live workers. Exit code 3: there is no such group.
    """
    with session.client() as client:
        if not yes:
            found = next((one for one in client.groups(topic) if one.name == name), None)
            behind = "" if found is None else f", which has {_lag(found)} jobs unread and {found.pending} running"
            typer.confirm(f"Remove group {name} of {topic}{behind}, for good?", abort=True, err=True)
        was_there = client.remove_group(topic, name, force=force)
    session.answer(
        {"topic": topic, "group": name, "removed": was_there},
        f"group {name} of {topic} is removed" if was_there else f"{topic} has no group {name}",
    )
    if not was_there:
        raise typer.Exit(NOT_FOUND)


def _plain(one: Group) -> dict[str, object]:
    return {name: getattr(one, name) for name in ("name", "lag", "pending", "oldest_ms", "workers")}


def _lag(one: Group) -> str:
    return f"{one.lag:,}{'+' if one.has_more else ''}"
