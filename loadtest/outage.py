"""Redis is away for a while under an HTTP service that stays in use: every job answered with 2xx must run.

    python -m loadtest.outage      # 30 s, 200 requests/s; Redis frozen and killed; with an outbox and without
    python -m loadtest.outage --seconds 5 --how kill --outbox

`loadtest.trials.outage` describes what it measures and judges.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from loadtest.bench.figures import as_table
from loadtest.servers.measured import binary_of
from loadtest.trials.outage import How, measure


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.outage", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", default="valkey", metavar="valkey|redis62|PATH", help="what the server runs")
    parser.add_argument("--seconds", type=float, default=30, help="how long it is away")
    parser.add_argument("--rate", type=float, default=200, help="requests a second")
    parser.add_argument("--how", choices=["freeze", "kill"], help="only this")
    parser.add_argument("--outbox", action=argparse.BooleanOptionalAction, help="only with, or without, one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    options = parser.parse_args()
    hows: list[How] = [options.how] if options.how else ["freeze", "kill"]
    outboxes = [True, False] if options.outbox is None else [options.outbox]
    binary = binary_of(options.server)
    found = [measure(binary, how, outbox, options.seconds, options.rate) for outbox in outboxes for how in hows]
    print(as_table(found))
    if options.json:
        options.json.write_text(json.dumps([outcome.as_dict() for outcome in found], indent=2) + "\n")
    return 0 if all(outcome.is_correct for outcome in found) else 1


if __name__ == "__main__":
    sys.exit(main())
