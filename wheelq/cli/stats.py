"""stats, doctor: show what a server holds, and check its health."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from wheelq.admin import Inspector, Stats
from wheelq.admin.diagnosis import Finding, Level
from wheelq.cli.options import Config, Json, Url, Wide, inspector_of
from wheelq.cli.output import FAILED, say_json, stdout, table_of
from wheelq.cli.topics import topics_table
from wheelq.model.durations import span

REFRESH_S = 1.0

_MARKS = {Level.OK: "[green]ok[/]      ", Level.WARNING: "[yellow]warning[/] ", Level.PROBLEM: "[red]problem[/] "}


def stats(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    url: Url = None,
    config: Config = None,
    wide: Wide = False,
    json: Json = False,
) -> None:
    """Show topics, scheduler nodes and workers."""
    with inspector_of(url, config) as inspector:
        if watch:
            _watch(inspector, json)
        elif json:
            say_json(inspector.stats())
        else:
            stdout(wide).print(_stats(inspector.stats(), inspector.shown))


def doctor(url: Url = None, config: Config = None, json: Json = False) -> None:
    """Check the server and its jobs, and say what is wrong and what can be lost.

    Exit code 1: there is a problem, so jobs can be lost or do not run.
    """
    with inspector_of(url, config) as inspector:
        findings = inspector.doctor()
    if json:
        say_json(findings)
    else:
        _show(findings)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(FAILED)


def _watch(inspector: Inspector, json: bool) -> None:
    try:
        if json:
            while True:
                say_json(inspector.stats())
                time.sleep(REFRESH_S)
        with Live(console=stdout(), auto_refresh=False, screen=True) as live:
            while True:
                live.update(_stats(inspector.stats(), inspector.shown), refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return


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
        topics_table(stats.topics),
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
            "seen?": lambda worker: _ago(stats, worker.seen_ms),
        },
    )


def _ago(stats: Stats, seen_ms: int) -> str:
    return f"{span(stats.server_ms - seen_ms)} ago"
