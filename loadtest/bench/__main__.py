"""The bench: wheelq's figures on this machine, beside those of the same server and redis-py alone, in the same run.

One scheduler process and one worker process, both with default settings:

    bulk      100,000 jobs by `schedule_many`, blocking client: in one call, and in calls of 500
    single    jobs one by one, asyncio, each awaited before the next
    burst     3,500 jobs due at one instant
    steady    1,300 jobs a second, each at its own millisecond, scheduled ahead
    short     2,000 jobs a second scheduled one by one, each 50 ms ahead
    rate      10 to 15,000 jobs a second: what a job costs in processor time, see `rate`
    highest   the highest rate with a p99 below 100 ms, found by search
    drain     100,000 overdue jobs, worked off by a scheduler and a worker that have just started
    read      100,000 jobs that were promoted before the worker started
    payload   64 bytes, 4 and 64 kilobytes: bulk, drain, lateness
    growth    10,000 and a million jobs wait; 1, 100 and 3,000 topics: see `growth`
    shards    one topic of 64 shards beside one of a single shard
    many-killed   a worker is killed with 3,000 topics: when its jobs run again
    network   1,300 jobs a second, with 1 ms each way to the server
    shares    three worker processes: whether they share the reads fairly
    following chains, and a bundle of 100,000 members: see `following`
    keys      limits per key: what they cost, and what a key with a backlog costs others
    idle      100,000 jobs due in an hour: what waiting costs
    memory    server bytes per waiting job

    python -m loadtest.bench                                   # all of them, a private Valkey, append-only file off
    python -m loadtest.bench --aof both --json bench.json      # off, then everysec; `--aof always` and `--aof all`, too
    python -m loadtest.bench --on cluster                      # three masters beside one server: see `scale`
    python -m loadtest.bench --on kinds                        # bulk, burst, steady and drain on each kind of server
    python -m loadtest.bench --scenario burst --scenario steady --server redis62
    python -m loadtest.bench --scenario growth --huge          # with 10 million waiting jobs, too: 3 GB, some minutes
    python -m loadtest.bench --json bench.json --plots plots   # figures as JSON, and plots of them as SVG
    python -m loadtest.bench --from bench.json --plots plots   # plots of an earlier run
    python -m loadtest.bench --quick                           # everything small: does it work?

Figures are medians of three rounds, or of `--rounds`; "rounds" shows the least and the most. The JSON has every round,
the machine and the versions. A figure that misses its target is marked; with `--strict` the exit code is then 1. A job
that is lost, early or doubled, and a scenario that fails, always give exit code 1.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest.bench import (
    floor,
    following,
    growth,
    highest,
    keys,
    killed,
    network,
    payload,
    plots,
    rate,
    running,
    scale,
    shards,
    shares,
    waiting,
)
from loadtest.bench.figures import Outcome, as_table
from loadtest.bench.machine import machine, versions
from loadtest.bench.stage import QUICK, Sizes, Stage
from loadtest.servers.measured import add_options, present, server_at

SCENARIOS: Mapping[str, Callable[[Stage], Outcome]] = {
    "bulk": waiting.bulk,
    "single": waiting.single,
    "burst": running.burst,
    "steady": running.steady,
    "short": running.short,
    "rate": rate.rate,
    "highest": highest.highest,
    "drain": running.drain,
    "read": running.read,
    "payload": payload.payload,
    "growth": growth.growth,
    "shards": shards.shards,
    "many-killed": killed.many_killed,
    "network": network.network,
    "shares": shares.shares,
    "keys": keys.keys,
    "following": following.following,
    "idle": waiting.idle,
    "memory": waiting.memory,
}
ON_KINDS = ("bulk", "burst", "steady", "drain")
AOF = {
    "off": ["off"],
    "everysec": ["everysec"],
    "always": ["always"],
    "both": ["off", "everysec"],
    "all": ["off", "everysec", "always"],
}


def run(url: str, names: Sequence[str], sizes: Sizes, loop: str) -> tuple[floor.FloorResult, list[Outcome]]:
    """Measure the floor of the server at `url`, then these scenarios on it, each with keys of its own.

    The outcome of a scenario that raises has no figures and is wrong; the other scenarios are still measured.
    """
    bare = floor.measure(url, sizes.rounds)
    outcomes = []
    for name in names:
        _tell(name)
        try:
            with Stage.on(url, sizes, loop) as stage:
                outcomes.append(SCENARIOS[name](stage))
        except Exception:  # noqa: BLE001  # the other figures must not be lost
            traceback.print_exc()
            outcomes.append(Outcome(name, (), 0, {"failed": 1}))
    print(file=sys.stderr)
    return bare, outcomes


def main() -> int:
    """Measure and print; returns the exit code."""
    options = _options()
    if options.earlier:
        report = json.loads(options.earlier.read_text())
        _plot(report, options.plots)
        return 0
    report = {"machine": machine(), "versions": versions(), "loop": options.loop, "runs": []}
    print(f"{report['machine']}: the less load, the truer the figures", file=sys.stderr)
    outcomes: list[Outcome] = []
    for about, found in _runs(options, _sizes(options)):
        report["runs"].append(about | {"scenarios": [outcome.as_dict() for outcome in found]})
        outcomes += found
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.plots:
        _plot(report, options.plots)
    is_good = all(outcome.is_correct and (outcome.meets_targets or not options.strict) for outcome in outcomes)
    return 0 if is_good else 1


def _runs(options: argparse.Namespace, sizes: Sizes) -> Iterator[tuple[dict[str, Any], list[Outcome]]]:
    """Yields each run's server and machine, and the outcomes of its scenarios. Prints each run when it has ended."""
    servers = list(present().values()) if options.on == "kinds" else [options.server]
    names = options.scenario or list(ON_KINDS if options.on == "kinds" else SCENARIOS)
    for server, aof in ((server, aof) for server in servers for aof in AOF[options.aof]):
        if options.on == "cluster":
            found = scale.compare(server, aof, sizes, options.loop, _tell)
            print(f"three masters, floor: one server; AOF {aof}\n\n{as_table(found)}\n", flush=True)
            yield {"on": "cluster", "server": server, "aof": aof}, found
            continue
        with server_at(options.url, server, aof) as url:
            bare, found = run(url, names, sizes, options.loop)
        print(f"{bare.as_table()}\n\n{as_table(found)}\n", flush=True)
        yield {"on": "server", "server": bare.server, "floor": bare.as_dict()}, found


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else Sizes()
    if options.huge:
        sizes = replace(sizes, growth_waiting=(*sizes.growth_waiting, growth.HUGE))
    return replace(sizes, rounds=options.rounds or sizes.rounds)


def _plot(report: Mapping[str, Any], directory: Path) -> None:
    for path in plots.write(report, directory):
        print(path)


def _tell(name: str) -> None:
    print(f"{name} …", end=" ", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--aof", default="off", choices=AOF, help="append-only file of the private server")
    parser.add_argument("--on", default="server", choices=["server", "cluster", "kinds"], help="what is measured")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, metavar="NAME", help="only this; repeatable")
    parser.add_argument("--rounds", type=int, choices=range(1, 100), metavar="N", help="of every scenario")
    parser.add_argument("--quick", action="store_true", help="everything small, one round")
    parser.add_argument("--huge", action="store_true", help="growth: with 10 million waiting jobs, too")
    parser.add_argument("--loop", default="uvloop", choices=["asyncio", "uvloop"], help="what the processes run on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="write plots there, as SVG (needs matplotlib)")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="earlier", help="measure nothing; plot this JSON")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a target is missed, too")
    options = parser.parse_args()
    if options.on == "cluster" and options.scenario:
        parser.error("--on cluster runs its own scenarios")
    if options.on != "server" and options.url:
        parser.error(f"--on {options.on} starts its own servers")
    if options.url and options.aof != "off":
        parser.error("--aof concerns the private server; the one at --url keeps its own setting")
    if options.earlier and not options.plots:
        parser.error("--from needs --plots")
    return options


if __name__ == "__main__":
    sys.exit(main())
