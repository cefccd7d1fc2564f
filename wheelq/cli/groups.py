"""group list, group remove: lists and removes the groups of a topic."""

from __future__ import annotations

from typing import Annotated

import typer

from wheelq.cli.options import Config, Force, Json, Topic, Url, Wide, Yes, client_of
from wheelq.cli.output import NOT_FOUND, distance, say, say_json, stdout, table
from wheelq.model.topic import Group

group = typer.Typer(help="List and remove the consumer groups of a topic.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The group's name.", show_default=False)]


@group.command("list")
def list_groups(topic: Topic, url: Url = None, config: Config = None, wide: Wide = False, json: Json = False) -> None:
    """Show the groups of a topic: how far behind each is, and its workers."""
    with client_of(url, config) as client:
        found = client.groups(topic)
    if json:
        say_json([_plain(one) for one in found])
    elif not found:
        say(f"{topic} has no group: the first worker of a group creates it")
    else:
        rows = ((one.name, _lag(one), one.pending, _oldest(one), " ".join(one.workers) or "-") for one in found)
        stdout(wide).print(table("group", ">lag", ">pending", "oldest?", "workers?~", rows=rows))


@group.command("remove")
def remove_group(
    topic: Topic,
    name: Name,
    yes: Yes = False,
    force: Force = False,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Remove a group with its unread, running, retrying and dead jobs. Asks first.

    Other groups keep their jobs. Exit code 1: the group has live workers. Exit code 3: there is no such group.
    """
    with client_of(url, config) as client:
        if not yes:
            found = next((one for one in client.groups(topic) if one.name == name), None)
            behind = "" if found is None else f", which has {_lag(found)} jobs unread and {found.pending} running"
            typer.confirm(f"Remove group {name} of {topic}{behind}, for good?", abort=True, err=True)
        was_there = client.remove_group(topic, name, force=force)
    if json:
        say_json({"topic": topic, "group": name, "removed": was_there})
    else:
        say(f"group {name} of {topic} is removed" if was_there else f"{topic} has no group {name}")
    if not was_there:
        raise typer.Exit(NOT_FOUND)


def _plain(one: Group) -> dict[str, object]:
    return {
        "name": one.name,
        "lag": one.lag,
        "pending": one.pending,
        "oldest_ms": one.oldest_ms,
        "workers": list(one.workers),
    }


def _lag(one: Group) -> str:
    return f"{one.lag:,}{'+' if one.has_more else ''}"


def _oldest(one: Group) -> str:
    return "-" if one.oldest_ms is None else distance(one.oldest_ms)
