"""`wheelq demo`: its options, its output, its exit codes, and what it does.

It schedules the orders, then cancels and moves some while the scheduler and the worker do their work. It ends when all
orders have run that should *and* the last due time has passed by a moment, so that a cancelled order or a second run
has had its chance to show. A trial order in each topic, due at once, shows that the processes are ready; it does not
count.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import fields
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from wheelq.aio import AsyncClient
from wheelq.base.clock import SystemClock
from wheelq.cli.demo.orders import FAILS_FIRST, KINDS, QUICK_SHARE, Order, draw_orders, draw_plan
from wheelq.cli.demo.verdict import DemoLedger, DemoRun, in_words
from wheelq.cli.options import UP_PORT
from wheelq.cli.output import say, say_json, stdout, table
from wheelq.cli.supervisor import CommandPart, lifeline
from wheelq.embedded import HOST, EmbeddedServer
from wheelq.errors import ServerError, WheelqError
from wheelq.model.job import JobSpec, from_ms
from wheelq.protocol.call import command
from wheelq.protocol.calls.counts import HOUR_MS
from wheelq.protocol.calls.producer import TURNS_MS
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys, tag_keys
from wheelq.settings import Settings, settings_in_force
from wheelq.settings.environment import variable_of
from wheelq.transport import AsyncTransport, server_address

NOT_CLEAN, INTERRUPTED = 1, 130
FRAME_S, LINE_S = 0.125, 2.0
"""Seconds between two frames on a terminal, and between two lines elsewhere."""
NEXT = ("wheelq up", f"""wheelq schedule orders '{{"id": 42}}' --delay 10s --url redis://{HOST}:{UP_PORT}""")


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
    console = stdout()
    try:
        with ExitStack() as stack:
            _prepare_environment(url or stack.enter_context(EmbeddedServer()).url, is_own=url is None)
            playing = Demo(seed, quick, settings_in_force())
            if not json:
                server = "the server you named" if url else "a real server, started for this demo, removed at its end"
                say(f"{len(playing.orders):,} orders go into {server}.")
                say("A scheduler process makes each ready when it is due, a worker process runs it.")
                seconds = KINDS["orders.close"].demo_delay_s / playing.share
                say(f"Delays are shortened: 30 minutes pass in {seconds:.2g} seconds. Ctrl-C stops.")
            if http and not json:
                say(f"See it on the dashboard: {settings_in_force().server.shown}")
            show, pause_s = stack.enter_context(_view(playing, console, json=json))
            asyncio.run(playing.run(show, pause_s, http=http))
    except KeyboardInterrupt:
        typer.echo("Stopped before the end: no verdict.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    verdict = playing.ledger.verdict()
    if json:
        say_json(verdict)
    else:
        for text in (*in_words(verdict), *(f"next: {command}" for command in NEXT)):
            style = ("bold green" if verdict["clean"] else "bold red") if text.startswith("verdict") else ""
            console.print(text, style=style, markup=False, soft_wrap=True)
    if not verdict["clean"]:
        raise typer.Exit(NOT_CLEAN)


def _prepare_environment(url: str, *, is_own: bool) -> None:
    os.environ[variable_of("", "url")] = url
    os.environ[variable_of("", "prefix")] = f"wheelq-demo-{secrets.token_hex(4)}"
    if is_own:
        for name in ("username", "password", "password_file"):
            os.environ[variable_of("", name)] = ""  # they are for another server


@contextmanager
def _view(demo: Demo, console: Console, *, json: bool) -> Iterator[tuple[Callable[[], None], float]]:
    """Yields a function that shows the demo, and the seconds between two calls of it."""
    if json:
        yield lambda: None, LINE_S
    elif sys.stdout.isatty() and not console.is_dumb_terminal and console.encoding.startswith("utf"):
        with Live(console=console, auto_refresh=False) as live:
            yield lambda: live.update(screen(demo), refresh=True), FRAME_S
    else:
        yield lambda: say(f"{demo.elapsed_ms / 1000:5.1f} s  {_totals(demo)}  {_late(demo)}"), LINE_S


def _totals(demo: Demo) -> str:
    return "  ".join(f"{name} {count.total():,}" for name, count in demo.counts().items())


def _late(demo: Demo) -> str:
    return "lateness p50 {p50} p99 {p99} max {max} ms".format_map(demo.ledger.lateness())


def screen(demo: Demo) -> RenderableType:
    """Returns the table of topics, and the progress below it."""
    counts = demo.counts()
    rows: list[tuple[object, ...]] = []
    for topic, kind in KINDS.items():
        shortened = f"{kind.usual_delay} → {kind.demo_delay_s / demo.share:.3g} s"
        rows.append((topic, shortened, *(count[topic] for count in counts.values())))
    rows.append(("all", "", *(count.total() for count in counts.values())))
    topics = table("topic", "shortened?", *(f">{name}" for name in counts), rows=rows)
    progress = Table.grid("", Column(ratio=1), "", expand=True, padding=(0, 1))
    bar = ProgressBar(total=len(demo.orders), completed=demo.finished)
    progress.add_row(f"{demo.elapsed_ms / 1000:4.1f} s", bar, _late(demo))
    return Group(topics, "", progress, "")  # an empty last line, where the terminal can show ^C


TRIAL = "trial"
"""The key of the trial orders."""
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 6.0
QUIET_MS = 700
"""How long the demo waits after the last due time for runs that must not come."""
OVERTIME_MS = 10_000
"""How long it waits for runs that should have come."""
LOOK_S = 0.05
HOURS = 24
"""Hours whose history the demo may have written; the server's clock may be wrong by some of them."""


class ProcessEnded(WheelqError):
    """A process of the demo ended too soon, or did not start in time."""


class Demo:
    """The demo, and its state: the ledger, and the server's counts of waiting and ready jobs."""

    def __init__(self, seed: int, quick: bool, settings: Settings) -> None:
        """`settings` are those of the child processes, too, which read them from the environment."""
        self.orders = draw_orders(quick=quick)
        self.plan = draw_plan(self.orders, seed)
        self.share = QUICK_SHARE if quick else 1
        self.ledger = DemoLedger()
        self.waiting: Counter[str] = Counter()
        self.ready: Counter[str] = Counter()
        self._clock = SystemClock()
        self._began: float | None = None
        self._began_ms = 0  # by the server's clock
        self._tried: set[str] = set()
        self._keys = Keys(settings.prefix)
        self._transport = AsyncTransport(server_address(None, settings))
        self._client = AsyncClient(self._transport, self._keys)

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the orders were scheduled; 0 before."""
        return 0.0 if self._began is None else (self._clock.monotonic() - self._began) * 1000

    @property
    def finished(self) -> int:
        """How many orders have run or are cancelled."""
        jobs = self.ledger.jobs()
        return len(jobs["handled"]) + len(jobs["cancelled"])

    def counts(self) -> dict[str, Counter[str]]:
        """Returns how many jobs of each topic wait, are ready and so on."""
        known = {what: Counter(topic for topic, _ in names) for what, names in self.ledger.jobs().items()}
        return {"waiting": self.waiting, "ready": self.ready, **known}

    async def run(self, show: Callable[[], None], pause_s: float, *, http: bool) -> None:
        """Run the demo and call `show` every `pause_s` seconds; its keys are removed at the end.

        Raises: ProcessEnded, and the server's errors.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._client.close)
            stack.push_async_callback(self._remove_keys)
            for topic in KINDS:  # so that the worker knows the topics when it starts
                await self._client.schedule(topic, {"customer": "demo"}, delay=0, key=TRIAL)
            parts, reports = stack.enter_context(_processes(http))
            listening = asyncio.create_task(self._listen(reports))
            await self._until_ready(parts)
            story = asyncio.create_task(self._story())
            try:
                while not story.done():
                    _check(parts)
                    await self._count()
                    show()
                    await asyncio.wait([story], timeout=pause_s)
                story.result()
                for part in parts:
                    part.ask_to_stop()
                for part in parts:
                    await asyncio.to_thread(part.finish, STOP_TIMEOUT_S)
                await listening  # to the last report
                await self._count()
                show()
            finally:
                for task in (story, listening):
                    task.cancel()
                await asyncio.gather(story, listening, return_exceptions=True)

    async def _until_ready(self, parts: Sequence[CommandPart]) -> None:
        deadline = self._clock.monotonic() + START_TIMEOUT_S
        while len(self._tried) < len(KINDS):
            _check(parts)
            if self._clock.monotonic() > deadline:
                raise ProcessEnded(f"the trial orders did not run within {START_TIMEOUT_S:.0f} s")
            await self._clock.sleep(LOOK_S)

    async def _story(self) -> None:
        """Schedule all orders and make the changes of the plan. All due times count from one instant."""
        self._began_ms = await self._transport.send(server_time_us()) // 1000
        self._began = self._clock.monotonic()
        for topic in KINDS:
            specs = [self._spec(order) for order in self.orders if order.topic == topic]
            receipts = await self._client.schedule_many(topic, specs)
            self.ledger.due_ms.update({(topic, receipt.id): receipt.due_ms for receipt in receipts})
        for change in self.plan.changes:
            await self._clock.sleep(max(0.0, change.when_ms - self.elapsed_ms) / 1000)
            name = change.order.topic, change.order.key
            if change.to_ms is None:
                self.ledger.cancels[name] = await self._client.cancel(*name)
            else:
                outcome = await self._client.reschedule(*name, at=self._at(change.to_ms))
                self.ledger.moves[name] = outcome, self._began_ms + change.to_ms
        end_ms = self.plan.last_due_ms + QUIET_MS
        while self.elapsed_ms < end_ms + (0 if self.finished >= len(self.orders) else OVERTIME_MS):
            await self._clock.sleep(LOOK_S)

    def _spec(self, order: Order) -> JobSpec:
        headers = {FAILS_FIRST: "yes"} if order.key in self.plan.failing else None
        return JobSpec(order.payload, at=self._at(order.delay_ms), key=order.key, headers=headers)

    def _at(self, after_ms: int) -> datetime:
        return from_ms(self._began_ms + after_ms)

    async def _count(self) -> None:
        for info in await self._client.topics():
            self.waiting[info.name], self.ready[info.name] = info.waiting, info.ready

    async def _listen(self, reports: int) -> None:
        """Take the worker's reports until it ends."""
        reader = asyncio.StreamReader()
        with os.fdopen(reports, "rb") as pipe:
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
            async for line in reader:
                run = DemoRun(*json.loads(line))
                if run.id == TRIAL:
                    self._tried.add(run.topic)
                else:
                    self.ledger.runs.append(run)

    async def _remove_keys(self) -> None:
        """Remove every key that the demo can have made. Some of the names are channels, which hold nothing."""
        names = [getattr(self._keys, item.name) for item in fields(Keys) if not item.init]
        for shard in (self._keys.shard(topic, 0) for topic in KINDS):
            names += [getattr(shard, name) for name in shard.names()]
            names += [key for turn_ms in TURNS_MS for key in tag_keys(shard.prefix, shard.topic, 0, turn_ms)]
            names += [shard.history(self._clock.wall_ms() // HOUR_MS - ago) for ago in range(-1, HOURS)]
        with suppress(ServerError):
            for name in names:  # one by one, because in a cluster they are on different nodes
                await self._transport.send(command("UNLINK", name, read=bool))


@contextmanager
def _processes(http: bool) -> Iterator[tuple[list[CommandPart], int]]:
    """Yields the processes, which run, and the reading end of the pipe with the worker's reports."""
    reports, writing = os.pipe()
    quiet = ["--log-level", "error"]
    with lifeline() as line:
        parts = [
            CommandPart("scheduler", ["scheduler", *quiet], line),
            CommandPart("worker", ["worker", "wheelq.cli.demo.worker:reporting_worker", *quiet], line, stdout=writing),
            *([CommandPart("http", ["server", *quiet], line)] if http else []),
        ]
        try:
            for part in parts:
                part.start()
            os.close(writing)  # so that the pipe ends with the worker
            yield parts, reports
        finally:
            for part in parts:
                part.kill()


def _check(parts: Sequence[CommandPart]) -> None:
    for part in parts:
        if (code := part.poll()) is not None:
            raise ProcessEnded(f"the {part.name} process ended with code {code}")
