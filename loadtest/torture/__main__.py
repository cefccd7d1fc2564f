"""Torture: everything breaks, again and again, while jobs are scheduled, moved, cancelled and run. Nothing may be lost.

    python -m loadtest.torture --on cluster --duration 600 --seed 1 --faults-per-minute 12 --json torture.json

`loadtest.torture.run` describes what it does and judges.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from loadtest.torture.arena import ARENAS
from loadtest.torture.faults import FAULTS
from loadtest.torture.planted import PLANTS
from loadtest.torture.report import as_json, as_table, progress
from loadtest.torture.run import Options, torture


def main() -> int:
    """Run as asked; exit code 1 unless the verdict is clean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=sorted(ARENAS), default="single")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults-per-minute", type=float, default=12.0)
    parser.add_argument("--rate", type=float, default=200.0, help="jobs a second")
    parser.add_argument("--only", default="", help=f"faults, with commas between: {', '.join(FAULTS)}")
    parser.add_argument("--plant", choices=PLANTS, help="a defect that must be found")
    parser.add_argument("--former", help="a commit: run a mixed fleet, an upgrade and a roll-back")
    parser.add_argument("--keep", type=Path, help="keep all logs in this directory")
    parser.add_argument("--json", type=Path, help="write the report here")
    asked = parser.parse_args()
    options = Options(
        seed=asked.seed,
        duration=asked.duration,
        faults_per_minute=asked.faults_per_minute,
        rate=asked.rate,
        only=tuple(filter(None, asked.only.split(","))),
        planted=asked.plant,
        former=asked.former,
    )
    with ExitStack() as held:
        directory = asked.keep or Path(held.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        show = held.enter_context(progress())
        report = torture(asked.on, options, directory, show)
    print(as_table(report))
    if asked.json:
        asked.json.write_text(as_json(report))
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
