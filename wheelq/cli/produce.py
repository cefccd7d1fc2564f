"""schedule, cancel, reschedule, run-now, job: one job at a time; and reshard."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from typing import Annotated

import typer

from wheelq.cli.options import At, Config, Delay, JobId, Json, Topic, Url, client_of
from wheelq.cli.output import NOT_FOUND, TOO_LATE, moment, say, say_json
from wheelq.cli.values import parse_at, parse_delay, parse_headers, parse_json
from wheelq.job import CancelOutcome, OnDuplicate, Receipt, RescheduleOutcome, RunNowOutcome
from wheelq.state import JobInfo
from wheelq.words import counted

Outcome = CancelOutcome | RescheduleOutcome | RunNowOutcome

_WORDS = {
    "cancelled": "cancelled: it will not run",
    "rescheduled": "rescheduled",
    "promoted": "is with the workers now",
    "cancelling": "runs: its worker was asked to cancel it",
    "paused": "is due now, and runs when its topic is resumed",
    "running": "is with the workers already: too late",
    "not_found": "not found: no live job has this id",
}
_EXIT_CODES = {"not_found": NOT_FOUND, "running": TOO_LATE}


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
        OnDuplicate, typer.Option("--on-duplicate", help="What to do if a live job has the key.")
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
    with client_of(url, config) as client:
        receipt = client.schedule(
            topic,
            written if text or written is None else parse_json(written, "; --text takes it as it is"),
            delay=None if delay is None else parse_delay(delay),
            at=None if at is None else parse_at(at),
            key=key,
            headers=parse_headers(header or ()),
            on_duplicate=on_duplicate,
        )
    if json:
        say_json({"topic": topic, **receipt._asdict(), "due": receipt.due})
    else:
        say(f"{topic}/{receipt.id} {_happened(receipt)}, due {moment(receipt.due_ms)}")


def cancel(
    topic: Topic,
    id: JobId,
    running: Annotated[bool, typer.Option("--running", help="If it runs now, ask its worker to cancel it.")] = False,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Cancel a waiting job. Exit code 3: no such job; 4: too late, it is with the workers."""
    with client_of(url, config) as client:
        _answer(topic, id, client.cancel(topic, id, running=running), json)


def reschedule(
    topic: Topic,
    id: JobId,
    delay: Delay = None,
    at: At = None,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Give a waiting job a new due time. Exit code 3: no such job; 4: too late, it is with the workers."""
    seconds = None if delay is None else parse_delay(delay)
    moment = None if at is None else parse_at(at)
    with client_of(url, config) as client:
        _answer(topic, id, client.reschedule(topic, id, delay=seconds, at=moment), json)


def run_now(topic: Topic, id: JobId, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Let a waiting job run now. Exit code 3: no such job; 4: it is with the workers already."""
    with client_of(url, config) as client:
        _answer(topic, id, client.run_now(topic, id), json)


def job(topic: Topic, id: JobId, url: Url = None, config: Config = None, json: Json = False) -> None:
    """Show where a job stands. Exit code 3: nothing is known of it."""
    with client_of(url, config) as client:
        found = client.get(topic, id)
    if json:
        say_json(None if found is None else {**_plain(found), "due": found.due})
    elif found is None:
        say(f"{topic}/{id} not found: never scheduled, finished or cancelled")
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

    Jobs that wait stay where they are until they have run, and are found there; new ones are placed by the new number.
    """
    with client_of(url, config) as client:
        info = client.set_shards(topic, shards)
    if json:
        say_json(info)
    else:
        say(f"{topic} has {counted(info.shards, 'shard')}; {counted(info.delayed, 'job waits', 'jobs wait')}")


def _happened(receipt: Receipt) -> str:
    if receipt.replaced:
        return "took the new payload and time"
    return "scheduled" if receipt.created else "was there already and is unchanged"


def _answer(topic: str, id: str, outcome: Outcome, json: bool) -> None:
    if json:
        say_json({"topic": topic, "id": id, "outcome": outcome.value})
    else:
        say(f"{topic}/{id} {_WORDS[outcome.value]}")
    if outcome.value in _EXIT_CODES:
        raise typer.Exit(_EXIT_CODES[outcome.value])


def _tell(found: JobInfo) -> None:
    """What is known of a job, in lines for people; groups only where there are several."""
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
