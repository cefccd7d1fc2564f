"""What the commands share: a parser, the options of a measurement, and the report of its outcomes."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.bench.figures import Outcome, as_table
from loadtest.servers.measured import add_options, server_at


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Returns the parser of `python -m loadtest.NAME`; the module's docstring is its description."""
    describe = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"python -m loadtest.{name}", description=doc, formatter_class=describe)


def add_report(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--strict`, for `report`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed, too")


def report(outcomes: Sequence[Outcome], options: argparse.Namespace) -> int:
    """Print the outcomes, and write them as JSON if asked; returns the exit code."""
    print(as_table(outcomes))
    if options.json:
        options.json.write_text(json.dumps([outcome.as_dict() for outcome in outcomes], indent=2) + "\n")
    is_good = all(one.is_correct and (one.meets_targets or not options.strict) for one in outcomes)
    return 0 if is_good else 1


def run_rounds(name: str, doc: str | None, measure: Callable[[str, float, int], Outcome], quick: float) -> int:
    """A whole command: call `measure(url, scale, rounds)`, with the scale `quick` for `--quick`, and report."""
    options_of = parser(name, doc)
    add_options(options_of)
    options_of.add_argument("--rounds", type=int, default=3, metavar="N", help="of each measurement")
    options_of.add_argument("--quick", action="store_true", help="everything small, one round: does it work?")
    add_report(options_of)
    options = options_of.parse_args()
    tell_load()
    with server_at(options.url, options.server, "off") as url:
        outcome = measure(url, quick, 1) if options.quick else measure(url, 1.0, options.rounds)
    return report([outcome], options)


def tell_load() -> None:
    """Print the load of the machine: the less load, the truer the figures."""
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.2f} before", file=sys.stderr)
