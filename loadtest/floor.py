"""The floor: the best that this machine, this Redis server and redis-py can do, with no queue between them.

    python -m loadtest.floor                             # a private Valkey, append-only file off
    python -m loadtest.floor --server redis62 --aof everysec --json
    python -m loadtest.floor --url redis://localhost:6379

`loadtest.bench.floor` describes what it measures.
"""

from __future__ import annotations

import argparse
import json

from loadtest.bench.floor import measure
from loadtest.servers.measured import add_options, server_at


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.floor", description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--aof", default="off", choices=["off", "everysec", "always"], help="of the private server")
    parser.add_argument("--rounds", type=int, default=3, choices=range(1, 100), metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with server_at(options.url, options.server, options.aof) as url:
        result = measure(url, options.rounds)
    print(json.dumps(result.as_dict(), indent=2) if options.json else result.as_table())


if __name__ == "__main__":
    main()
