"""The floor: the best that this machine, this Redis server and redis-py can do, with no queue between them.

    python -m loadtest.floor                             # a private Valkey, append-only file off
    python -m loadtest.floor --server redis62 --aof everysec --json
    python -m loadtest.floor --url redis://localhost:6379

`loadtest.bench.floor` describes what it measures.
"""

from __future__ import annotations

import json

from loadtest.bench.floor import measure
from loadtest.command import parser
from loadtest.servers.measured import add_options, server_at


def main() -> None:
    """Measure and print."""
    arguments = parser("floor", __doc__)
    add_options(arguments)
    arguments.add_argument("--aof", default="off", choices=["off", "everysec", "always"], help="of the private server")
    arguments.add_argument("--rounds", type=int, default=3, choices=range(1, 100), metavar="N")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    with server_at(options.url, options.server, options.aof) as url:
        result = measure(url, options.rounds)
    print(json.dumps(result.as_dict(), indent=2) if options.json else result.as_table())


if __name__ == "__main__":
    main()
