"""The cost of watching: open dashboards and a Prometheus that scrapes every second.

    python -m loadtest.watchers [--topics 200] [--streams 5] [--seconds 30]    processor time of the server, its calls
    python -m loadtest.watchers --lateness [--rounds 3]                       1,300 jobs/s, with and without watchers
    python -m loadtest.watchers --scrape [--topics 3000]                      how long one scrape takes

See `loadtest.trials.watchers` for what is measured. Exit code 1 if a figure misses its target.
"""

from __future__ import annotations

import argparse
import os
import sys

from loadtest.trials.watchers import Watched, compare_lateness, time_scrapes, watch


def main() -> int:
    """Read the options, measure, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lateness", action="store_true", help="compare lateness with and without watchers")
    parser.add_argument("--scrape", action="store_true", help="time scrapes of many topics")
    parser.add_argument("--topics", type=int)
    parser.add_argument("--streams", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"load of the machine: {' '.join(f'{load:.1f}' for load in os.getloadavg())}")
    if options.lateness:
        missed = compare_lateness(options.rounds, options.streams, options.topics or 200)
    elif options.scrape:
        missed = time_scrapes(options.topics or 3_000)
    else:
        found: Watched = watch(options.topics or 200, options.streams, options.seconds)
        print(found)
        missed = found.missed
    print("missed: " + ", ".join(missed) if missed else "all targets met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
