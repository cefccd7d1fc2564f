"""wait, replay: what becomes of jobs after they were scheduled, and once more."""

from __future__ import annotations

from typing import Annotated

import typer

from wheelq.cli.options import Config, JobId, Json, Topic, Url, client_of
from wheelq.cli.output import say, say_json
from wheelq.cli.values import parse_delay, parse_past
from wheelq.clock import wall_ms
from wheelq.words import counted


def wait(
    topic: Topic,
    id: JobId,
    timeout: Annotated[str | None, typer.Option(help="How long to wait: 30s, 5m. Default: for ever.")] = None,
    group: Annotated[str | None, typer.Option(help="Wait for this group only.")] = None,
    url: Url = None,
    config: Config = None,
) -> None:
    """Wait until a job is done and print its result as JSON. Exit code 1 when it is given up, or not done in time.

    The topic must keep finished jobs: keep_done_ms.
    """
    seconds = None if timeout is None else parse_delay(timeout)
    with client_of(url, config) as client:
        say_json(client.wait(topic, id, timeout=seconds, group=group))


def replay(
    topic: Topic,
    group: Annotated[str, typer.Option(help="The group that runs them again.")],
    since: Annotated[str, typer.Option(help="From when on: 2h (ago), 3d, or a time with its zone.")],
    until: Annotated[str | None, typer.Option(help="Up to when. Default: now.")] = None,
    rate: Annotated[float | None, typer.Option(help="Most jobs a second.")] = None,
    name: Annotated[str | None, typer.Option(help="Of a replay that was broken off: goes on where it was.")] = None,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Run again, in one group, what the topic fired between two times and its retention still keeps.

    wheelq replay orders --group billing --since 2h
    """
    now_ms = wall_ms()
    with client_of(url, config) as client:
        done = client.replay(
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
        again = counted(done.replayed, "job runs", "jobs run")
        say(f"{again} again in {group}; {done.left_out:,} left out, which it has yet to finish")
