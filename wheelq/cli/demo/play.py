"""Runs the demo: import, then cancel and move orders while the scheduler and the worker do their work.

    story     imports, then cancels and moves at the moments of the plan  ┐
    listen    takes the worker's reports; notices the end of a child      ├─▶ board ─▶ view
    count     asks the server for its job counts                ┘

It ends when all orders have run that should *and* the last due time has passed by a moment, so that a cancelled order
or a second run has had its chance to show.

The scheduler and the worker are child processes; `roles` is their code. Each has its own session, so that Ctrl-C
reaches only the demo, which stops its children in order.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import fields
from datetime import datetime
from typing import IO, Any, Literal

import msgpack

from wheelq.aio import AsyncClient
from wheelq.base.clock import Clock, wall_ms
from wheelq.cli.demo.board import Board
from wheelq.cli.demo.orders import KINDS, Order
from wheelq.cli.demo.plan import FAILS_FIRST, Change
from wheelq.cli.demo.verdict import DemoRun, DemoVerdict
from wheelq.cli.demo.views import View
from wheelq.errors import ServerError, WheelqError
from wheelq.model.job import JobSpec, from_ms
from wheelq.protocol.call import command
from wheelq.protocol.calls import registry
from wheelq.protocol.calls.counts import HOUR_MS
from wheelq.protocol.calls.server import server_time_us
from wheelq.protocol.keys import Keys
from wheelq.settings import Settings, TopicSettings
from wheelq.transport import Address, AsyncTransport

QUIET_MS = 700
"""How long the demo waits after the last due time for runs that must not come."""
OVERTIME_MS = 10_000
"""How long it waits for runs that should have come."""
COUNT_S = 0.2
LOOK_S = 0.05
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 6.0  # longer than a child gives itself
LAST_WORDS_BYTES = 2_000
READ_BYTES = 65_536
HOURS = 24
"""Hours whose history the demo may have written; the server's clock may be wrong by some of them."""

Role = Literal["scheduler", "worker"]


async def play(url: str, prefix: str, board: Board, view: View, clock: Clock) -> DemoVerdict:
    """Run the demo on the server at `url`, with keys under `prefix` that are removed at the end.

    Raises: ProcessEnded, and the server's errors.
    """
    async with AsyncExitStack() as stack:
        transport = AsyncTransport(Address(url))
        stack.push_async_callback(transport.close)
        # The topics are created before the children start: a worker needs up to half a second for a topic that is new
        # to it, which the demo is not about.
        keys = Keys(prefix)
        for topic in KINDS:
            await transport.send(registry.register_topic(keys, topic, TopicSettings()))
        stack.push_async_callback(_remove_keys, transport, keys)
        scheduler = await stack.enter_async_context(child_process("scheduler", url, prefix))
        worker = await stack.enter_async_context(child_process("worker", url, prefix))
        client = await stack.enter_async_context(AsyncClient.connect(url, Settings(prefix=prefix)))
        import_ms = await transport.send(server_time_us()) // 1000
        stack.enter_context(view)
        await _Play(client, board, view, clock, import_ms).run(scheduler, worker)
    return DemoVerdict.of(board.ledger)


class _Play:
    def __init__(self, client: AsyncClient, board: Board, view: View, clock: Clock, import_ms: int) -> None:
        """`import_ms` is the server's time that the orders' delays count from."""
        self._client = client
        self._board = board
        self._view = view
        self._clock = clock
        self._import_ms = import_ms

    async def run(self, scheduler: ChildProcess, worker: ChildProcess) -> None:
        """Run the story to its end, or to the first failure of a process or the server."""
        board = self._board
        story = asyncio.create_task(self._story())
        runs = asyncio.create_task(_listen(worker, lambda report: board.ran(DemoRun(*report))))
        others = [runs, *map(asyncio.create_task, (_listen(scheduler), self._count(), self._show()))]
        try:
            for ended in (await asyncio.wait([story, *others], return_when=asyncio.FIRST_COMPLETED))[0]:
                ended.result()  # only the story ends without an error
            await worker.stop()
            with suppress(ProcessEnded):
                await runs  # its last reports
            self._view.show(board)
        finally:
            for task in (story, *others):
                task.cancel()
            await asyncio.gather(story, *others, return_exceptions=True)

    async def _story(self) -> None:
        board = self._board
        await self._import()
        for change in board.plan.changes:
            await self._clock.sleep(max(0.0, change.when_ms - board.elapsed_ms) / 1000)
            await self._make(change)
        quiet_ms = board.plan.last_due_ms + QUIET_MS
        while board.elapsed_ms < quiet_ms + (0 if board.is_complete else OVERTIME_MS):
            await self._clock.sleep(LOOK_S)

    async def _import(self) -> None:
        """Import all orders. They count from one instant, so their due times are instants, not delays."""
        self._board.importing()
        for topic in KINDS:
            orders = [order for order in self._board.orders if order.topic == topic]
            receipts = await self._client.schedule_many(topic, map(self._spec, orders))
            self._board.imported(topic, receipts)

    def _spec(self, order: Order) -> JobSpec:
        headers = {FAILS_FIRST: "yes"} if order.key in self._board.plan.failing else None
        return JobSpec(dict(order.payload), at=self._at(order.delay_ms), key=order.key, headers=headers)

    async def _make(self, change: Change) -> None:
        topic, key = change.order.topic, change.order.key
        if change.to_ms is None:
            self._board.cancelling(change, await self._client.cancel(topic, key))
        else:
            outcome = await self._client.reschedule(topic, key, at=self._at(change.to_ms))
            self._board.moving(change, self._import_ms + change.to_ms, outcome)

    def _at(self, after_import_ms: int) -> datetime:
        return from_ms(self._import_ms + after_import_ms)

    async def _count(self) -> None:
        while True:
            self._board.counted(await self._client.topics())
            await self._clock.sleep(COUNT_S)

    async def _show(self) -> None:
        while True:
            self._view.show(self._board)
            await self._clock.sleep(self._view.pause_s)


async def _listen(child: ChildProcess, take: Callable[[Any], None] = lambda report: None) -> None:
    """Take the reports of a child. Raises: ProcessEnded when it ends."""
    async for report in child.reports():
        take(report)
    raise await child.ended()


async def _remove_keys(transport: AsyncTransport, keys: Keys) -> None:
    """Remove every key that the demo can have made on a shared server. A server that is gone keeps them."""
    names = [getattr(keys, name) for name, member in vars(Keys).items() if isinstance(member, property)]
    for shard in (keys.shard(topic, 0) for topic in KINDS):
        names += [getattr(shard, item.name) for item in fields(shard) if not item.init]
        names += [shard.history(wall_ms() // HOUR_MS - ago) for ago in range(-1, HOURS)]
    with suppress(ServerError):
        for name in names:  # one by one, because in a cluster they are on different nodes
            await transport.send(command("UNLINK", name, read=bool))


class ProcessEnded(WheelqError):
    """A process of the demo ended too soon."""


class ChildProcess:
    """One child that runs."""

    def __init__(self, role: Role, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self.role = role
        self._process = process
        self._log = log
        self._reports = self._read()

    async def wait_until_ready(self) -> None:
        """Wait until it is ready. Raises: ProcessEnded, if it ended instead, or does not report in time."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                if await anext(self._reports, None) is None:
                    raise await self.ended()
        except TimeoutError as error:
            raise ProcessEnded(f"the {self.role} process did not start within {START_TIMEOUT_S:.0f} s") from error

    async def reports(self) -> AsyncIterator[Any]:
        """Yields its reports until it ends."""
        async for report in self._reports:
            yield report

    async def ended(self) -> ProcessEnded:
        """Returns the error that describes its end, for a child that should still run."""
        code = await self._process.wait()
        self._log.seek(0)
        last_words = self._log.read()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        return ProcessEnded(f"the {self.role} process ended with code {code}\n{last_words}".strip())

    async def stop(self) -> None:
        """Stop it cleanly, or kill it if it does not end. Its last reports can still be read."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _read(self) -> AsyncIterator[Any]:
        assert self._process.stdout is not None
        unpacker = msgpack.Unpacker()
        while data := await self._process.stdout.read(READ_BYTES):
            unpacker.feed(data)
            for report in unpacker:
                yield report


@asynccontextmanager
async def child_process(role: Role, url: str, prefix: str) -> AsyncIterator[ChildProcess]:
    """Starts a child, and stops it at the end."""
    # The child imports the same modules as this process, not those in the current directory (-P). The URL may hold a
    # password, which the process list does not show if it is in the environment.
    environment = os.environ | {"WHEELQ_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "wheelq.cli.demo.roles", role, prefix),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        child = ChildProcess(role, process, log)
        try:
            await child.wait_until_ready()
            yield child
        finally:
            await child.stop()
