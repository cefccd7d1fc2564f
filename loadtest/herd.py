"""The herd: a million jobs due at one instant, while another topic runs as usual.

    python -m loadtest.herd                          # 1,000,000 jobs, one shard
    python -m loadtest.herd --shards 8
    python -m loadtest.herd --jobs 100000 --strict   # exit code 1 when a target is missed, too

`loadtest.trials.herd` describes what it measures and judges.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from loadtest.bench.figures import as_table
from loadtest.bench.stage import Sizes, Stage
from loadtest.servers.measured import add_options, server_at
from loadtest.trials.herd import alone, herd


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.herd", description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--jobs", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--shards", type=int, default=1, metavar="N")
    parser.add_argument("--loop", default="asyncio", choices=["asyncio", "uvloop"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed, too")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.2f} before", file=sys.stderr)
    with (
        server_at(options.url, options.server, "off") as url,
        Stage.on(url, Sizes(), options.loop, options.shards) as stage,
    ):
        figures = alone(stage, min(options.jobs, 100_000))
        outcome = herd(stage, options.jobs)
    outcome = replace(outcome, figures=[*figures, *outcome.figures])
    print(as_table([outcome]))
    if options.json:
        options.json.write_text(json.dumps(outcome.as_dict(), indent=2) + "\n")
    return 0 if outcome.is_correct and (outcome.meets_targets or not options.strict) else 1


if __name__ == "__main__":
    sys.exit(main())
