"""stats, doctor: show what a server holds, and check its health."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from wheelq.admin import Inspector, Stats
from wheelq.admin.diagnosis import Finding, Level
from wheelq.cli.options import Session, Wide
from wheelq.cli.output import FAILED, say_json, stdout, table_of
from wheelq.cli.topics import topics_table
from wheelq.model.durations import span

REFRESH_S = 1.0

_MARKS = {Level.OK: "[green]ok[/]      ", Level.WARNING: "[yellow]warning[/] ", Level.PROBLEM: "[red]problem[/] "}


def stats(
    session: Session,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    wide: Wide = False,
) -> None:
    """Show topics, scheduler nodes and workers."""
    with session.inspector() as inspector:
        if watch:
            session.watch(_looks(inspector), lambda found: _stats(found, inspector.shown))
        else:
            found = inspector.stats()
            session.answer(found, _stats(found, inspector.shown), wide)


def doctor(session: Session) -> None:
    """Check the server and its jobs, and say what is wrong and what can be lost.

    Exit code 1: there is a problem, so jobs can be lost or do not run.
    """
    with session.inspector() as inspector:
        findings = inspector.doctor()
    if session.json:
        say_json(findings)
    else:
        _show(findings)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(FAILED)


def _looks(inspector: Inspector) -> Iterator[Stats]:
    while True:
        yield inspector.stats()
        time.sleep(REFRESH_S)


def _show(findings: list[Finding]) -> None:
    console = stdout()
    for finding in findings:
        console.print(_MARKS[finding.level], end="")
        console.print(finding.title, style="bold", markup=False, soft_wrap=True)
        if finding.explanation:
            for line in console.render_lines(
                finding.explanation, console.options.update_width(min(console.width, 110) - 8), pad=False
            ):
                console.print("        " + "".join(segment.text for segment in line), markup=False, soft_wrap=True)


def _stats(stats: Stats, shown: str) -> RenderableType:
    return Group(
        f"[bold]{shown}[/]",
        "",
        topics_table(stats),
        "",
        _nodes(stats) if stats.nodes else "no scheduler runs",
        "",
        _workers(stats) if stats.workers else "no worker runs",
    )


def _nodes(stats: Stats) -> RenderableType:
    return table_of(
        stats.nodes,
        {
            "scheduler": "name",
            ">leads": "leading",
            ">shards?": "shards",
            ">promoted": "promoted",
            ">p99 ms": lambda node: node.lateness.percentile(0.99),
            "version?": "version",
            "seen?": lambda node: _ago(stats, node.seen_ms),
        },
    )


def _workers(stats: Stats) -> RenderableType:
    return table_of(
        stats.workers,
        {
            "worker": "name",
            "group": "group",
            "topics?~": lambda worker: " ".join(worker.topics),
            ">running": "running",
            ">done": "handled",
            ">failed": "failed",
            ">p99 ms?": "lateness_p99_ms",
            "version?": "version",
            "seen?": lambda worker: _ago(stats, worker.seen_ms),
        },
    )


def _ago(stats: Stats, seen_ms: int) -> str:
    return f"{span(stats.server_ms - seen_ms)} ago"
