"""How late jobs are when a leader is killed or stopped while another node stands by.

    python -m loadtest.failover --how kill --times 20 --rate 1000 [--lease-ms 10000] [--json FILE]

`loadtest.trials.failover` describes what it measures and judges.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from loadtest.trials.failover import run


def main() -> int:
    """Run as asked; exit code 1 when anything was lost, early or doubled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", choices=["kill", "stop", "freeze"], default="kill")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--rate", type=int, default=1_000, help="jobs a second")
    parser.add_argument("--lease-ms", type=int, default=9_000)
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    result = run(arguments.how, arguments.times, arguments.rate, arguments.lease_ms)
    print(f"{result.how} × {result.times} at {result.rate}/s, lease {result.lease_ms} ms")
    print(f"worst lateness after each, ms: {sorted(result.worst_ms)}")
    print(f"p99 of all: {result.p99_ms:g} ms")
    print(result.verdict)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(result), indent=2))
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
