"""The comparison: the same scenarios for wheelq and for other delay queues on Redis, each with one worker process.

    bulk     100,000 jobs scheduled by the queue's call for many
    paced    1,300 jobs a second, each at its own moment: how late they start, and the processor time of all processes
    drain    50,000 overdue jobs, when the worker is started
    burst    3,500 jobs at one instant: how late they start
    kill     200 jobs of a second; the worker is killed, another started: until all are done

    python -m loadtest.compare                                            # all that are installed
    python -m loadtest.compare --peer wheelq --peer streaq --json compare.json
    python -m loadtest.compare --python ~/peers/bin/python --node-modules ~/peers
    python -m loadtest.compare --quick                                    # everything small: does it work?

To install the others:

    python -m venv ~/peers && ~/peers/bin/pip install streaq uvloop
    npm install --prefix ~/peers bullmq ioredis

Each queue and scenario has a private server, without append-only file. Figures are medians of three rounds, with the
least and the most. Queues take turns, so that a busy moment of the machine affects all of them. A queue that is not
installed is left out, with the reason; one that fails has no figures. Exit code 1: wheelq lost or doubled a job, or
started one early.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isinf
from pathlib import Path
from statistics import median
from subprocess import CalledProcessError

from loadtest.bench.machine import machine, versions
from loadtest.compare.peers import NAMES, Absent, Peer, find
from loadtest.compare.play import Play
from loadtest.compare.scenarios import QUICK, SCENARIOS, Shown, Sizes
from loadtest.servers.measured import binary_of

Results = dict[str, dict[str, list[float]]]
"""By figure and queue, every round."""


def main() -> int:
    """Measure and print; returns the exit code."""
    options = _options()
    sizes = QUICK if options.quick else Sizes()
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    peers = _installed(options)
    results: Results = {}
    wrong: dict[str, Counter[str]] = {peer.name: Counter() for peer in peers}
    about = {"machine": machine(), "versions": versions() | {peer.name: peer.version for peer in peers}}
    for name in options.scenario or SCENARIOS:
        for _ in range(sizes.rounds):
            for peer in peers:
                print(f"{name} {peer.name} …", file=sys.stderr, flush=True)
                shown = _round(peer, binary_of(options.server), name, sizes)
                wrong[peer.name].update(shown.wrong)
                for figure, value in shown.figures.items():
                    results.setdefault(figure, {}).setdefault(peer.name, []).append(value)
            if options.json:  # after every round: a comparison takes long, and may be interrupted
                found = about | {"figures": _for_json(results), "wrong": wrong}
                options.json.write_text(json.dumps(found, indent=2) + "\n")
    print(as_table(peers, results, wrong))
    return 1 if any(wrong.get("wheelq", {}).values()) else 0


def as_table(peers: Sequence[Peer], results: Results, wrong: Mapping[str, Mapping[str, int]]) -> str:
    """A line for each figure, a column for each queue: the median, and the least and the most round."""
    rows = [["", *(f"{peer.name} {peer.version}" for peer in peers)]]
    for figure, found in results.items():
        rows.append([figure, *(_cell(found.get(peer.name, [])) for peer in peers)])
    ran = {name for found in results.values() for name in found}
    rows += [
        [what, *(f"{wrong[peer.name].get(what, 0):,}" if peer.name in ran else "–" for peer in peers)]
        for what in ("lost", "early", "doubled")
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _for_json(results: Results) -> dict[str, dict[str, list[float | None]]]:
    """Returns the results with null for rounds that did not end in time: JSON has no infinity."""
    return {
        figure: {name: [None if isinf(value) else value for value in rounds] for name, rounds in found.items()}
        for figure, found in results.items()
    }


def _cell(rounds: Sequence[float]) -> str:
    if not rounds:
        return "–"
    least, middle, most = (_number(value) for value in (min(rounds), median(rounds), max(rounds)))
    return middle if least == most else f"{middle} ({least} – {most})"


def _number(value: float) -> str:
    return "never" if isinf(value) else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _round(peer: Peer, binary: Path, name: str, sizes: Sizes) -> Shown:
    with Play.of(peer, binary) as play:
        try:
            return SCENARIOS[name](play, sizes)
        except TimeoutError as error:
            print(f"{name} {peer.name}: {error}", file=sys.stderr)
            return Shown({f"{name}: not in time": inf})
        except (CalledProcessError, RuntimeError) as error:
            if peer.name == "wheelq":
                raise
            print(f"{name} {peer.name} failed: {error}", file=sys.stderr)
            return Shown({})


def _installed(options: argparse.Namespace) -> list[Peer]:
    """Returns the queues that can be run; standard error says why the others cannot."""
    found = []
    for name in options.peer or NAMES:
        try:
            found.append(find(name, options.python, options.node_modules))
        except Absent as reason:
            print(f"left out: {reason}", file=sys.stderr)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.compare", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peer", action="append", choices=NAMES, help="only this one; repeatable")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this one; repeatable")
    parser.add_argument("--server", default="valkey", metavar="valkey|redis62|PATH", help="what the servers run")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="has the queues in Python")
    parser.add_argument("--node-modules", type=Path, default=Path(), metavar="DIRECTORY", help="has the queues in Node")
    parser.add_argument("--rounds", type=int, choices=range(1, 100), metavar="N", help="of every scenario")
    parser.add_argument("--quick", action="store_true", help="everything small, one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round there, with machine and versions")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
