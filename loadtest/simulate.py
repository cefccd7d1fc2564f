"""The simulator: a whole fleet in one process, in virtual time, with another seed each time.

    python -m loadtest.simulate --seeds 1000                 seeds 1 to 1000; exit code 1 at the first that fails
    python -m loadtest.simulate --seeds 60 --from 500
    python -m loadtest.simulate --seed 517 [--shrink]        its story again, byte for byte; or the shortest that fails
    python -m loadtest.simulate --seeds 20 --plant NAME      with a defect put in on purpose

See `loadtest.simulation` for how it works and how to teach it something new.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ["PYTHONHASHSEED"] = "0"  # takes effect only at the start of a process
    os.execv(sys.executable, [sys.executable, "-m", "loadtest.simulation", *sys.argv[1:]])
