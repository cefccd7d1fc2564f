"""The cost of durability for a producer: AOF off, everysec and always, and waiting for a replica, as shares of AOF off.

    python -m loadtest.durability                       # about half a minute, a private Valkey
    python -m loadtest.durability --server redis62 --rounds 9

`loadtest.trials.durability` describes what it measures and judges.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtest.servers.measured import PACKAGES
from loadtest.trials.durability import ROUNDS, measure, setups, table
from wheelq.embedded.server import binary_in_package


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.durability", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--server", default="valkey", metavar="valkey|redis62|PATH", help="what the servers run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, choices=range(1, 100), metavar="N")
    options = parser.parse_args()
    binary = binary_in_package(*PACKAGES[options.server]) if options.server in PACKAGES else Path(options.server)
    if not binary:
        raise SystemExit(f"--server {options.server} needs the package {PACKAGES[options.server][0]}")
    with setups(binary) as clients:
        print(table(measure(clients, options.rounds)))


if __name__ == "__main__":
    main()
