"""`Names`: resolves host names in threads of its own, and remembers the answers.

The event loop's own resolver has few threads, which look-ups of dead names fill, and a process cannot end before they
have returned. Here, every name is looked up by one thread at a time, and the threads end with the process.

    the last answer is       a caller gets it
    up to `FRESH_S` old      at once
    up to `OLD_S` old        at once, and the name is looked up again; a failure leaves the answer as it is
    older, or a failure      after the look-up

If more names wait than there are threads, those that were resolved before come first, and those that failed come last.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count

from wheelq.base.clock import Clock
from wheelq.worker.handlers.threads import Daemons

FRESH_S = 30.0
OLD_S = 300.0
THREADS = 64
REMEMBERED = 10_000
"""The most names whose answers are kept; the oldest answers are dropped first."""


@dataclass(frozen=True, slots=True)
class _Answer:
    since: float
    addresses: list[str]
    problem: str = ""
    """Why there are no addresses."""


def look_up(host: str) -> list[str]:
    """Returns the addresses of a host from the system's resolver; blocks. Raises: OSError, UnicodeError."""
    return list(dict.fromkeys(str(address[0]) for *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)))


class Names:
    """The resolver of one process. For one event loop."""

    def __init__(self, clock: Clock, look_up: Callable[[str], list[str]] = look_up, threads: int = THREADS) -> None:
        self._clock = clock
        self._look_up = look_up
        self._most = threads
        self._threads = Daemons()
        self._answers: dict[str, _Answer] = {}
        self._asked: dict[str, asyncio.Future[_Answer]] = {}
        """The names whose look-ups have not ended."""
        self._waiting: list[tuple[int, int, str]] = []
        """Those without a thread yet: a heap of their ranks, their order, and the names."""
        self._running: dict[str, asyncio.Future[list[str]]] = {}
        self._numbers = count()

    async def resolve(self, host: str, port: int) -> list[str]:
        """Returns the addresses of a host. Raises: OSError."""
        answer = self._answers.get(host)
        age_s = float("inf") if answer is None or answer.problem else self._clock.monotonic() - answer.since
        if answer is None or age_s >= FRESH_S:
            asked = self._ask(host, answer)
            if answer is None or age_s >= OLD_S:
                answer = await asyncio.shield(asked)
        if answer.problem:
            raise OSError(answer.problem)
        return answer.addresses

    def close(self) -> None:
        """Give up every look-up."""
        self._waiting.clear()
        for call in self._running.values():
            call.cancel()
        for asked in self._asked.values():
            asked.cancel()
        self._threads.shutdown()

    def _ask(self, host: str, last: _Answer | None) -> asyncio.Future[_Answer]:
        """Returns the answer to come."""
        if host not in self._asked:
            self._asked[host] = asyncio.get_running_loop().create_future()
            rank = 1 if last is None else 2 if last.problem else 0
            heapq.heappush(self._waiting, (rank, next(self._numbers), host))
            self._begin()
        return self._asked[host]

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._most:
            *_, host = heapq.heappop(self._waiting)
            try:
                call = self._threads.submit(self._look_up, host)
            except RuntimeError as error:  # the machine has no thread left
                call = Future()
                call.set_exception(error)
            self._running[host] = asyncio.wrap_future(call)
            self._running[host].add_done_callback(partial(self._end, host))

    def _end(self, host: str, call: asyncio.Future[list[str]]) -> None:
        del self._running[host]
        if call.cancelled():
            return
        now, error = self._clock.monotonic(), call.exception()
        last = self._answers.pop(host, None)  # the newest stands last
        if error is None:
            answer = _Answer(now, call.result())
        elif last is not None and not last.problem and now - last.since < OLD_S:
            answer = last
        else:
            answer = _Answer(now, [], str(error))
        self._answers[host] = answer
        if len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._asked.pop(host).set_result(answer)
        self._begin()
