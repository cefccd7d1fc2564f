"""Tries seeds. Each runs in its own fork of the same process, so that all begin in the same state."""

from __future__ import annotations

import os
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NoReturn

from loadtest.simulation.drawing import draw
from loadtest.simulation.oracle import Excuse
from loadtest.simulation.plants import plant
from loadtest.simulation.run import run

Numbers = frozenset[int]
PLANTED: list[str] = []
"""The planted defects of every run."""
IGNORED: list[str] = []
"""Patterns of known problems, which do not count."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a run, as its process sends it."""

    seed: int
    problems: tuple[str, ...]
    digest: str
    lines: tuple[str, ...]
    simulated_s: float
    jobs: int
    excuses: tuple[Excuse, ...] = ()
    """What the oracle has excused."""
    reached: frozenset[str] = frozenset()
    """See `reached`."""


def try_seed(seed: int, *, faults: bool = True, operations: bool = True, without: Numbers = frozenset()) -> Trial:
    """Run one seed in a fork."""
    found: Trial = Apart(lambda: _try(seed, faults, operations, without)).result()
    return found


def try_seeds(seeds: Iterable[int], *, faults: bool = True, jobs: int = 1) -> Iterator[Trial]:
    """Run many seeds, `jobs` of them at the same time. Yields their trials as they end.

    A run that breaks off is a trial with a problem; the other seeds are still tried.
    """
    under_way: dict[int, Apart] = {}
    for seed in seeds:
        under_way[seed] = Apart(partial(_try, seed, faults, True, frozenset()))
        if len(under_way) >= jobs:
            yield _first_to_end(under_way)
    while under_way:
        yield _first_to_end(under_way)


def _first_to_end(under_way: dict[int, Apart]) -> Trial:
    ended = wait([apart.readable for apart in under_way.values()])
    seed = next(seed for seed, apart in under_way.items() if apart.readable in ended)
    return _trial(seed, under_way.pop(seed))


def _trial(seed: int, apart: Apart) -> Trial:
    try:
        found: Trial = apart.result()
    except RuntimeError as error:
        return Trial(seed, (str(error),), "", (), 0.0, 0)
    return found


def _try(seed: int, faults: bool, operations: bool, without: Numbers) -> Trial:
    for name in PLANTED:
        plant(name)
    result = run(draw(seed, faults=faults, operations=operations), without)
    lines = tuple(result.story.lines)
    problems = tuple(one for one in result.problems if not any(re.search(known, one) for known in IGNORED))
    return Trial(
        seed,
        problems,
        result.story.digest,
        lines,
        result.simulated_s,
        result.jobs,
        result.excuses,
        result.reached,
    )


class Apart:
    """Calls a function in a fork of this process, and starts at once."""

    def __init__(self, do: Callable[[], Any]) -> None:
        readable, writable = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _do_and_tell(do, readable, writable)
        os.close(writable)
        self.readable = readable
        """The pipe that has the result once the function has ended."""

    def result(self) -> Any:
        """Returns the result of the function. Raises: RuntimeError, if it failed."""
        with os.fdopen(self.readable, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(self._pid, 0)
        found = pickle.loads(data) if data else "it ended without a result"
        if status:
            raise RuntimeError(f"the run broke off:\n{found}")
        return found


def _do_and_tell(do: Callable[[], Any], readable: int, writable: int) -> NoReturn:
    code = 1
    try:
        os.close(readable)
        with os.fdopen(writable, "wb") as pipe:
            try:
                pickle.dump(do(), pipe)
                code = 0
            except BaseException:  # noqa: BLE001  # the parent reports it
                pickle.dump(traceback.format_exc(), pipe)
    finally:
        os._exit(code)
