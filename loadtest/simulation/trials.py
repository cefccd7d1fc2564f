"""Tries seeds. Each runs in its own fork of the same process, so that all begin in the same state."""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import re
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
TELL_S = 20.0
"""Seconds between two lines of progress."""
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


def try_seed(seed: int, *, faults: bool = True, operations: bool = True, without: Numbers = frozenset()) -> Trial:
    """Run one seed in a fork."""
    found: Trial = Apart(lambda: _try(seed, faults, operations, without)).result()
    return found


def try_seeds(seeds: Iterable[int], *, faults: bool = True, jobs: int = 1) -> Iterator[Trial]:
    """Run many seeds, `jobs` of them at the same time. Yields their trials in order.

    A run that breaks off is a trial with a problem, and the other seeds are tried all the same.
    """
    under_way: deque[tuple[int, Apart]] = deque()
    for seed in seeds:
        under_way.append((seed, Apart(partial(_try, seed, faults, True, frozenset()))))
        if len(under_way) >= jobs:
            yield _trial(*under_way.popleft())
    while under_way:
        yield _trial(*under_way.popleft())


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
    return Trial(seed, problems, result.story.digest, lines, result.simulated_s, result.jobs)


class Apart:
    """Calls a function in a fork of this process, and starts at once."""

    def __init__(self, do: Callable[[], Any]) -> None:
        readable, writable = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _do_and_tell(do, readable, writable)
        os.close(writable)
        self._readable = readable

    def result(self) -> Any:
        """Returns the result of the function. Raises: RuntimeError, if it failed."""
        with os.fdopen(self._readable, "rb") as pipe:
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


def one(options: argparse.Namespace) -> int:
    """Print the story of one seed, or of its shortest part that still fails."""
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


def several(options: argparse.Namespace) -> int:
    """Try seeds until one fails. The last lines give the speed, and the seeds that have failed."""
    _freeze()
    tried, simulated_s, failed = 0, 0.0, []
    seeds = range(options.first, options.first + options.seeds)
    told_at = time.monotonic()
    for tried, trial in enumerate(try_seeds(seeds, faults=not options.no_faults, jobs=options.jobs), start=1):
        simulated_s += trial.simulated_s
        if trial.problems:
            failed.append(trial.seed)
            _say(trial)
            if not options.keep_going:
                break
        if time.monotonic() - told_at > TELL_S:
            told_at = time.monotonic()
            print(f"{tried} of {options.seeds} seeds tried, {len(failed)} failed")
    print(_speed(tried, simulated_s))
    if failed:
        print(f"failed: seed {' '.join(map(str, failed))}")
    return 1 if failed else 0


def _speed(seeds: int, simulated_s: float) -> str:
    """Returns a line with the simulated time, and the processor time of this process and its forks."""
    took = os.times()
    processor_s = took.user + took.system + took.children_user + took.children_system
    return (
        f"{seeds} seeds, {simulated_s / 60:.0f} simulated minutes, {processor_s:.0f} s of processor time: "
        f"{seeds / processor_s * 60:.1f} simulated minutes a minute and core with one minute for each seed, "
        f"{simulated_s / processor_s:.1f} with the way to rest"
    )


def _freeze() -> None:
    """Load every module, and exempt the present objects from garbage collection in the forks."""
    draw(1)
    gc.collect()
    gc.freeze()
    gc.disable()  # a fork ends with its run; a last collection would take a twentieth of its time


def _say(trial: Trial) -> int:
    broke = [f"{step.kind} at {step.at:.1f}" for step in draw(trial.seed).steps if step.kind in FAULTS]
    if trial.problems:
        print(f"seed {trial.seed}: {', '.join(broke) or 'no fault'}")
    for problem in trial.problems[:MOST_SHOWN]:
        print(f"seed {trial.seed}: {problem}")
    if len(trial.problems) > MOST_SHOWN:
        print(f"seed {trial.seed}: and {len(trial.problems) - MOST_SHOWN} more")
    print(f"seed {trial.seed}: {'fails' if trial.problems else 'clean'}, {trial.jobs} runs, {trial.digest}")
    return 1 if trial.problems else 0
