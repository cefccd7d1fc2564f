"""Jobs stored in a database exactly once, while workers are killed.

    python -m loadtest.sinks --database mysql+pymysql://root@127.0.0.1/test [--jobs 50000] [--kills 6] [--ledger]

`loadtest.trials.sinks` describes what it measures and judges.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from loadtest.trials.sinks import Show, Stored
from wheelq.embedded import EmbeddedServer


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--poisoned", type=int, default=5)
    parser.add_argument("--ledger", action="store_true", help="identities in a ledger, not in the table")
    return parser.parse_args()


def main() -> int:
    """Run with kills, then measure; returns 1 if a row was missing or stored twice."""
    options = _parse()

    def run(**how: int) -> tuple[Stored, float]:
        with EmbeddedServer() as server, tempfile.TemporaryDirectory() as directory:
            show = Show(options.database, server.url, Path(directory), has_ledger=options.ledger)
            stored = show.run(options.jobs, **how)
            return stored, show.floor(options.jobs)

    stored, _ = run(kills=options.kills, poisoned=options.poisoned)
    print(stored, "EXACT" if stored.is_exact else "NOT EXACT", flush=True)
    calm, floor = run(workers=1)
    print(f"sink {calm.rows_per_s:,.0f} rows/s, bare executemany {floor:,.0f}: ratio {calm.rows_per_s / floor:.2f}")
    return not (stored.is_exact and calm.is_exact)


if __name__ == "__main__":
    sys.exit(main())
