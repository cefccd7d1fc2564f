"""topics, stats, doctor: what is there and how it is."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from wheelq.cli.control import settings_shown
from wheelq.cli.options import Config, Json, Url, inspector_of
from wheelq.cli.output import FAILED, moment, say_json, stdout, table
from wheelq.cli.values import span
from wheelq.diagnosis import Finding, Level
from wheelq.inspector import Inspector, Stats
from wheelq.topics import TopicInfo

REFRESH_S = 1.0

_MARKS = {Level.OK: "[green]ok[/]      ", Level.WARNING: "[yellow]warning[/] ", Level.PROBLEM: "[red]problem[/] "}


def topics(url: Url = None, config: Config = None, json: Json = False) -> None:
    """Show every topic and what it holds."""
    with inspector_of(url, config) as inspector:
        found = inspector.stats().topics
    if json:
        say_json(found)
    else:
        stdout().print(_topics(found))


def stats(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    url: Url = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show topics, scheduler nodes and workers."""
    with inspector_of(url, config) as inspector:
        if watch:
            _watch(inspector, json)
        elif json:
            say_json(inspector.stats())
        else:
            stdout().print(_stats(inspector.stats(), inspector.shown))


def doctor(url: Url = None, config: Config = None, json: Json = False) -> None:
    """Say what is well with the server and the jobs in it, what is not, and what can be lost.

    Exit code 1 when there is a problem: jobs can be lost, or do not run.
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
    nodes = table(
        "scheduler",
        ">leads",
        ">shards",
        ">promoted",
        ">p99 ms",
        "seen",
        rows=(
            (
                node.name,
                node.leading,
                node.shards,
                node.promoted,
                node.lateness.percentile(0.99),
                _ago(stats, node.seen_ms),
            )
            for node in stats.nodes
        ),
    )
    workers = table(
        "worker",
        "group",
        "topics",
        ">running",
        ">done",
        ">failed",
        ">p99 ms",
        "seen",
        rows=(
            (
                worker.name,
                worker.group,
                " ".join(worker.topics),
                worker.running,
                worker.handled,
                worker.failed,
                worker.lateness_p99_ms,
                _ago(stats, worker.seen_ms),
            )
            for worker in stats.workers
        ),
    )
    return Group(
        f"[bold]{shown}[/]",
        "",
        _topics(stats.topics),
        "",
        nodes if stats.nodes else "no scheduler runs",
        "",
        workers if stats.workers else "no worker runs",
    )


def _topics(found: list[TopicInfo]) -> RenderableType:
    if not found:
        return "no topics yet: one comes into being with its first job"
    return table(
        "topic",
        ">waiting",
        ">ready",
        ">dead",
        ">shards",
        "next due",
        "overdue",
        "settings",
        rows=(
            (
                topic.name,
                topic.delayed,
                topic.ready,
                topic.dead,
                topic.shards,
                "-" if topic.first_due_ms is None else moment(topic.first_due_ms),
                span(topic.overdue_ms) if topic.overdue_ms else "-",
                settings_shown(topic.settings) or "-",
            )
            for topic in found
        ),
    )


def _ago(stats: Stats, seen_ms: int) -> str:
    return f"{span(stats.server_ms - seen_ms)} ago"
