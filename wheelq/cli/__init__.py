"""The command line. `wheelq --help` is its manual.

app         lists the commands, imports them on demand, and shows errors
jobs        schedule, job, jobs, wait, rerun, reshard
changes     cancel, reschedule, run-now
importing   import
topics      topics, topic list, topic remove, group list, group remove, configure, pause, resume, forecast
recurring   recurring put, list, show, pause, resume, trigger, remove
dead        dead list, show, replay, purge
bundles     bundle show, cancel
process     scheduler, worker: commands that run until a signal
supervisor  keeps processes running, restarts them when code changes, and ends them with their parent
up          up: everything at once
init        init: a starter
serve       server, keys, callbacks, secret
forward     forward
outbox      outbox, courier
stats       stats, doctor
top         top
health      health
check       check
monitoring  --metrics-port: health and metrics of a process
shipped     guide, script; finds the files of config/
config      config
demo        demo
options     options that many commands share, and how a shell completes them
values      parses arguments: moments, JSON, k=v
output      prints text, tables that fit the terminal, JSON and errors

Exit codes: 0 done · 1 failed, may succeed next time · 2 the command as given cannot work, or lines of an import were
refused · 3 no such job · 4 too late, the job is with the workers.
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
