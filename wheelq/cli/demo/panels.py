"""The demo's screen: pure functions that turn the board or the verdict into something Rich can print.

It fits a terminal of 80 × 24 and fills a larger one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.bar import Bar
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from wheelq.cli.demo.board import Board
from wheelq.cli.demo.orders import KINDS, shown_delay
from wheelq.cli.demo.verdict import DemoVerdict, LatenessFigures

EDGES_MS = (1, 2, 5, 10, 20, 50)
"""Upper edges of the histogram's rows; one more row holds the rest."""
SPARKS = " ▁▂▃▄▅▆▇█"
FRAME_LINES = 17
"""The lines outside the two lower panels, including the introduction above and an empty last line, where the terminal
can show ^C without breaking the picture."""
LEAST_PANEL_LINES, MOST_PANEL_LINES = len(EDGES_MS) + 1, 16
STYLES = {"cancelled": "yellow", "moved": "cyan", "failed": "red", "too late": "dim"}


def screen(board: Board, height: int, *, quick: bool) -> RenderableType:
    """The live screen."""
    lines = max(LEAST_PANEL_LINES, min(MOST_PANEL_LINES, height - FRAME_LINES))
    lower = Table.grid(expand=True)
    lower.add_column(ratio=5)
    lower.add_column(ratio=4)
    lower.add_row(_news(board, lines), _histogram(board.late_ms, lines))
    return Group(_title(board), Timeline(board), _caption(board), topics(board, quick=quick), lower, Text())


def _title(board: Board) -> RenderableType:
    row = Table.grid(expand=True, padding=(0, 1))
    row.add_column()
    row.add_column(justify="right")
    imported = f"{len(board.ledger.due_ms):,} orders imported in {board.import_ms:.0f} ms" if board.import_ms else ""
    seconds = f"{board.elapsed_ms / 1000:.1f} s of {board.plan.last_due_ms / 1000:.0f} s"
    row.add_row(Text.assemble((" wheelq demo ", "bold reverse"), " ", (imported, "dim")), Text(seconds, "bold"))
    return row


class Timeline:
    """How many orders fall due when, over the whole width; past times are bright."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        end_ms = self._board.plan.last_due_ms + 1
        counts = Counter(order.delay_ms * width // end_ms for order in self._board.orders)
        # The cube root keeps the steady part visible beside the flash sale, which is a hundred times as dense.
        highest = max(counts.values())
        heights = (round((counts[column] / highest) ** (1 / 3) * (len(SPARKS) - 1)) for column in range(width))
        line = "".join(SPARKS[height] for height in heights)
        passed = min(width, int(self._board.elapsed_ms * width / end_ms))
        yield Text.assemble((line[:passed], "green"), (line[passed:], "bright_black"))


def _caption(board: Board) -> Text:
    burst = max(Counter(order.delay_ms for order in board.orders).values())
    return Text(f"when they fall due; the peak is a flash sale, {burst} at one instant", "dim italic", justify="center")


def topics(board: Board, *, quick: bool) -> Table:
    """Returns the counts of each topic, with the sums below."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, padding=(0, 0), show_edge=False, show_footer=True)
    table.add_column("topic", "all", style="bold", no_wrap=True)
    table.add_column("shortened", "", style="dim", no_wrap=True)
    columns = {
        "waiting": (board.waiting, "blue"),
        "ready": (board.ready, "magenta"),
        "handled": (board.handled, "green"),
        "cancelled": (board.cancelled, "yellow"),
        "moved": (board.moved, "cyan"),
        "retried": (board.retried, "red"),
    }
    for name, (counts, style) in columns.items():
        table.add_column(name, f"{counts.total():,}", style=style, justify="right", no_wrap=True)
    for topic, kind in KINDS.items():
        numbers = (f"{counts[topic]:,}" for counts, _ in columns.values())
        table.add_row(topic, shown_delay(kind, quick=quick), *numbers)
    return table


def _news(board: Board, lines: int) -> Panel:
    text = Text(no_wrap=True, overflow="ellipsis")
    for news in list(board.news)[-lines:]:
        text.append(f"{news.elapsed_ms / 1000:4.1f} ", "dim")
        text.append(f"{news.what:<9} ", STYLES[news.what])
        text.append(f"{news.text}\n")
    return Panel(text, title="cancels, moves, failures", title_align="left", border_style="dim", height=lines + 2)


def _histogram(late_ms: Sequence[float], lines: int) -> Panel:
    found = LatenessFigures.of(late_ms)
    return Panel(
        histogram(late_ms),
        title="lateness: due to start",
        title_align="left",
        subtitle=f"p50 {found.p50_ms:.0f} · p99 {found.p99_ms:.0f} · max {found.max_ms:.0f} ms",
        subtitle_align="right",
        border_style="dim",
        height=lines + 2,
    )


def histogram(late_ms: Sequence[float]) -> Table:
    """A bar for each range of lateness."""
    counts = Counter(next((row for row, edge in enumerate(EDGES_MS) if late < edge), len(EDGES_MS)) for late in late_ms)
    longest = max(counts.values(), default=1)
    rows = Table.grid(expand=True, padding=(0, 1))
    rows.add_column(justify="right", no_wrap=True, style="dim")
    rows.add_column(ratio=1)
    rows.add_column(justify="right", no_wrap=True)
    for row in range(len(EDGES_MS) + 1):
        label = f"< {EDGES_MS[row]} ms" if row < len(EDGES_MS) else f"{EDGES_MS[-1]} ms +"
        rows.add_row(label, Bar(longest, 0, counts[row], color="green"), f"{counts[row]:,}" if counts[row] else "")
    return rows


def final(board: Board, verdict: DemoVerdict) -> Panel:
    """The verdict, with the histogram beside it."""
    columns = Table.grid(expand=True, padding=(0, 1))
    columns.add_column(no_wrap=True)
    columns.add_column(ratio=1)
    columns.add_row(_figures(verdict), histogram(board.late_ms))
    style = "green" if verdict.is_clean else "red"
    return Panel(columns, title=f"[bold]verdict: {verdict.words}[/]", border_style=style)


def _figures(verdict: DemoVerdict) -> Table:
    lateness, burst = verdict.lateness, verdict.burst
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_row(f"{verdict.ran:,}", f"of {verdict.scheduled:,} ran", style="bold")
    table.add_row(f"{verdict.cancelled:,}", "cancelled", style="yellow")
    table.add_row(f"{verdict.moved:,}", f"moved; {verdict.too_late} changes came too late", style="cyan")
    table.add_row(f"{verdict.retried:,}", "failed once, retried")
    table.add_row("", " · ".join(verdict.counts[:3]), style="bold green" if verdict.is_clean else "bold red")
    table.add_row("", " · ".join(verdict.counts[3:]), style="green" if verdict.is_clean else "red")
    table.add_row("late", f"p50 {lateness.p50_ms} · p99 {lateness.p99_ms} · max {lateness.max_ms} ms")
    table.add_row("burst", f"{burst.jobs} at once, last after {burst.last_started_ms} ms")
    return table
