"""`WheelqTest` and `AsyncWheelqTest`: one wheelq under test, for plain tests and for tests on asyncio."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import Self

from wheelq.aio import AsyncClient
from wheelq.base.clock import ManualClock, wall_ms
from wheelq.client import Client
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.checks import to_ms
from wheelq.model.job import from_ms
from wheelq.protocol import codec
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys, ShardKeys, id_and_group
from wheelq.settings import Settings, settings_in_force
from wheelq.testing.asserts import Asserts
from wheelq.testing.engine import Stage, run_until
from wheelq.testing.leading import all_shards
from wheelq.testing.observed import Run, Waiting
from wheelq.transport import Address, AsyncTransport, Transport
from wheelq.worker import Worker

URL = "memory://tests"
"""The URL of the fixtures' wheelq, and the value of WHEELQ_URL while a test runs."""


class _Kit(Asserts):
    """The part that both kinds share. Inside the context, WHEELQ_URL points here."""

    def __init__(
        self,
        start: datetime | None = None,
        *,
        url: str = URL,
        settings: Settings | None = None,
        raise_errors: bool = False,
        threads: bool = False,
        on_move: Callable[[datetime], object] | None = None,
    ) -> None:
        """Create an empty wheelq whose clock shows `start` (None: the present).

        `settings` are those of the code under test (the prefix, the settings of new topics). With `raise_errors`,
        `advance` raises a handler's error instead of retrying the job. With `threads`, plain handlers run in threads,
        as in a real worker; otherwise one after the other in the test's own thread. `on_move` is called with the new
        time after each move: use it to set other clocks in the code under test.

        Raises: ConfigurationError without fakeredis.
        """
        address = Address(url)
        from wheelq.transport.memory import memory_server

        settings = settings or settings_in_force()
        self.url = url
        """The URL for code that does not read WHEELQ_URL."""
        self.raise_errors = raise_errors
        self.clock = ManualClock(wall_ms=wall_ms() if start is None else to_ms(start))
        """The server's clock. Move it with `advance` only, so that jobs that fall due are run."""
        self.runs: list[Run] = []
        self._server = memory_server(url)
        self._server.reset()
        self._server.clock = self.clock
        self._keys = Keys(settings.prefix)
        self._settings = settings
        self._transport = Transport(address)
        self.client = Client(self._transport, self._keys, settings.client, settings.topic, self.clock)
        """A blocking client; it works on asyncio too, because nothing here waits."""
        self.worker = Worker(AsyncTransport(address), "default", self._keys, settings.worker, self.clock)
        """A worker that is already added: decorate handlers with `@wheelq.worker.handler(topic)`."""
        workers = [self.worker]
        moved = on_move or (lambda now: None)
        self._stage = Stage(url, self._transport, self._keys, self.clock, workers, self.runs, moved, threads)
        self._exit = ExitStack()

    def add(self, *workers: Worker) -> None:
        """Add workers: their handlers run ready jobs, each in its group. Their own connections are not used."""
        self._stage.workers.extend(worker for worker in workers if worker not in self._stage.workers)

    @property
    def now(self) -> datetime:
        """The server's time as an aware datetime in UTC: for `at=`, or to set other clocks."""
        return from_ms(self.clock.wall_ms())

    def waiting(self, topic: str | None = None) -> list[Waiting]:
        shards = [keys for keys in all_shards(self._transport, self._keys) if topic in (None, keys.topic)]
        found = [job for keys in shards for job in self._waiting(keys)]
        return sorted(found, key=lambda job: (job.due_ms, job.topic, job.id))

    def unread(self, topic: str | None = None) -> dict[str, int]:
        found: Counter[str] = Counter()
        for keys in all_shards(self._transport, self._keys):
            if topic in (None, keys.topic):
                found[keys.topic] += self._unread(keys)
        return dict(found)

    def _unread(self, keys: ShardKeys) -> int:
        """Returns how many entries the slowest group has not finished; all entries if there is no group."""
        if not self._transport.send(command("EXISTS", keys.ready, read=bool, key=keys.ready)):
            return 0
        groups = self._transport.send(command("XINFO GROUPS", keys.ready, read=list, key=keys.ready))
        behind = []
        for fields in groups:
            group = dict(zip(fields[::2], fields[1::2], strict=True))
            after = b"(" + group[b"last-delivered-id"]
            entries = self._transport.send(command("XRANGE", keys.ready, after, "+", read=list, key=keys.ready))
            behind.append(group[b"pending"] + len(entries))
        return max(behind) if groups else self._transport.send(command("XLEN", keys.ready, read=int, key=keys.ready))

    def _waiting(self, keys: ShardKeys) -> list[Waiting]:
        delayed: list[bytes] = self._transport.send(
            command("ZRANGE", keys.delayed, 0, -1, "WITHSCORES", read=list, key=keys.delayed)
        )
        now_ms = self.clock.wall_ms()
        found = []
        for member, score in zip(delayed[::2], delayed[1::2], strict=True):
            id, own_group = id_and_group(member.decode())
            stored = self._transport.send(command("HGET", keys.jobs, member, read=bytes, key=keys.jobs))
            job, due_ms = codec.decode(stored), codec.due_ms(score)
            due_in = (due_ms - now_ms) / 1000
            found.append(Waiting(keys.topic, id, job.payload, job.headers, due_ms, due_in, job.attempt, own_group))
        return found

    async def _move(self, to: int) -> list[Run]:
        if to < self.clock.wall_ms():
            raise InvalidInput("time", f"{from_ms(to):%Y-%m-%d %H:%M:%S} is past: it is {self.now:%Y-%m-%d %H:%M:%S}")
        before = len(self.runs)
        await run_until(self._stage, to, self.raise_errors)
        return self.runs[before:]

    def _after(self, by: float | timedelta, units: dict[str, float]) -> int:
        whole = (by if isinstance(by, timedelta) else timedelta(seconds=by)) + timedelta(**units)
        return self.clock.wall_ms() + whole // timedelta(milliseconds=1)

    def __enter__(self) -> Self:
        before = os.environ.get("WHEELQ_URL")
        os.environ["WHEELQ_URL"] = self.url
        self._exit.callback(self._server.reset)
        self._exit.callback(self.client.close)
        self._exit.callback(_set_url, before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()


def _is_on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _set_url(url: str | None) -> None:
    if url is None:
        os.environ.pop("WHEELQ_URL", None)
    else:
        os.environ["WHEELQ_URL"] = url


class WheelqTest(_Kit):
    """A wheelq for plain tests, with or without pytest.

    with WheelqTest() as wheelq:
        wheelq.add(shop.worker)
        wheelq.client.schedule("orders", {"id": 42}, delay=1800, key="order-42")
        wheelq.advance(hours=1)
        wheelq.assert_ran("orders", "order-42")
    """

    def advance(self, by: float | timedelta = 0, **units: float) -> list[Run]:
        """Advance the time by seconds, a timedelta or `hours=3, minutes=5` (as timedelta takes them).

        Jobs that fall due on the way run at their due time, in order, and are retried after their pauses. Returns the
        runs. Raises: InvalidInput for a time in the past; with `raise_errors`, a handler's error.
        """
        return self._run(self._after(by, units))

    def advance_to(self, at: datetime) -> list[Run]:
        """Advance the time to an aware datetime, as `advance` does."""
        return self._run(to_ms(at))

    def run_due(self) -> list[Run]:
        """Run the jobs that are due now; the time stands still."""
        return self._run(self.clock.wall_ms())

    def _run(self, to: int) -> list[Run]:
        if _is_on_asyncio():
            raise ConfigurationError("on asyncio use AsyncWheelqTest (fixture async_wheelq), and await what it returns")
        return self._runner.run(self._move(to))

    @cached_property
    def _runner(self) -> asyncio.Runner:
        """One event loop for all calls, so that handlers can keep connections between calls."""
        return self._exit.enter_context(asyncio.Runner())


class AsyncWheelqTest(_Kit):
    """A wheelq for tests on asyncio: handlers run on the test's own event loop.

    async with AsyncWheelqTest() as wheelq:
        wheelq.add(shop.worker)
        await wheelq.async_client.schedule("orders", {"id": 42}, delay=1800, key="order-42")
        await wheelq.advance(hours=1)
        wheelq.assert_ran("orders", "order-42")
    """

    async def advance(self, by: float | timedelta = 0, **units: float) -> list[Run]:
        """Advance the time by seconds, a timedelta or `hours=3, minutes=5`: see `WheelqTest.advance`."""
        return await self._move(self._after(by, units))

    async def advance_to(self, at: datetime) -> list[Run]:
        """Advance the time to an aware datetime, as `advance` does."""
        return await self._move(to_ms(at))

    async def run_due(self) -> list[Run]:
        """Run the jobs that are due now; the time stands still."""
        return await self._move(self.clock.wall_ms())

    @cached_property
    def async_client(self) -> AsyncClient:
        """A client on asyncio."""
        transport = AsyncTransport(Address(self.url))
        return AsyncClient(transport, self._keys, self._settings.client, self._settings.topic, self.clock)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.async_client.close()
        self.__exit__(kind, error, trace)
