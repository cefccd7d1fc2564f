"""The shared part of the adapters in Python: arguments, payloads and the handler. Needs only the standard library."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

CONCURRENCY = 100
CHARACTERS = 64

Due = tuple[str, int]
"""A payload, and its job's due time in milliseconds since the Unix epoch."""
Handle = Callable[[str], Awaitable[None]]


def run(
    produce: Callable[[str, list[Due]], Coroutine[Any, Any, None]],
    work: Callable[[str, Handle], Coroutine[Any, Any, None]],
    **others: Callable[[str], Coroutine[Any, Any, None]],
) -> None:
    """Do what the arguments say; `others` are the additional processes of the queue, by name."""
    role, url, *rest = sys.argv[1:]
    if role == "produce":
        first, count, ahead_ms = map(int, rest[:3])
        due_ms = int(time.time() * 1000) + ahead_ms
        jobs = [(payload(first + n), due_ms + int(n * float(rest[3]))) for n in range(count)]
        start = time.perf_counter()
        _run(produce(url, jobs))
        print(time.perf_counter() - start, due_ms)
    elif role == "work":
        _run(work(url, handler(rest[0], float(rest[1]))))
    else:
        _run(others[role](url))


def payload(number: int) -> str:
    """The payload of the job with this number."""
    return f"{number:010}".ljust(CHARACTERS, "x")


def handler(log: str, seconds: float) -> Handle:
    """A handler that writes to this file."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, number: int) -> None:
        os.write(file, b"%s %d %.3f\n" % (what.encode(), number, time.time() * 1000))

    async def handle(payload: str) -> None:
        number = int(payload[:10])
        note("start", number)
        if seconds:
            await asyncio.sleep(seconds)
            note("done", number)

    return handle


def _run(what: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is installed."""
    try:
        factory = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(what)
