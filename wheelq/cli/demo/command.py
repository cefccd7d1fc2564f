"""`wheelq demo`: its options, its output and its exit codes."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from wheelq.cli.demo.orders import KINDS, QUICK_SHARE, draw_orders, draw_plan
from wheelq.cli.demo.play import Demo
from wheelq.cli.demo.verdict import DemoVerdict
from wheelq.cli.options import UP_PORT
from wheelq.cli.output import say, say_json, stdout
from wheelq.embedded import HOST, EmbeddedServer
from wheelq.settings import settings_in_force
from wheelq.settings.environment import variable_of

NOT_CLEAN, INTERRUPTED = 1, 130
FRAME_S, LINE_S = 0.125, 2.0
"""Seconds between two frames on a terminal, and between two lines elsewhere."""
STYLES = ("blue", "magenta", "green", "yellow", "cyan", "red")
"""Of the columns with counts."""
NEXT = (
    "wheelq up",
    f"""wheelq schedule orders '{{"id": 42}}' --delay 10s --url redis://{HOST}:{UP_PORT}""",
)


def demo(
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="Run on this server instead of one started for the demo. Its keys get a separate prefix, and are "
            "removed at the end.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Chooses the orders to cancel, move and let fail.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A third of the orders, in a third of the time.")] = False,
    http: Annotated[bool, typer.Option("--http", help="Show it on the dashboard, too, while it runs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the verdict only, as JSON.")] = False,
) -> None:
    """See it work: 3,000 orders scheduled, cancelled, moved, run, and checked, in half a minute.

    Needs no Redis. Exit code 0 only if every order ran as promised: none lost, early, run twice, or run after its
    cancellation.
    """
    orders, console = draw_orders(quick=quick), stdout()
    if not json:
        for line in _intro(len(orders), url, quick=quick, http=http):
            say(line)
    try:
        with ExitStack() as stack:
            _prepare_environment(url or stack.enter_context(EmbeddedServer()).url, is_own=url is None)
            playing = Demo(orders, draw_plan(orders, seed), settings_in_force())
            show, pause_s = stack.enter_context(_view(playing, console, quick=quick, json=json))
            asyncio.run(playing.run(show, pause_s, http=http))
    except KeyboardInterrupt:
        typer.echo("Stopped before the end: no verdict.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    verdict = DemoVerdict(playing.ledger)
    if json:
        say_json(verdict.as_json())
    else:
        if _can_draw(console):
            console.print(screen(playing, quick=quick))
        for text in (*verdict.lines(), *(f"next: {command}" for command in NEXT)):
            style = ("bold green" if verdict.is_clean else "bold red") if text.startswith("verdict") else ""
            console.print(text, style=style, markup=False, soft_wrap=True)
    if not verdict.is_clean:
        raise typer.Exit(NOT_CLEAN)


def _intro(orders: int, url: str | None, *, quick: bool, http: bool) -> list[str]:
    server = "the server you named" if url else "a real server, started for this demo, removed at its end"
    seconds = KINDS["orders.close"].demo_delay_s / (QUICK_SHARE if quick else 1)
    return [
        f"{orders:,} orders go into {server}.",
        "A scheduler process makes each ready when it is due, a worker process runs it.",
        f"Delays are shortened: 30 minutes pass in {seconds:.2g} seconds. Ctrl-C stops.",
        *([f"See it on the dashboard: {settings_in_force().server.shown}"] if http else []),
    ]


def _prepare_environment(url: str, *, is_own: bool) -> None:
    """Set the settings of the child processes."""
    os.environ[variable_of("", "url")] = url
    os.environ[variable_of("", "prefix")] = f"wheelq-demo-{secrets.token_hex(4)}"
    if is_own:
        for name in ("username", "password", "password_file"):
            os.environ[variable_of("", name)] = ""  # they are for another server


def _can_draw(console: Console) -> bool:
    return sys.stdout.isatty() and not console.is_dumb_terminal and console.encoding.startswith("utf")


@contextmanager
def _view(demo: Demo, console: Console, *, quick: bool, json: bool) -> Iterator[tuple[Callable[[], None], float]]:
    """Yields a function that shows the demo, and the seconds between two calls of it."""
    if json:
        yield lambda: None, LINE_S
    elif _can_draw(console):
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda: live.update(screen(demo, quick=quick), refresh=True), FRAME_S
    else:
        yield lambda: say(line(demo)), LINE_S


def _counts(demo: Demo) -> dict[str, Counter[str]]:
    """Returns how many jobs of each topic wait, are ready and so on."""
    known = {what: Counter(topic for topic, _ in names) for what, names in demo.ledger.jobs().items()}
    return {"waiting": demo.waiting, "ready": demo.ready, **known}


def line(demo: Demo) -> str:
    """Returns the state of the demo as a line, for logs and pipes."""
    late = demo.ledger.lateness()
    shown = "  ".join(f"{name} {count.total():,}" for name, count in _counts(demo).items())
    return f"{demo.elapsed_ms / 1000:5.1f} s  {shown}  lateness p50 {late.p50} p99 {late.p99} ms"


def screen(demo: Demo, *, quick: bool) -> RenderableType:
    """Returns the table of topics, and the progress below it."""
    table = Table(box=SIMPLE_HEAD, expand=True, show_edge=False, show_footer=True, padding=0)
    table.add_column("topic", "all", style="bold", no_wrap=True)
    table.add_column("shortened", style="dim", no_wrap=True)
    counts = _counts(demo)
    for (name, count), style in zip(counts.items(), STYLES, strict=True):
        table.add_column(name, f"{count.total():,}", justify="right", style=style, no_wrap=True)
    for topic, kind in KINDS.items():
        shortened = f"{kind.usual_delay} → {kind.demo_delay_s / (QUICK_SHARE if quick else 1):.3g} s"
        table.add_row(topic, shortened, *(f"{count[topic]:,}" for count in counts.values()))
    late = demo.ledger.lateness()
    progress = Table.grid("", Column(ratio=1), "", expand=True, padding=(0, 1))
    progress.add_row(
        f"{demo.elapsed_ms / 1000:4.1f} s",
        ProgressBar(total=len(demo.orders), completed=demo.finished),
        f"late p50 {late.p50} · p99 {late.p99} · max {late.max} ms",
    )
    return Group(table, "", progress, "")  # an empty last line, where the terminal can show ^C
