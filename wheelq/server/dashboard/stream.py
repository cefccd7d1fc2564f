"""`TabStream`: tells every open tab that there is something new to see.

While there are tabs, one task of the process looks at Redis for all of them, every `look.FRESH_S` seconds. A tab
gets the moment of each look as a server-sent event, and asks for the parts of its page again. A tab that is hidden
closes its stream. What a page shows depends on its viewer, so it is not in the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from wheelq.base.clock import Clock
from wheelq.errors import WheelqError
from wheelq.server import problems
from wheelq.server.dashboard.look import FRESH_S, Look
from wheelq.server.problems import Problem

STREAMS = 500
"""The most streams of one process: each keeps a connection."""
KEEP_ALIVE_S = 15.0
"""A stream without news says so this often: proxies close connections that are silent."""


Check = Callable[[], Awaitable[object]]


class TabStream:
    """The tabs of one server process."""

    def __init__(self, look: Look, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._tabs: set[asyncio.Queue[bytes | None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def open(self) -> int:
        """How many tabs listen."""
        return len(self._tabs)

    def listen(self, check: Check) -> AsyncIterator[bytes]:
        """Yields events for one tab until it goes or the server stops. Raises: Problem, if there are too many.

        `check` is called before each event; the stream ends when it raises `Problem`.
        """
        if self._is_closed or len(self._tabs) >= STREAMS:
            raise Problem(problems.OVERLOADED, f"{len(self._tabs):,} tabs listen already.")
        return self._events(check)

    def close(self) -> None:
        """Let every tab go: the server stops."""
        self._is_closed = True
        for tab in self._tabs:
            tab.put_nowait(None)
        if self._looking is not None:
            self._looking.cancel()

    async def _events(self, check: Check) -> AsyncIterator[bytes]:
        tab: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tabs.add(tab)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._run(), name="wheelq dashboard")
        try:
            yield format_sse_event(event="hello", data_str="{}", retry=int(FRESH_S * 1000))
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        event = await tab.get()
                except TimeoutError:
                    event = KEEPALIVE_COMMENT
                if event is None or not await _passes(check):
                    return
                yield event
        finally:
            self._tabs.discard(tab)

    async def _run(self) -> None:
        while self._tabs and not self._is_closed:
            await self._clock.sleep(FRESH_S)
            if self._tabs:
                event = await self._event()
                for tab in self._tabs:
                    if tab.empty():  # one that does not read gets only the latest
                        tab.put_nowait(event)

    async def _event(self) -> bytes:
        try:
            seen = await self._look.now()
        except WheelqError:
            return format_sse_event(event="away", data_str="{}")
        return format_sse_event(event="look", data_str=f'{{"at_ms":{seen.at_ms}}}')


async def _passes(check: Check) -> bool:
    try:
        await check()
    except Problem:
        return False
    except WheelqError:  # it cannot be read now: the events hold no data, and the next one is checked again
        return True
    return True
