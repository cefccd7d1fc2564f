"""One command for the Locust test: starts a server, a scheduler and a worker, and Locust against them; then judges.

    python -m loadtest.locust_run                                        # 1,000 jobs/s for 10 s
    python -m loadtest.locust_run --shape spike --rate 1000 --seconds 30 --report locust.json
    python -m loadtest.locust_run --users library http pull classic --processes 2 --html report.html
    python -m loadtest.locust_run --shape soak --seconds 28800 --limit "lateness p99.9 100" --limit "schedule p99 20"
    python -m loadtest.locust_run --url redis://localhost:6379           # a server that runs already

`loadtest.trials.locust_run` describes what it measures and judges.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtest.servers.measured import add_options, server_at
from loadtest.trials.locust_run import SHAPES, USERS, run


def main() -> int:
    """Run the test; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.locust_run", description=(__doc__ or "").splitlines()[0])
    add_options(parser)
    parser.add_argument("--aof", default="off", choices=["off", "everysec", "always"], help="of the private server")
    parser.add_argument("--shape", default="steady", choices=SHAPES)
    parser.add_argument("--users", nargs="+", default=["library"], choices=USERS, help="equally many of each")
    parser.add_argument("--rate", type=float, default=1_000.0, help="calls a second (default %(default)g)")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--loop", default="asyncio", choices=["asyncio", "uvloop"], help="what the two processes run on"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="of Locust (default %(default)d)")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="'KIND[/NAME] MEASURE MOST'", help="see `wheelq.testing.limits`"
    )
    parser.add_argument("--html", type=Path, metavar="FILE.html", help="Locust's report with charts")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="keep Locust's figures there")
    options = parser.parse_args()
    if options.report and options.report.suffix != ".json":
        parser.error("--report: the name must end in .json, as Locust's own do")
    with server_at(options.url, options.server, options.aof) as url, TemporaryDirectory() as scratch:
        return run(url, options, Path(scratch))


if __name__ == "__main__":
    sys.exit(main())
