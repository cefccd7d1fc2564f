"""The simulator: a whole fleet in one process, in virtual time, with another seed each time.

    python -m loadtest.simulate --seeds 1000                 seeds 1 to 1000; exit code 1 at the first that fails
    python -m loadtest.simulate --seeds 60 --from 500
    python -m loadtest.simulate --seed 517 [--shrink]        its story again, byte for byte; or the shortest that fails
    python -m loadtest.simulate --seeds 20 --plant NAME      with a defect put in on purpose

See `loadtest.simulation` for how it works and how to teach it something new.
"""

from __future__ import annotations

import argparse
import os
import sys

HASH_SEED = "0"


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "loadtest.simulate", *(arguments or sys.argv[1:])])
    parser = argparse.ArgumentParser(prog="python -m loadtest.simulate", description="A fleet by virtual time.")
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds to try")
    parser.add_argument("--from", type=int, default=1, dest="first", help="the first of them")
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument("--shrink", action="store_true", help="the shortest story that still fails")
    parser.add_argument("--plant", default="", help="a defect put in on purpose")
    parser.add_argument("--no-faults", action="store_true", help="nothing breaks")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many seeds run at the same time")
    parser.add_argument("--keep-going", action="store_true", help="try all seeds, also after one that fails")
    parser.add_argument("--ignore", action="append", default=[], metavar="PATTERN", help="a problem that is known")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    from loadtest.simulation.trials import IGNORED, PLANTED, one, several

    IGNORED.extend(options.ignore)
    PLANTED.extend(filter(None, [options.plant]))

    if options.seed is not None:
        return one(options)
    return several(options)


if __name__ == "__main__":
    sys.exit(main())
