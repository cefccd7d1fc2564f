"""The command `python -m loadtest.mutants`. Exit code 1 if a mutant survives, 2 if a patch cannot be tried."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from loadtest import mutants
from loadtest.command import parser
from loadtest.mutants.trial import (
    PATCHES,
    Finding,
    Mutant,
    all_patches,
    apply,
    copied,
    find_by_seeds,
    find_by_tests,
    kill_all,
)


class Verdict(NamedTuple):
    """What the finders say of one mutant; None: that finder was not asked."""

    mutant: Mutant
    by_tests: Finding | None
    by_seeds: Finding | None

    @property
    def survived(self) -> bool:
        """Whether nobody has found it."""
        return not any(finding and finding.what for finding in (self.by_tests, self.by_seeds))

    def row(self) -> str:
        """Returns it as a row of the table."""
        cells = self.mutant.name, self.mutant.room, _shown(self.by_tests), _shown(self.by_seeds)
        return f"| {' | '.join(cells)} |"


def main() -> int:
    """The command."""
    options_of = parser("mutants", mutants.__doc__)
    options_of.add_argument("patch", nargs="*", help="names of patches, or files; none: every patch of the checkout")
    options_of.add_argument("--seeds", type=int, default=60, help="how many seeds the simulator tries at most")
    options_of.add_argument("--from", type=int, default=1, dest="first", help="the first of them")
    options_of.add_argument("--tests", nargs="+", metavar="PATH", help="these tests instead of those of the patch")
    options_of.add_argument("--quick", action="store_true", help="if these find nothing, all quick tests, too")
    only = options_of.add_mutually_exclusive_group()
    only.add_argument("--simulator-only", action="store_true", help="no tests")
    only.add_argument("--tests-only", action="store_true", help="no simulator")
    options_of.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many mutants at the same time")
    options = options_of.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        return try_all([Mutant.read(patch) for patch in _chosen(options.patch)], options)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"python -m loadtest.mutants: {error}", file=sys.stderr)
        return 2


def _chosen(named: Sequence[str]) -> list[Path]:
    """Returns the patches with these names, or the files."""
    return [Path(name) if name.endswith(".patch") else PATCHES / f"{name}.patch" for name in named] or all_patches()


def try_all(chosen: Sequence[Mutant], options: argparse.Namespace) -> int:
    """Try the mutants, and print a row of a table for each. Raises: RuntimeError, ValueError."""
    survivors: list[Mutant] = []
    with copied() as clean, ThreadPoolExecutor(options.jobs) as pool:
        for mutant in chosen:
            apply(mutant, clean, check=True)
        print("| mutant | room | by tests | by the simulator |\n|---|---|---|---|")
        trials = [pool.submit(_try, mutant, clean, options) for mutant in chosen]
        try:
            for verdict in (trial.result() for trial in trials):
                print(verdict.row())
                survivors += [verdict.mutant] if verdict.survived else []
        finally:  # with nothing left to do, unless one could not be tried, or somebody interrupts
            pool.shutdown(wait=False, cancel_futures=True)
            kill_all()
    for mutant in survivors:
        print(f"{mutant.name} survived: {mutant.mistake}")
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} found")
    return 1 if survivors else 0


def _try(mutant: Mutant, clean: Path, options: argparse.Namespace) -> Verdict:
    with copied(mutant) as copy:
        by_tests = None if options.simulator_only else _by_tests(copy, clean, options.tests or mutant.tests)
        if options.quick and by_tests and not by_tests.what:
            by_tests = _by_tests(copy, clean, ("-m", "quick"))
        by_seeds = None if options.tests_only else _by_seeds(copy, clean, options)
    return Verdict(mutant, by_tests, by_seeds)


def _by_tests(copy: Path, clean: Path, tests: Sequence[str]) -> Finding:
    found = find_by_tests(copy, tests)
    return found.against(find_by_tests(clean, found.again)) if found.what else found


def _by_seeds(copy: Path, clean: Path, options: argparse.Namespace) -> Finding:
    found = find_by_seeds(copy, options.first, options.seeds)
    return found.against(find_by_seeds(clean, *map(int, found.again))) if found.what else found


def _shown(finding: Finding | None) -> str:
    return "not asked" if finding is None else f"{finding.what or finding.why_not} ({finding.took_s:.0f} s)"


if __name__ == "__main__":
    sys.exit(main())
