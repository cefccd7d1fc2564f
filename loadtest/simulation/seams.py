"""Replaces time, randomness and names during a run.

The product reads clocks in one module only (`clock`, a house rule), httpcore in another, and both get random numbers
from the standard library. The replacements answer for the process whose turn it is, so that every part lives in
simulated time, even the parts that take no clock.
"""

from __future__ import annotations

import os
import queue
import random
import socket
import sqlite3
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import redis.connection
from httpcore._async import http11

from loadtest.simulation import blocking
from loadtest.simulation.process import InlineExecutor, current
from loadtest.simulation.threads import Threading, this_thread
from loadtest.simulation.world import EPOCH_S, World
from loadtest.simulation.zones import zone_info
from wheelq import transport
from wheelq.base import clock, ids
from wheelq.callbacks import names as resolver
from wheelq.model import cron
from wheelq.producer import breaker, driver
from wheelq.producer.outbox import courier, file, store
from wheelq.producer.outbox.file import File
from wheelq.worker.handlers import threads

WITH_THREADS: tuple[Any, ...] = (
    courier,
    file,
    store,
    breaker,
    driver,
    transport.blocking,
    transport.routes,
    transport.topology,
)
"""The modules whose threads, locks and events are simulated."""
WITH_CLOCKS: tuple[Any, ...] = (clock, http11)
"""The modules that read clocks; httpcore closes idle connections by its own."""
Begin = Callable[[File], AbstractContextManager[sqlite3.Connection]]


class _Time:
    """Replaces the module `time` for the product's clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return current[-1].monotonic() if current else self._world.now

    def time(self) -> float:
        return current[-1].wall() if current else EPOCH_S + self._world.now

    def time_ns(self) -> int:
        return int(self.time() * 1_000_000) * 1_000

    def sleep(self, seconds: float) -> None:
        thread = this_thread()
        assert thread is not None, "a simulated process blocks its loop"
        thread.sleep(seconds)

    def clock_gettime(self, which: int) -> float:
        return self.monotonic()

    def __getattr__(self, name: str) -> int:
        found: int = getattr(real_time, name)
        assert isinstance(found, int), f"the product asks for time.{name}, which the simulator does not know"
        return found


@contextmanager
def in_place(world: World) -> Iterator[None]:
    """Make the product use this world during the block."""
    names, real_pid = world.random("names"), os.getpid()

    def host_name() -> str:
        return current[-1].name if current else "simulation"

    def boot_id() -> str | None:  # each process has an uptime of its own
        return str(current[-1].pid) if current else None

    with ExitStack() as stack:

        def put(owner: object, name: str, value: object) -> None:
            stack.enter_context(patch.object(owner, name, value))

        for module in WITH_CLOCKS:
            put(module, "time", _Time(world))
        put(os, "getpid", lambda: current[-1].pid if current else real_pid)
        put(os, "urandom", names.randbytes)
        put(random, "_urandom", names.randbytes)
        put(socket, "gethostname", host_name)
        put(cron, "ZoneInfo", zone_info)
        put(clock, "_boot_id", boot_id)
        for module in (threads, resolver):
            put(module, "Daemons", lambda: InlineExecutor(current[-1]))
        put(redis.connection.Connection, "_connect", blocking.connect)
        put(queue.LifoQueue, "get", blocking.take)
        put(transport.probing, "aspeaks_tls", _no_look)
        put(transport.probing, "speaks_tls", lambda error, address: None)
        for module in WITH_THREADS:
            put(module, "threading", Threading)
        put(File, "transaction", _on_a_disk(File.transaction))
        put(File, "try_to_own", _until_killed(File.try_to_own))
        random.seed(f"{world.seed}/product")
        ids._random.seed(f"{world.seed}/lives")
        ids._ids.seed()  # ids begin with what the process drew when it was started
        yield


async def _no_look(error: BaseException, address: transport.Address) -> None:
    """Does nothing: no simulated server speaks TLS."""


def _until_killed(own: Callable[[File], bool]) -> Callable[[File], bool]:
    """Makes the lock of an outbox end with its process, as the kernel does."""

    def try_to_own(file: File) -> bool:
        found = own(file)
        if found and current:
            current[-1].unlocks[id(file)] = file._disown
        return found

    return try_to_own


def _on_a_disk(transaction: Begin) -> Begin:
    """Makes transactions of an outbox fail while the disk of the process is full."""

    @contextmanager
    def begin(file: File) -> Iterator[sqlite3.Connection]:
        if current and current[-1].disk_is_full:
            raise sqlite3.OperationalError("database or disk is full")
        with transaction(file) as connection:
            yield connection

    return begin
