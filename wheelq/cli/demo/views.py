"""Three ways to watch the demo: a live screen, plain lines if the output is not a terminal, or nothing (`--json`)."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live

from wheelq.cli.demo import panels
from wheelq.cli.demo.board import Board
from wheelq.cli.demo.verdict import DemoVerdict
from wheelq.cli.options import UP_PORT
from wheelq.cli.output import say, say_json
from wheelq.embedded import HOST

NEXT = (
    "wheelq up",
    f"""wheelq schedule orders '{{"id": 42}}' --delay 10s --url redis://{HOST}:{UP_PORT}""",
)


class View(Protocol):
    """Shows the demo. It is entered while the demo runs, and gets the board every `pause_s` seconds."""

    pause_s: float

    def begin(self, intro: Sequence[str]) -> None:
        """Called before anything is started."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, board: Board) -> None:
        """Called while the demo runs."""

    def end(self, board: Board, verdict: DemoVerdict) -> None:
        """Called at the end."""


class _Quiet:
    """Shows nothing; the base of the other views."""

    pause_s = 1.0

    def begin(self, intro: Sequence[str]) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, board: Board) -> None:
        pass


class JsonView(_Quiet):
    """The verdict as one line of JSON, and nothing else."""

    def end(self, board: Board, verdict: DemoVerdict) -> None:
        say_json(verdict.as_json())


class LinesView(_Quiet):
    """A line every two seconds, for logs and pipes."""

    pause_s = 2.0

    def begin(self, intro: Sequence[str]) -> None:
        for line in intro:
            say(line)

    def show(self, board: Board) -> None:
        counts = {
            name: getattr(board, name).total()
            for name in ("waiting", "ready", "handled", "cancelled", "moved", "retried")
        }
        late = board.lateness
        say(
            f"{board.elapsed_ms / 1000:5.1f} s  "
            + "  ".join(f"{name} {count:,}" for name, count in counts.items())
            + f"  lateness p50 {late.p50_ms} p99 {late.p99_ms} ms"
        )

    def end(self, board: Board, verdict: DemoVerdict) -> None:
        late, burst = verdict.lateness, verdict.burst
        say(
            f"{verdict.scheduled:,} scheduled: {verdict.ran:,} ran, {verdict.cancelled} cancelled; {verdict.moved} "
            f"moved, {verdict.retried} failed once and were retried, {verdict.too_late} changes came too late"
        )
        say(", ".join(verdict.counts))
        say(f"lateness p50 {late.p50_ms} ms, p99 {late.p99_ms} ms, max {late.max_ms} ms")
        say(f"burst of {burst.jobs} at one instant, the last started {burst.last_started_ms} ms after it")
        for example in verdict.examples:
            say(example)
        say(f"verdict: {verdict.words}")
        for command in NEXT:
            say(f"next: {command}")


class LiveView(_Quiet):
    """The screen, redrawn eight times a second; at the end the verdict takes its place."""

    pause_s = 0.125

    def __init__(self, console: Console, *, quick: bool) -> None:
        self._console = console
        self._quick = quick
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def begin(self, intro: Sequence[str]) -> None:
        for line in intro:
            self._console.print(line, style="dim", highlight=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, board: Board) -> None:
        self._live.update(panels.screen(board, self._console.height, quick=self._quick), refresh=True)

    def end(self, board: Board, verdict: DemoVerdict) -> None:
        self._console.print(panels.topics(board, quick=self._quick))
        self._console.print(panels.final(board, verdict))
        for example in verdict.examples:
            self._console.print(example, style="red", markup=False)
        self._console.print("Next: run one of your own, and schedule a job from a second terminal:", style="bold")
        for command in NEXT:
            self._console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
