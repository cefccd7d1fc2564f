"""wait, rerun: wait for a job's result, and run finished jobs again."""

from __future__ import annotations

from typing import Annotated

import typer

from wheelq.base.clock import wall_ms
from wheelq.base.plural import counted
from wheelq.cli.options import Config, JobId, Json, Topic, Url, client_of
from wheelq.cli.output import say, say_json
from wheelq.cli.values import parse_delay, parse_past


def wait(
    topic: Topic,
    id: JobId,
    timeout: Annotated[str | None, typer.Option(help="How long to wait: 30s, 5m. Default: for ever.")] = None,
    group: Annotated[str | None, typer.Option(help="Wait for this group only.")] = None,
    url: Url = None,
    config: Config = None,
) -> None:
    """Wait until a job is done and print its result as JSON. Exit code 1: it was given up, or not done in time.

    The topic must keep finished jobs: keep_done_ms.
    """
    seconds = None if timeout is None else parse_delay(timeout)
    with client_of(url, config) as client:
        say_json(client.wait(topic, id, timeout=seconds, group=group))


def rerun(
    topic: Topic,
    group: Annotated[str, typer.Option(help="The group that runs them again.")],
    since: Annotated[str, typer.Option(help="Start of the period: 2h (ago), 3d, or a time with its zone.")],
    until: Annotated[str | None, typer.Option(help="End of the period. Default: now.")] = None,
    rate: Annotated[float | None, typer.Option(help="The most jobs per second.")] = None,
    name: Annotated[str | None, typer.Option(help="The name of an interrupted rerun, to continue it.")] = None,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Run again, in one group, the jobs promoted between two times that the topic's retention still keeps.

    wheelq rerun orders --group billing --since 2h
    """
    now_ms = wall_ms()
    with client_of(url, config) as client:
        done = client.rerun(
            topic,
            group=group,
            since=parse_past(since, now_ms),
            until=None if until is None else parse_past(until, now_ms),
            rate=rate,
            name=name,
        )
    if json:
        say_json(done._asdict())
    else:
        again = counted(done.jobs, "job runs", "jobs run")
        say(f"{again} again in {group}; {done.left_out:,} left out, because it has not finished them yet")
