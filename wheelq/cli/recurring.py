"""recurring put, list, show, pause, resume, trigger, remove: jobs that occur again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from wheelq.cli.options import Attempts, Headers, Payload, Session, Timeout, Topic, Wide
from wheelq.cli.output import NOT_FOUND, distance, moment, receipt_fields, say, say_content, say_json, table
from wheelq.cli.values import parse_at, parse_headers, parse_json
from wheelq.errors import InvalidInput
from wheelq.model.durations import parse_duration, span
from wheelq.model.recurring import Missed, RecurringInfo, RecurringOutcome, Rule

app = typer.Typer(help="Manage recurring jobs, by cron or at an interval.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The recurring job's name, unique in its topic.", show_default=False)]

_WORDS = {
    RecurringOutcome.CREATED: "is new",
    RecurringOutcome.UPDATED: "is changed",
    RecurringOutcome.UNCHANGED: "is unchanged",
    RecurringOutcome.PAUSED: "is paused: it does not occur until resumed",
    RecurringOutcome.RESUMED: "occurs again from now on",
    RecurringOutcome.REMOVED: "is removed",
    RecurringOutcome.NOT_FOUND: "not found: the topic has no recurring job with this name",
}


@app.command()
def put(
    session: Session,
    topic: Topic,
    name: Name,
    payload: Payload = None,
    cron: Annotated[
        str | None, typer.Option("--cron", help="minute hour day-of-month month day-of-week, or a name like @daily.")
    ] = None,
    every: Annotated[str | None, typer.Option("--every", help="An interval: 30m, 90s, 1d, or seconds.")] = None,
    tz: Annotated[str, typer.Option("--tz", help="IANA time zone of the cron expression.")] = "UTC",
    start: Annotated[str | None, typer.Option("--start", help="Not before, in ISO 8601 with a time zone.")] = None,
    end: Annotated[str | None, typer.Option("--end", help="Not after, in ISO 8601 with a time zone.")] = None,
    jitter: Annotated[str, typer.Option("--jitter", help="Delay each occurrence randomly by up to this long.")] = "0",
    missed: Annotated[Missed, typer.Option("--missed", help="Which missed occurrences run.")] = "coalesce",
    grace: Annotated[
        str | None, typer.Option("--grace", help="Skip missed occurrences that are later than this.")
    ] = None,
    header: Headers = None,
    attempts: Attempts = None,
    timeout: Timeout = None,
) -> None:
    """Create a recurring job, or change it. Putting the same job again changes nothing.

    wheelq recurring put reports nightly '{"kind": "sales"}' --cron '0 2 * * MON-FRI' --tz Europe/Berlin
    """
    if (cron is None) == (every is None):
        raise InvalidInput("--cron", "give either --cron '30 2 * * *' or --every 1h")
    written = sys.stdin.read() if payload == "-" else payload
    with session.client() as client:
        receipt = client.recurring.put(
            topic,
            name,
            None if written is None else parse_json(written),
            cron=cron,
            every=None if every is None else parse_duration(every, "every"),
            tz=tz,
            start=None if start is None else parse_at(start, "start"),
            end=None if end is None else parse_at(end, "end"),
            jitter=parse_duration(jitter, "jitter"),
            missed=missed,
            grace=None if grace is None else parse_duration(grace, "grace"),
            headers=parse_headers(header or ()),
            attempts=attempts,
            timeout=None if timeout is None else parse_duration(timeout, "timeout"),
        )
    due = (
        "it is paused, or past its end"
        if receipt.next_ms is None
        else f"next due {moment(receipt.next_ms, session.now_ms())}"
    )
    plain = {"topic": topic, **receipt._asdict(), "next": receipt.next}
    session.answer(plain, f"{topic}/{name} {_WORDS[receipt.outcome]}; {due}")


@app.command("list")
def list_(
    session: Session,
    topic: Annotated[str | None, typer.Argument(help="Only this topic's.", show_default=False)] = None,
    wide: Wide = False,
) -> None:
    """List recurring jobs, and when they are next due."""
    with session.client() as client:
        found = client.recurring.list(topic)
    session.answer([_plain(info) for info in found], _table(found, session.now_ms()), wide)


@app.command()
def show(session: Session, topic: Topic, name: Name) -> None:
    """Show a recurring job in full. Exit code 3: the topic has none with this name."""
    with session.client() as client:
        found = client.recurring.get(topic, name)
    if session.json:
        say_json(None if found is None else _plain(found))
    elif found is None:
        say(f"{topic}/{name} {_WORDS[RecurringOutcome.NOT_FOUND]}")
    else:
        now_ms = session.now_ms()
        say(f"{topic}/{name} occurs {_when(found.rule)}")
        say(f"next due   {_next(found, partial(moment, now_ms=now_ms))}")
        if found.last_ms is not None:
            say(f"made last  {moment(found.last_ms, now_ms)}")
        say_content(found.payload, found.headers)
    if found is None:
        raise typer.Exit(NOT_FOUND)


@app.command()
def pause(session: Session, topic: Topic, name: Name) -> None:
    """Pause a recurring job until it is resumed. Exit code 3: the topic has none with this name."""
    with session.client() as client:
        _answer(session, topic, name, client.recurring.pause(topic, name))


@app.command()
def resume(session: Session, topic: Topic, name: Name) -> None:
    """Resume a recurring job, from now on. Exit code 3: the topic has none with this name."""
    with session.client() as client:
        _answer(session, topic, name, client.recurring.resume(topic, name))


@app.command()
def trigger(session: Session, topic: Topic, name: Name) -> None:
    """Run a recurring job once now, besides its occurrences. Exit code 3: the topic has none with this name."""
    with session.client() as client:
        receipt = client.recurring.trigger(topic, name)
    if receipt is None:
        _answer(session, topic, name, RecurringOutcome.NOT_FOUND)
    else:
        session.answer(receipt_fields(receipt), f"{topic}/{receipt.id} is due now")


@app.command()
def remove(session: Session, topic: Topic, name: Name) -> None:
    """Remove a recurring job and its waiting occurrence. Exit code 3: the topic has none with this name."""
    with session.client() as client:
        _answer(session, topic, name, client.recurring.remove(topic, name))


def _answer(session: Session, topic: str, name: str, outcome: RecurringOutcome) -> None:
    session.answer({"topic": topic, "name": name, "outcome": outcome}, f"{topic}/{name} {_WORDS[outcome]}")
    if outcome is RecurringOutcome.NOT_FOUND:
        raise typer.Exit(NOT_FOUND)


def _plain(info: RecurringInfo) -> dict[str, Any]:
    return {**asdict(info), "next": info.next, "last": info.last}


def _table(found: list[RecurringInfo], now_ms: int) -> RenderableType:
    if not found:
        return "no recurring jobs"
    rows = ((info.topic, info.name, _when(info.rule), _next(info, partial(distance, now_ms=now_ms))) for info in found)
    return table("topic", "name", "occurs~", "next due?", rows=rows)


def _when(rule: Rule) -> str:
    if rule.every_ms is not None:
        return f"every {span(rule.every_ms)}"
    return f"{rule.cron} ({rule.tz})"


def _next(info: RecurringInfo, said: Callable[[float], str]) -> str:
    if info.is_paused:
        return "paused"
    return "never: it has ended" if info.next_ms is None else said(info.next_ms)
