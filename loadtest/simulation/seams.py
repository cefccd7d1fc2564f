"""Replaces time, randomness and names during a run.

The product reads clocks in one module only (`clock`, a house rule), httpcore in another, and both get random numbers
from the standard library. The replacements answer for the process whose turn it is, so that every part lives in
simulated time, even the parts that take no clock.
"""

from __future__ import annotations

import os
import random
import socket
import sqlite3
import threading
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import redis.connection
from httpcore._async import http11

from loadtest.simulation import blocking
from loadtest.simulation.process import InlineExecutor, current
from loadtest.simulation.threads import Threading, this_thread
from loadtest.simulation.world import EPOCH_S, World
from wheelq import transport
from wheelq.base import clock, ids
from wheelq.producer import breaker
from wheelq.producer.outbox import courier, file
from wheelq.producer.outbox.file import File
from wheelq.worker import threads

WITH_THREADS: tuple[Any, ...] = (courier, file, breaker, transport.blocking, transport.routes, transport.topology)
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
    names = world.random("names")
    before = (os.urandom, random._urandom, socket.gethostname, os.getpid)  # type: ignore[attr-defined]

    def host_name() -> str:
        return current[-1].name if current else "simulation"

    real_pid = os.getpid()
    for module in WITH_CLOCKS:
        module.time = _Time(world)
    os.getpid = lambda: current[-1].pid if current else real_pid
    os.urandom = random._urandom = names.randbytes  # type: ignore[attr-defined, assignment]
    socket.gethostname = host_name
    boot_id = clock._boot_id  # each process has an uptime of its own
    clock._boot_id = lambda: str(current[-1].pid) if current else None  # type: ignore[assignment]
    pools, threads.Daemons = threads.Daemons, lambda: InlineExecutor(current[-1])  # type: ignore[assignment, misc]
    connect, redis.connection.Connection._connect = redis.connection.Connection._connect, blocking.connect
    looks, transport.probing.aspeaks_tls = transport.probing.aspeaks_tls, _no_look
    look, transport.probing.speaks_tls = transport.probing.speaks_tls, lambda error, address: None
    for module in WITH_THREADS:
        module.threading = Threading
    transaction = File.transaction
    File.transaction = _on_a_disk(transaction)  # type: ignore[method-assign]
    random.seed(f"{world.seed}/product")
    ids._ids.seed()  # ids begin with a number that the process drew when it was started
    try:
        yield
    finally:
        File.transaction = transaction  # type: ignore[method-assign]
        for module in WITH_THREADS:
            module.threading = threading
        transport.probing.speaks_tls, transport.probing.aspeaks_tls = look, looks
        redis.connection.Connection._connect = connect
        threads.Daemons = pools  # type: ignore[misc]
        clock._boot_id = boot_id
        for module in WITH_CLOCKS:
            module.time = real_time
        os.urandom, random._urandom, socket.gethostname, os.getpid = before  # type: ignore[attr-defined]


async def _no_look(error: BaseException, address: transport.Address) -> None:
    """Does nothing: no simulated server speaks TLS."""


def _on_a_disk(transaction: Begin) -> Begin:
    """Makes transactions of an outbox fail while the disk of the process is full."""

    @contextmanager
    def begin(file: File) -> Iterator[sqlite3.Connection]:
        if current and current[-1].disk_is_full:
            raise sqlite3.OperationalError("database or disk is full")
        with transaction(file) as connection:
            yield connection

    return begin
