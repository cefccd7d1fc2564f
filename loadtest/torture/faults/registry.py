"""The registry of faults; makes those that take a server away come one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import wraps
from random import Random

from loadtest.torture.scene import Scene

RECOVERY_S = 60.0
"""Seconds within which the servers must work together again; if they do not, the servers themselves are broken."""
Steps = Generator[float | None, None, None]
"""Seconds for which the fault lasts; None: it has to wait before it can begin."""
Fault = Callable[[Scene, Random], Steps]
FAULTS: dict[str, Fault] = {}
"""Every fault by its name."""


def fault(name: str, *, alone: bool = False) -> Callable[[Fault], Fault]:
    """Register a fault by a name; `alone`: it does not begin while another such fault lasts."""

    def register(function: Fault) -> Fault:
        FAULTS[name] = _alone(name, function) if alone else function
        return function

    return register


def _alone(name: str, function: Fault) -> Fault:
    @wraps(function)
    def one_at_a_time(scene: Scene, random: Random) -> Steps:
        while scene.is_taken:
            yield None
        scene.is_taken = True
        with scene.disrupting(name, lasts_s=2.0, may_undo=scene.arena.durability == "replicated"):
            yield from function(scene, random)
            yield from until(scene.arena.is_whole, f"the servers do not recover from {name}")
        scene.is_taken = False

    return one_at_a_time


def until(holds: Callable[[], bool], otherwise: str) -> Steps:
    """Pause until `holds()` is true. Raises: TimeoutError, with the message `otherwise`."""
    deadline = time.monotonic() + RECOVERY_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        yield 0.1
