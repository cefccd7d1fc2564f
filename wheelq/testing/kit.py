"""`WheelqTest` and `AsyncWheelqTest`: one wheelq under test, for plain tests and for tests on asyncio.

A failing assertion lists the actual jobs or runs.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import cached_property
from typing import Self

from wheelq.aio import AsyncClient
from wheelq.base.clock import ManualClock, wall_ms
from wheelq.base.plural import counted
from wheelq.client import Client
from wheelq.errors import ConfigurationError, InvalidInput
from wheelq.model.checks import to_ms
from wheelq.model.job import Payload, from_ms
from wheelq.producer.topics import forget_all
from wheelq.protocol import codec, scores
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys, ShardKeys, id_and_group
from wheelq.settings import Settings, settings_in_force
from wheelq.testing.engine import Stage, run_until
from wheelq.testing.leading import all_shards
from wheelq.testing.observed import ANYTHING, Run, Waiting, as_sent
from wheelq.transport import Address, AsyncTransport, Transport
from wheelq.worker import Worker

URL = "memory://tests"
"""The URL of the fixtures' wheelq, and the value of WHEELQ_URL while a test runs."""


class _Kit:
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
        """Whether `advance` raises a handler's error instead of retrying its job."""
        self.clock = ManualClock(wall_ms=wall_ms() if start is None else to_ms(start))
        """The server's clock. Move it with `advance` only, so that jobs that fall due are run."""
        self.runs: list[Run] = []
        """Every run of a handler so far, in the order they began."""
        self._server = memory_server(url)
        self._server.reset()
        forget_all()
        self._server.clock = self.clock
        self._keys = Keys(settings.prefix)
        self._settings = settings
        self._transport = Transport(address)
        self.client = Client(self._transport, self._keys, settings.client, settings.topic, self.clock)
        """A blocking client; it works on asyncio too, because nothing here waits."""
        self.worker = Worker(
            AsyncTransport(address),
            keys=self._keys,
            settings=settings.worker,
            clock=self.clock,
            client=settings.client,
            new_topics=settings.topic,
        )
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
        """Returns the jobs that wait for their due time, including retries, ordered by due time."""
        shards = [keys for keys in all_shards(self._transport, self._keys) if topic in (None, keys.topic)]
        found = [job for keys in shards for job in self._waiting(keys)]
        return sorted(found, key=lambda job: (job.due_ms, job.topic, job.id))

    def unread(self, topic: str | None = None) -> dict[str, int]:
        """Returns, by topic, how many ready jobs are not finished by every group."""
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
            job, due_ms = codec.decode(stored), scores.due_ms(score)
            due_in = (due_ms - now_ms) / 1000
            found.append(Waiting(keys.topic, id, job.payload, job.headers, due_ms, due_in, job.attempt, own_group))
        return found

    def assert_scheduled(
        self,
        topic: str,
        key: str | None = None,
        *,
        payload: Payload = ANYTHING,
        due_in: float | timedelta | None = None,
        due_at: datetime | None = None,
        within: float = 1.0,
    ) -> Waiting:
        """Assert that a job with this key, payload and due time (± `within` seconds) waits; returns the first match.

        The payload may be given as it was scheduled: a model, or a task's `close_order.job(42)`.

        Raises: AssertionError, which lists the waiting jobs.
        """
        seconds = due_in.total_seconds() if isinstance(due_in, timedelta) else due_in
        sent = as_sent(payload)
        for job in self.waiting(topic):
            if (
                key in (None, job.id)
                and sent == job.payload
                and (seconds is None or abs(job.due_in - seconds) <= within)
                and (due_at is None or abs(job.due_ms - to_ms(due_at)) <= within * 1000)
            ):
                return job
        wanted = _described(key, payload, **{"due in": due_in, "due at": due_at})
        raise AssertionError(f"no such job waits in {topic!r}{wanted}\n{_listed('waiting', self.waiting())}")

    def assert_not_scheduled(self, topic: str, key: str | None = None, *, payload: Payload = ANYTHING) -> None:
        """Assert that no such job waits. Raises: AssertionError, which lists the matches."""
        sent = as_sent(payload)
        found = [job for job in self.waiting(topic) if key in (None, job.id) and sent == job.payload]
        _expect_none(f"waiting in {topic!r}", found)

    def assert_ran(
        self,
        topic: str,
        key: str | None = None,
        *,
        payload: Payload = ANYTHING,
        times: int | None = None,
        group: str | None = None,
    ) -> list[Run]:
        """Assert that such a job ran, exactly `times` times if given (retries count); returns the runs.

        Raises: AssertionError, which lists all runs.
        """
        found = self._ran(topic, key, payload, group)
        if times == len(found) or (found and times is None):
            return found
        often = "never" if not found else f"{counted(len(found), 'time')}, not {times}"
        wanted = _described(key, payload, group=group)
        raise AssertionError(f"{topic!r}{wanted} ran {often}\n{_listed('runs', self.runs)}")

    def assert_not_ran(
        self, topic: str, key: str | None = None, *, payload: Payload = ANYTHING, group: str | None = None
    ) -> None:
        """Assert that no such job ran. Raises: AssertionError, which lists the matches."""
        found = self._ran(topic, key, payload, group)
        _expect_none(f"runs of {topic!r}", found)

    def assert_nothing_waits(self, topic: str | None = None) -> None:
        """Assert that no job waits for its due time or a retry, and that every group has finished every ready job.

        Raises: AssertionError, which lists the jobs.
        """
        _expect_none("waiting", self.waiting(topic))
        unread = {name: count for name, count in self.unread(topic).items() if count}
        if unread:
            raise AssertionError(f"ready, and not finished by every group (is the worker added?): {unread}")

    def _ran(self, topic: str, key: str | None, payload: Payload, group: str | None) -> list[Run]:
        sent = as_sent(payload)
        return [
            run
            for run in self.runs
            if run.job.topic == topic
            and key in (None, run.job.id)
            and sent == run.job.payload
            and group in (None, run.group)
        ]

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

    def __exit__(self, *_: object) -> None:
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
            wheelq.worker.handler("orders")(print)
            wheelq.client.schedule("orders", {"id": 42}, delay=1800, key="order-42")
            wheelq.advance(hours=1)
            wheelq.assert_ran("orders", "order-42")

    With pytest, take the fixture `wheelq`.
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

    With pytest, take the fixture `async_wheelq`.
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

    async def __aexit__(self, *_: object) -> None:
        await self.async_client.close()
        self.__exit__()


MOST_SHOWN = 30


def _described(key: str | None, payload: Payload, **more: object) -> str:
    given = {"key": key, **({} if payload is ANYTHING else {"payload": payload}), **more}
    return "".join(f", {name} {value!r}" for name, value in given.items() if value is not None)


def _expect_none(what: str, found: Sequence[object]) -> None:
    # Raised explicitly: pytest rewrites the message of an assert statement, and python -O removes it.
    if found:
        raise AssertionError(_listed(what, found))


def _listed(what: str, items: Sequence[object]) -> str:
    if not items:
        return f"{what}: nothing"
    more = [f"… and {len(items) - MOST_SHOWN:,} more"] if len(items) > MOST_SHOWN else []
    return f"{what}:" + "".join(f"\n  {item}" for item in [*items[:MOST_SHOWN], *more])
