"""The command `python -m loadtest.simulate`."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

from loadtest.simulation import reached
from loadtest.simulation.drawing import draw
from loadtest.simulation.faults import FAULTS
from loadtest.simulation.oracle import Excuse, summed_up
from loadtest.simulation.shrink import short_story, shrink
from loadtest.simulation.trials import IGNORED, PLANTED, Trial, try_seed, try_seeds

MOST_SHOWN = 60
PROGRESS_S = 20.0
"""Seconds between two lines of progress."""
MANY = 60
"""The number of seeds from which on a run tells what it has never reached."""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.simulate", description="A fleet by virtual time.")
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds to try")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first of them")
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument("--shrink", action="store_true", help="the shortest story that still fails")
    parser.add_argument("--plant", default="", help="a defect put in on purpose")
    parser.add_argument("--no-faults", action="store_true", help="nothing breaks")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many seeds run at the same time")
    parser.add_argument("--keep-going", action="store_true", help="try all seeds, also after one that fails")
    parser.add_argument("--ignore", action="append", default=[], metavar="PATTERN", help="a problem that is known")
    parser.add_argument("--reached", type=Path, help="a file for what was reached, and by how many seeds")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    IGNORED.extend(options.ignore)
    PLANTED.extend(filter(None, [options.plant]))
    return several(options) if options.seed is None else one(options)


def one(options: argparse.Namespace) -> int:
    """Print the story of one seed, or of its shortest part that still fails."""
    _freeze()
    faults = not options.no_faults
    if options.shrink:

        def attempt(without: frozenset[int]) -> Trial:
            return try_seed(options.seed, faults=faults, without=without)

        trial, steps = shrink(draw(options.seed, faults=faults), attempt)
        print("\n".join(short_story(trial, steps)))
        return _say(trial)
    trial = try_seed(options.seed, faults=faults)
    print("\n".join([*trial.lines, *summed_up(trial.excuses)]))
    return _say(trial)


def several(options: argparse.Namespace) -> int:
    """Try seeds until one fails. The last lines give the excuses, the speed, and the seeds that have failed."""
    _freeze()
    tried, simulated_s, failed, excuses = 0, 0.0, [], list[Excuse]()
    counts = reached.Reached()
    seeds = range(options.first, options.first + options.seeds)
    told_at = time.monotonic()
    for tried, trial in enumerate(try_seeds(seeds, faults=not options.no_faults, jobs=options.jobs), start=1):
        simulated_s += trial.simulated_s
        excuses += [one._replace(whom="") for one in trial.excuses]
        counts.update(trial.reached)
        if trial.problems:
            failed.append(trial.seed)
            _say(trial)
            if not options.keep_going:
                break
        if time.monotonic() - told_at > PROGRESS_S:
            told_at = time.monotonic()
            print(f"{tried} of {options.seeds} seeds tried, {len(failed)} failed")
    if options.reached:
        options.reached.write_text(json.dumps(dict(sorted(counts.items()))))
    missing = frozenset(reached.missing(counts, tried))
    if tried >= MANY:
        for name in reached.never(counts):
            print(f"never reached{', as it must be' if name in missing else ''}: {name}")
    print("\n".join([*summed_up(excuses), _speed(tried, simulated_s)]))
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
    for one in reached.scripts().values():
        reached.probed(one)
    gc.collect()
    gc.freeze()
    gc.disable()  # a fork ends with its run; a last collection would take a twentieth of its time


def _in_turns(problems: Iterable[str]) -> list[str]:
    """Returns one problem of each broken promise, then a second of each, and so on."""
    counts, turns = Counter[str](), list[tuple[int, str]]()
    for problem in problems:
        promise = problem.partition(":")[0]
        turns.append((counts[promise], problem))
        counts[promise] += 1
    return [problem for _, problem in sorted(turns, key=itemgetter(0))]


def _say(trial: Trial) -> int:
    broke = [f"{step.kind} at {step.at:.1f}" for step in draw(trial.seed).steps if step.kind in FAULTS]
    if trial.problems:
        print(f"seed {trial.seed}: {', '.join(broke) or 'no fault'}")
    for problem in _in_turns(trial.problems)[:MOST_SHOWN]:
        print(f"seed {trial.seed}: {problem}")
    if len(trial.problems) > MOST_SHOWN:
        print(f"seed {trial.seed}: and {len(trial.problems) - MOST_SHOWN} more")
    print(f"seed {trial.seed}: {'fails' if trial.problems else 'clean'}, {trial.jobs} runs, {trial.digest}")
    return 1 if trial.problems else 0


if __name__ == "__main__":
    sys.exit(main())
