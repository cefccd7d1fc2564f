"""Trying seeds: each in a process of its own that is forked from the same state, so that all of them begin alike."""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from loadtest.simulation.faults import FAULTS
from loadtest.simulation.plan import draw
from loadtest.simulation.plants import plant
from loadtest.simulation.run import run

Numbers = frozenset[int]
MOST_SHOWN = 60
PLANTED: list[str] = []
"""Defects that every run begins with."""
IGNORED: list[str] = []
"""Problems that are known: patterns of the sentences that tell of them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is left of a run when its process has ended."""

    seed: int
    problems: tuple[str, ...]
    digest: str
    lines: tuple[str, ...]
    simulated_s: float
    jobs: int


def try_seed(seed: int, *, faults: bool = True, operations: bool = True, without: Numbers = frozenset()) -> Trial:
    """Run one seed in a fork of this process."""
    found: Trial = Apart(lambda: _try(seed, faults, operations, without)).result()
    return found


def try_seeds(seeds: Iterable[int], *, faults: bool = True, jobs: int = 1) -> Iterator[Trial]:
    """Run many seeds, so many at a time; their trials in order."""
    under_way: deque[Apart] = deque()
    for seed in seeds:
        under_way.append(Apart(partial(_try, seed, faults, True, frozenset())))
        if len(under_way) >= jobs:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


def _try(seed: int, faults: bool, operations: bool, without: Numbers) -> Trial:
    for name in PLANTED:
        plant(name)
    result = run(draw(seed, faults=faults, operations=operations), without)
    lines = tuple(result.story.lines)
    problems = tuple(one for one in result.problems if not any(re.search(known, one) for known in IGNORED))
    return Trial(seed, problems, result.story.digest, lines, result.simulated_s, result.jobs)


class Apart:
    """Does something in a fork of this process, beginning at once."""

    def __init__(self, do: Callable[[], Any]) -> None:
        readable, writable = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _do_and_tell(do, readable, writable)
        os.close(writable)
        self._readable = readable

    def result(self) -> Any:
        """What it returned. Raises: RuntimeError, when it did not end well."""
        with os.fdopen(self._readable, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(self._pid, 0)
        found = pickle.loads(data) if data else "it ended without a word"
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
            except BaseException:  # noqa: BLE001  # told by the parent
                pickle.dump(traceback.format_exc(), pipe)
    finally:
        os._exit(code)


def one(options: argparse.Namespace) -> int:
    """Tell the story of one seed, or the shortest one that still fails."""
    _freeze()
    faults = not options.no_faults
    if options.shrink:
        from loadtest.simulation.shrink import short_story, shrink

        def attempt(without: Numbers) -> Trial:
            return try_seed(options.seed, faults=faults, without=without)

        trial, steps = shrink(draw(options.seed, faults=faults), attempt)
        print("\n".join(short_story(trial, steps)))
        return _say(trial)
    trial = try_seed(options.seed, faults=faults)
    print("\n".join(trial.lines))
    return _say(trial)


def several(options: argparse.Namespace, began: float) -> int:
    """Try seeds until one fails."""
    _freeze()
    failed = []
    seeds = range(options.first, options.first + options.seeds)
    for trial in try_seeds(seeds, faults=not options.no_faults, jobs=options.jobs):
        if trial.problems:
            failed.append(trial.seed)
            _say(trial)
            if not options.keep_going:
                print(f"failed: seed {trial.seed}")
                return 1
    took = time.perf_counter() - began
    print(f"{options.seeds} seeds, {options.seeds / took * 60:.0f} simulated minutes of load a minute")
    if failed:
        print(f"failed: seed {' '.join(map(str, failed))}")
    return 1 if failed else 0


def _freeze() -> None:
    """Load every module, and spare each fork the search for garbage in what it inherits."""
    draw(1)
    gc.collect()
    gc.freeze()


def _say(trial: Trial) -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    broke = [f"{step.kind} at {step.at:.1f}" for step in draw(trial.seed).steps if step.kind in FAULTS]
    if trial.problems:
        print(f"seed {trial.seed}: {', '.join(broke) or 'no fault'}")
    for problem in trial.problems[:MOST_SHOWN]:
        print(f"seed {trial.seed}: {problem}")
    if len(trial.problems) > MOST_SHOWN:
        print(f"seed {trial.seed}: and {len(trial.problems) - MOST_SHOWN} more")
    print(f"seed {trial.seed}: {'fails' if trial.problems else 'clean'}, {trial.jobs} runs, {trial.digest}")
    return 1 if trial.problems else 0
