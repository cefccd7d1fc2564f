"""schedule, job: one job at a time; and reshard."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wheelq.base.plural import counted
from wheelq.cli.options import At, Config, Delay, JobId, Json, Topic, Url, client_of, inspector_of
from wheelq.cli.output import NOT_FOUND, moment, receipt_fields, say, say_aside, say_json
from wheelq.cli.values import parse_due, parse_headers, parse_json, span
from wheelq.errors import ServerError
from wheelq.model.job import OnDuplicate, Receipt
from wheelq.model.state import JobInfo

if TYPE_CHECKING:
    from wheelq.client import Client


def schedule(
    topic: Topic,
    payload: Annotated[
        str | None, typer.Argument(help="JSON; '-' reads it from stdin. Default: null.", show_default=False)
    ] = None,
    delay: Delay = None,
    at: At = None,
    key: Annotated[str | None, typer.Option("--key", help="The job's id; made up if not given.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", help="NAME=VALUE; may be repeated.")] = None,
    on_duplicate: Annotated[
        OnDuplicate, typer.Option("--on-duplicate", help="What to do if a live job has this key.")
    ] = "keep",
    text: Annotated[bool, typer.Option("--text", help="The payload is plain text, not JSON.")] = False,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Schedule one job.

    wheelq schedule orders '{"id": 42}' --delay 30m --key order-42
    """
    written = sys.stdin.read() if payload == "-" else payload
    seconds, instant = parse_due(delay, at)
    with client_of(url, config) as client:
        note = _note_if_new(client, topic, url, config)
        receipt = client.schedule(
            topic,
            written if text or written is None else parse_json(written, "; --text takes it as it is"),
            delay=seconds,
            at=instant,
            key=key,
            headers=parse_headers(header or ()),
            on_duplicate=on_duplicate,
        )
    if note is not None:
        say_aside(note)
    if json:
        say_json(receipt_fields(receipt))
    else:
        say(f"{topic}/{receipt.id} {_happened(receipt)}, due {moment(receipt.due_ms)}")


def _note_if_new(client: Client, topic: str, url: str | None, config: Path | None) -> str | None:
    """Returns a note about a topic that does not exist yet; None if it exists, or if that cannot be known."""
    try:
        known = [info.name for info in client.topics()]
    except ServerError:  # the server is away, which the schedule call reports; or this user may only schedule
        return None
    if topic in known:
        return None
    near = " or ".join(get_close_matches(topic, known))
    said = f"topic {topic} is new" + (f": did you mean {near}?" if near else "")
    return said if known else said + _other_prefixes(url, config)


def _other_prefixes(url: str | None, config: Path | None) -> str:
    """Returns what to add where no topic is known, and programs with another prefix use the server."""
    with inspector_of(url, config) as inspector:
        try:
            others = ", ".join(inspector.other_prefixes())
        except ServerError:
            return ""
    return (
        f", and the first of its prefix; in use on this server: the prefix {others} (WHEELQ_PREFIX)" if others else ""
    )


def job(topic: Topic, id: JobId, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Show a job and its state. Exit code 3: no such job is known."""
    with client_of(url, config) as client:
        found = client.get(topic, id)
    if json:
        say_json(None if found is None else {**_plain(found), "due": found.due})
    elif found is None:
        say(f"{topic}/{id} is finished or unknown; keep_done_ms keeps it: wheelq configure {topic} --keep-done 1d")
    else:
        _tell(found)
        say_json(found.payload)
        for name, value in found.headers.items():
            say(f"{name}={value}")
    if found is None:
        raise typer.Exit(NOT_FOUND)


def reshard(
    topic: Topic,
    shards: Annotated[int, typer.Argument(help="The new number of shards.", show_default=False)],
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Change a topic's number of shards, up or down, while jobs wait and run.

    Waiting jobs stay in their shards until they have run, and can be looked up there; new jobs use the new number.
    """
    with client_of(url, config) as client:
        info = client.set_shards(topic, shards)
    if json:
        say_json(info)
    else:
        say(f"{topic} has {counted(info.shards, 'shard')}; {counted(info.waiting, 'job waits', 'jobs wait')}")


def _happened(receipt: Receipt) -> str:
    if receipt.replaced:
        return "took the new payload and time"
    return "scheduled" if receipt.created else "was there already and is unchanged"


def _tell(found: JobInfo) -> None:
    """Print a job as lines of text; groups only if there are several."""
    say(f"{found.topic}/{found.id} is {found.state.value}, due {moment(found.due_ms)}, attempt {found.attempt}")
    for what, ms in (("started", found.started_ms), ("finished", found.finished_ms)):
        if ms is not None:
            say(f"{what} {moment(ms)}")
    if found.worker is not None:
        say(f"worker: {found.worker}")
    if found.progress is not None:
        say(f"progress: {found.progress.fraction:.0%} {found.progress.text}")
    if found.last_error is not None:
        say(f"last error: {found.last_error}")
    for attempt in found.attempts:
        said = attempt.error or "succeeded"
        say(f"attempt at {moment(attempt.started_ms)}, {span(attempt.duration_ms)}, on {attempt.worker}: {said}")
    if len(found.groups) > 1:
        for name, group in found.groups.items():
            say(f"group {name}: {group.state.value}")
    if found.result is not None:
        say(f"result: {found.result!r}")


def _plain(found: JobInfo) -> dict[str, object]:
    names = [item.name for item in fields(found) if item.name not in ("progress", "groups")]
    plain: dict[str, object] = {name: getattr(found, name) for name in names}
    plain["progress"] = None if found.progress is None else asdict(found.progress)
    return {**plain, "groups": {name: asdict(group) for name, group in found.groups.items()}}
