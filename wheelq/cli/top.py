"""top: live rates and lateness of schedulers and handlers, and the next due jobs, once a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from wheelq.admin import Inspector, Stats
from wheelq.admin.figures import rates
from wheelq.cli.options import Config, Json, Url, inspector_of
from wheelq.cli.output import distance, say_json, stdout, table_of
from wheelq.model.topic import TopicInfo

SPAN_S = 10
"""The seconds over which rates are computed: two reports of each process, which come every five seconds."""


@dataclass(frozen=True, slots=True)
class SchedulerNow:
    """What one scheduler does now."""

    name: str
    leading: int
    promoted_per_s: float | None
    """None while it has reported only once."""
    lateness_p99_ms: int


@dataclass(frozen=True, slots=True)
class WorkerNow:
    """What one worker does now."""

    name: str
    group: str
    topics: tuple[str, ...]
    running: int
    done_per_s: float | None
    """None while it has reported only once."""
    failed_per_s: float | None
    lateness_p99_ms: int


@dataclass(frozen=True, slots=True)
class Now:
    """What happened between two looks."""

    server_ms: int
    """The server's time."""
    topics: list[TopicInfo]
    """The topics, by the due time of their next job."""
    schedulers: list[SchedulerNow]
    workers: list[WorkerNow]

    @classmethod
    def between(cls, before: Stats, now: Stats) -> Now:
        """Compares two looks. Schedulers and workers report every five seconds."""
        promoted = rates(before.nodes, now.nodes, "promoted")
        handled = rates(before.workers, now.workers, "handled")
        failed = rates(before.workers, now.workers, "failed")
        schedulers = [
            SchedulerNow(one.name, one.leading, promoted[one.name], one.lateness.percentile(0.99)) for one in now.nodes
        ]
        working = [
            WorkerNow(
                one.name,
                one.group,
                one.topics,
                one.running,
                handled[one.name],
                failed[one.name],
                one.lateness_p99_ms,
            )
            for one in now.workers
        ]
        return cls(now.server_ms, sorted(now.topics, key=_soonest), schedulers, working)


def top(
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.5, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval, and end.")] = False,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show live rates and lateness per scheduler and handler, the fullest topics, and the next due jobs."""
    with inspector_of(url, config) as inspector:
        looks = _looks(inspector, interval)
        if once:
            found = next(looks)
            if json:
                say_json(found)
            else:
                stdout().print(board(found))
            return
        try:
            if json:
                for found in looks:
                    say_json(found)
            with Live(console=stdout(), auto_refresh=False, screen=True) as live:
                for found in looks:
                    live.update(board(found), refresh=True)
        except KeyboardInterrupt:
            return


def _looks(inspector: Inspector, interval: float) -> Iterator[Now]:
    seen = deque([inspector.stats()], maxlen=round(SPAN_S / interval) + 1)
    while True:
        time.sleep(interval)
        seen.append(inspector.stats())
        yield Now.between(seen[0], seen[-1])


def board(now: Now) -> RenderableType:
    """Returns the tables for what happened between two looks."""
    topics = table_of(
        now.topics,
        {
            "topic": "name",
            ">waiting": "waiting",
            ">ready": "ready",
            ">running": "running",
            ">retrying?": "retrying",
            ">dead?": "dead",
            "next due": lambda one: "-" if one.first_due_ms is None else distance(one.first_due_ms),
        },
    )
    schedulers = table_of(
        now.schedulers,
        {
            "scheduler": "name",
            ">leads": "leading",
            ">promoted/s": lambda one: _shown(one.promoted_per_s),
            ">p99 ms": "lateness_p99_ms",
        },
    )
    workers = table_of(
        now.workers,
        {
            "group": "group",
            "handles~": lambda one: " ".join(one.topics),
            ">running": "running",
            ">done/s": lambda one: _shown(one.done_per_s),
            ">failed/s": lambda one: _shown(one.failed_per_s),
            ">p99 ms?": "lateness_p99_ms",
            "worker?": "name",
        },
    )
    return Group(topics, "", schedulers, "", workers)


def _soonest(topic: TopicInfo) -> tuple[bool, int, str]:
    return topic.first_due_ms is None, topic.first_due_ms or 0, topic.name


def _shown(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}"
