"""The bench: wheelq's figures on this machine, beside what the same server and redis-py do bare, in the same run.

One scheduler process and one worker process, both with default settings:

    bulk      100,000 jobs by `schedule_many`, blocking client
    single    jobs one by one, asyncio, each awaited before the next
    burst     3,500 jobs due at one instant
    steady    1,300 jobs a second, each at its own millisecond, scheduled ahead
    short     2,000 jobs a second scheduled one by one, each 50 ms ahead
    drain     100,000 overdue jobs, found by a scheduler and a worker that are just started
    idle      100,000 jobs due in an hour: what waiting costs
    memory    server bytes per waiting job

    python -m loadtest.bench                                   # all of them, a private Valkey, append-only file off
    python -m loadtest.bench --aof both --json bench.json      # off, then everysec; `--aof always` and `--aof all`, too
    python -m loadtest.bench --on cluster                      # three masters beside one server: see `scale`
    python -m loadtest.bench --scenario burst --scenario steady --server redis62
    python -m loadtest.bench --quick                           # everything small: does it work?

A figure that misses its target is shown, and with `--strict` fails the run. A job lost, early or doubled fails it
always: exit code 1.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest import floor, running, scale, waiting
from loadtest.figures import Outcome, as_table
from loadtest.server import add_options, server_at
from loadtest.stage import QUICK, Sizes, Stage

SCENARIOS: Mapping[str, Callable[[Stage], Outcome]] = {
    "bulk": waiting.bulk,
    "single": waiting.single,
    "burst": running.burst,
    "steady": running.steady,
    "short": running.short,
    "drain": running.drain,
    "idle": waiting.idle,
    "memory": waiting.memory,
}
AOF = {
    "off": ["off"],
    "everysec": ["everysec"],
    "always": ["always"],
    "both": ["off", "everysec"],
    "all": ["off", "everysec", "always"],
}


def run(url: str, names: list[str], sizes: Sizes, loop: str) -> tuple[floor.FloorResult, list[Outcome]]:
    """The floor of the server at `url`, then these scenarios on it; each with keys of its own."""
    bare = floor.measure(url, sizes.rounds)
    outcomes = []
    for name in names:
        _tell(name)
        with Stage.on(url, sizes, loop) as stage:
            outcomes.append(SCENARIOS[name](stage))
    print(file=sys.stderr)
    return bare, outcomes


def main() -> int:
    """Measures and prints; the exit code."""
    options = _options()
    sizes = QUICK if options.quick else Sizes()
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    report: list[dict[str, Any]] = []
    outcomes: list[Outcome] = []
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, load {load:.2f} before: the less, the truer the figures", file=sys.stderr)
    for aof in AOF[options.aof]:
        if options.on == "cluster":
            found = scale.compare(options.server, aof, sizes, options.loop, _tell)
            print(f"three masters, floor: one server; AOF {aof}\n\n{as_table(found)}\n", flush=True)
            report.append({"on": "cluster", "aof": aof, "scenarios": [outcome.as_dict() for outcome in found]})
            outcomes += found
            continue
        with server_at(options.url, options.server, aof) as url:
            bare, found = run(url, options.scenario or list(SCENARIOS), sizes, options.loop)
        print(f"{bare.as_table()}\n\n{as_table(found)}\n", flush=True)
        report.append(
            {
                "floor": bare.as_dict(),
                "scenarios": [outcome.as_dict() for outcome in found],
                "loop": options.loop,
                "load_before": load,
            }
        )
        outcomes += found
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    is_good = all(outcome.is_correct and (outcome.meets_targets or not options.strict) for outcome in outcomes)
    return 0 if is_good else 1


def _tell(name: str) -> None:
    print(f"{name} …", end=" ", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--aof", default="off", choices=AOF, help="append-only file of the private server")
    parser.add_argument("--on", default="server", choices=["server", "cluster"], help="what is measured")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, metavar="NAME", help="only this; repeatable")
    parser.add_argument("--rounds", type=int, choices=range(1, 100), metavar="N", help="of what is measured in rounds")
    parser.add_argument("--quick", action="store_true", help="everything small, one round")
    parser.add_argument(
        "--loop", default="asyncio", choices=["asyncio", "uvloop"], help="what the two processes run on"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed, too")
    options = parser.parse_args()
    if options.on == "cluster" and (options.url or options.scenario):
        parser.error("--on cluster starts its own servers and runs its own scenarios")
    if options.url and options.aof != "off":
        parser.error("--aof concerns the private server; the one at --url keeps its own setting")
    return options


if __name__ == "__main__":
    sys.exit(main())
