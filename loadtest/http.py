"""The HTTP server's figures on this machine, beside a FastAPI route that does nothing, in the same run.

    python -m loadtest.http                      # a private Valkey, one server process, one that serves the empty route
    python -m loadtest.http --quick --json http.json

`loadtest.trials.http` describes what it measures and judges.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from loadtest.bench.figures import as_table
from loadtest.servers.measured import add_options, server_at
from loadtest.trials.http import measure


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.http", description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="everything small, one round: does it work?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed, too")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.2f} before", file=sys.stderr)
    with server_at(options.url, options.server, "off") as url:
        outcome = measure(url, 0.05 if options.quick else 1.0, 1 if options.quick else options.rounds)
    print(as_table([outcome]))
    if options.json:
        options.json.write_text(json.dumps(outcome.as_dict(), indent=2) + "\n")
    return 0 if outcome.is_correct and (outcome.meets_targets or not options.strict) else 1


if __name__ == "__main__":
    sys.exit(main())
