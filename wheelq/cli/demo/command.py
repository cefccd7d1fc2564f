"""`wheelq demo`: its options and exit codes."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer
from rich.console import Console

from wheelq.base.clock import SystemClock
from wheelq.cli.demo.board import Board
from wheelq.cli.demo.orders import KINDS, QUICK_SHARE, draw_orders
from wheelq.cli.demo.plan import draw_plan
from wheelq.cli.demo.play import play
from wheelq.cli.demo.verdict import DemoVerdict
from wheelq.cli.demo.views import JsonView, LinesView, LiveView, View
from wheelq.cli.supervisor import CommandPart, lifeline
from wheelq.embedded import EmbeddedServer
from wheelq.settings import settings_in_force

NOT_CLEAN, INTERRUPTED = 1, 130


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
    orders = draw_orders(quick=quick)
    clock = SystemClock()
    board = Board(orders, draw_plan(orders, seed), clock)
    view = _view(quick=quick, json=json)
    view.begin(_intro(len(orders), url, quick=quick, http=http))
    try:
        verdict = _play(url, board, view, clock, http=http)
    except KeyboardInterrupt:
        typer.echo("Stopped before the end: no verdict.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    view.end(board, verdict)
    if not verdict.is_clean:
        raise typer.Exit(NOT_CLEAN)


def _play(url: str | None, board: Board, view: View, clock: SystemClock, *, http: bool) -> DemoVerdict:
    prefix = f"wheelq-demo-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        server_url = url or stack.enter_context(EmbeddedServer()).url
        if http:
            stack.enter_context(_dashboard(server_url, prefix))
        return asyncio.run(play(server_url, prefix, board, view, clock))


@contextmanager
def _dashboard(url: str, prefix: str) -> Iterator[None]:
    """Run the HTTP service of the demo in a separate process meanwhile."""
    with lifeline() as line:
        os.environ["WHEELQ_PREFIX"] = prefix  # the other parts get it as a setting
        part = CommandPart("http", ["server", "--url", url, "--log-level", "warning"], line)
        part.start()
        try:
            yield
        finally:
            part.ask_to_stop()
            part.finish()


def _view(*, quick: bool, json: bool) -> View:
    if json:
        return JsonView()
    console = Console()
    can_draw = sys.stdout.isatty() and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return LiveView(console, quick=quick) if can_draw else LinesView()


def _intro(orders: int, url: str | None, *, quick: bool, http: bool) -> list[str]:
    shop = KINDS["orders.close"]
    seconds = shop.demo_delay_s / (QUICK_SHARE if quick else 1)
    server = "the server you named" if url else "a real server, started for this demo, removed at its end"
    shown = [f"See it on the dashboard: {settings_in_force().server.shown}"] if http else []
    return [
        f"{orders:,} orders go into {server}.",
        "A scheduler process makes each ready when it is due, a worker process runs it.",
        f"Delays are shortened: 30 minutes pass in {seconds:.2g} seconds. Ctrl-C stops.",
        *shown,
    ]
