"""The command line. `wheelq --help` is its manual.

app         the commands, and what an error looks like
produce     schedule, cancel, reschedule, run-now, job
importing   import; `rows` reads the file, `journal` remembers how far it was
recurring   recurring put, list, show, pause, resume, trigger, remove
dead        dead list, show, replay, purge
run         scheduler, worker, up; `target` finds MODULE:NAME, `supervisor` keeps processes running,
            `lifeline` ends them with their parent
look        topics, stats, doctor; `scripts` prints what is sent to Redis
demo        demo
options     options that many commands have
values      what people write: 1h30m, 2030-01-01T09:00Z, k=v
output      what people and scripts read

Exit codes: 0 done · 1 it failed, perhaps not next time · 2 the command as given cannot work, or lines of an import are
broken · 3 no such job · 4 too late, the job is with the workers.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point: `wheelq`."""
    try:
        from wheelq.cli.app import app  # typer and rich are an extra
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"The wheelq command needs {error.name}, which is not installed: pip install 'wheelq[cli]'")
    app(prog_name="wheelq")
