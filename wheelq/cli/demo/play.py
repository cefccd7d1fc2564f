"""Runs the demo: schedules the orders, then cancels and moves some while the scheduler and the worker do their work.

It ends when all orders have run that should *and* the last due time has passed by a moment, so that a cancelled order
or a second run has had its chance to show. A trial order in each topic, due at once, shows that the processes are
ready; it does not count.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import fields
from datetime import datetime

from wheelq.aio import AsyncClient
from wheelq.base.clock import SystemClock
from wheelq.cli.demo.orders import FAILS_FIRST, KINDS, Change, DemoPlan, Order
from wheelq.cli.demo.verdict import DemoLedger, DemoRun
from wheelq.cli.supervisor import CommandPart, lifeline
from wheelq.errors import ServerError, WheelqError
from wheelq.model.job import JobSpec, from_ms
from wheelq.protocol.call import command
from wheelq.protocol.calls.counts import HOUR_MS
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.settings import Settings
from wheelq.transport import AsyncTransport, server_address

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

    def __init__(self, orders: Sequence[Order], plan: DemoPlan, settings: Settings) -> None:
        """`settings` are those of the child processes, too, which read them from the environment."""
        self.orders = orders
        self.plan = plan
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
            others = [asyncio.create_task(self._story()), asyncio.create_task(self._look(parts, show, pause_s))]
            try:
                for ended in (await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED))[0]:
                    ended.result()  # only the story ends without an error
                for part in parts:
                    part.ask_to_stop()
                for part in parts:
                    await asyncio.to_thread(part.finish, STOP_TIMEOUT_S)
                await listening  # to the last report
                await self._count()
                show()
            finally:
                for task in (*others, listening):
                    task.cancel()
                await asyncio.gather(*others, listening, return_exceptions=True)

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
            await self._make(change)
        end_ms = self.plan.last_due_ms + QUIET_MS
        while self.elapsed_ms < end_ms + (0 if self.finished >= len(self.orders) else OVERTIME_MS):
            await self._clock.sleep(LOOK_S)

    def _spec(self, order: Order) -> JobSpec:
        headers = {FAILS_FIRST: "yes"} if order.key in self.plan.failing else None
        return JobSpec(order.payload, at=self._at(order.delay_ms), key=order.key, headers=headers)

    async def _make(self, change: Change) -> None:
        name = change.order.topic, change.order.key
        if change.to_ms is None:
            self.ledger.cancels[name] = await self._client.cancel(*name)
        else:
            outcome = await self._client.reschedule(*name, at=self._at(change.to_ms))
            self.ledger.moves[name] = outcome, self._began_ms + change.to_ms

    def _at(self, after_ms: int) -> datetime:
        return from_ms(self._began_ms + after_ms)

    async def _look(self, parts: Sequence[CommandPart], show: Callable[[], None], pause_s: float) -> None:
        while True:
            _check(parts)
            await self._count()
            show()
            await self._clock.sleep(pause_s)

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
        names = [getattr(self._keys, name) for name, member in vars(Keys).items() if isinstance(member, property)]
        for shard in (self._keys.shard(topic, 0) for topic in KINDS):
            names += [getattr(shard, item.name) for item in fields(shard) if not item.init]
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
