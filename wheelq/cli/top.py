"""top: live rates and lateness of schedulers and handlers, and the next due jobs, once a second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from wheelq.admin import Inspector, Stats
from wheelq.admin.figures import rates
from wheelq.cli.options import Session
from wheelq.cli.output import distance, table_of
from wheelq.model.topic import TopicInfo

SPAN_S = 10
"""The seconds over which rates are computed: two reports of each process, which come every five seconds."""


@dataclass(frozen=True, slots=True)
class Now:
    """What happened between two looks. Schedulers and workers report every five seconds."""

    server_ms: int
    """The server's time."""
    topics: list[TopicInfo]
    """The topics, by the due time of their next job."""
    schedulers: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    """What each process does now; a rate is None while the process has reported only once."""

    @classmethod
    def between(cls, before: Stats, now: Stats) -> Now:
        promoted = rates(before.nodes, now.nodes, "promoted")
        handled = rates(before.workers, now.workers, "handled")
        failed = rates(before.workers, now.workers, "failed")
        schedulers = [
            {
                "name": one.name,
                "leading": one.leading,
                "promoted_per_s": promoted[one.name],
                "lateness_p99_ms": one.lateness.percentile(0.99),
            }
            for one in now.nodes
        ]
        workers = [
            {
                **{name: getattr(one, name) for name in ("name", "group", "topics", "running")},
                "done_per_s": handled[one.name],
                "failed_per_s": failed[one.name],
                "lateness_p99_ms": one.lateness_p99_ms,
            }
            for one in now.workers
        ]
        return cls(now.server_ms, sorted(now.topics, key=_soonest), schedulers, workers)


def top(
    session: Session,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.5, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval, and end.")] = False,
) -> None:
    """Show live rates and lateness per scheduler and handler, the fullest topics, and the next due jobs."""
    with session.inspector() as inspector:
        looks = _looks(inspector, interval)
        if once:
            found = next(looks)
            session.answer(found, board(found))
        else:
            session.watch(looks, board)


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
            "next due": lambda one: "-" if one.first_due_ms is None else distance(one.first_due_ms, now.server_ms),
        },
    )
    schedulers = table_of(
        now.schedulers,
        {
            "scheduler": itemgetter("name"),
            ">leads": itemgetter("leading"),
            ">promoted/s": lambda one: _shown(one["promoted_per_s"]),
            ">p99 ms": itemgetter("lateness_p99_ms"),
        },
    )
    workers = table_of(
        now.workers,
        {
            "group": itemgetter("group"),
            "handles~": lambda one: " ".join(one["topics"]),
            ">running": itemgetter("running"),
            ">done/s": lambda one: _shown(one["done_per_s"]),
            ">failed/s": lambda one: _shown(one["failed_per_s"]),
            ">p99 ms?": itemgetter("lateness_p99_ms"),
            "worker?": itemgetter("name"),
        },
    )
    return Group(topics, "", schedulers, "", workers)


def _soonest(topic: TopicInfo) -> tuple[bool, int, str]:
    return topic.first_due_ms is None, topic.first_due_ms or 0, topic.name


def _shown(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}"
