"""`wheelq worker MODULE:NAME --reload`: workers that are started anew when their code changes. For development.

    this process   watches the Python files below the current directory      supervisor: starts again what crashes
    children       the worker; on a change it is told to stop, and started anew

A worker that is told to stop for that gives its handlers half a second and hands the rest back, so that the new one
runs them at once. A plain handler cannot be cancelled: its process is ended when its jobs are handed back. A module
that does not import is left alone until the next change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from wheelq.cli.supervisor import UNUSABLE, CommandPart, Supervisor, lifeline, worker_parts
from wheelq.errors import ConfigurationError

logger = logging.getLogger("wheelq.reload")

GRACE = 0.5
"""Seconds that handlers may go on after a change."""
HANDED_BACK_S = 5.0
"""By then a worker without time to lose has handed back what it held."""


class Reloaded(CommandPart):
    """A worker process that is started anew after `change()`."""

    def __init__(self, name: str, arguments: Sequence[str], lifeline: int) -> None:
        super().__init__(name, [*arguments, "--grace", str(GRACE)], lifeline)
        self._changed = threading.Event()

    def change(self) -> None:
        """The code has changed. For any thread."""
        self._changed.set()

    def poll(self) -> int | None:
        if self._changed.is_set():
            self._changed.clear()
            if super().poll() is None:
                self.ask_to_stop()
                self.finish(HANDED_BACK_S)
            self.start()
        code = super().poll()
        return None if code == UNUSABLE else code  # it has said what is wrong with the module: wait for a change


def run_reloading(target: str, processes: int, options: Sequence[str]) -> int:
    """Run until a signal comes; the exit code. Raises: ConfigurationError without watchfiles."""
    try:
        import watchfiles
    except ImportError as error:
        raise ConfigurationError("--reload needs watchfiles: pip install 'wheelq[reload]'") from error
    here = Path.cwd()
    stop = threading.Event()
    with lifeline() as line:
        parts = worker_parts(target, processes, options, line, Reloaded)

        def watch() -> None:
            for changes in watchfiles.watch(here, watch_filter=watchfiles.PythonFilter(), stop_event=stop):
                names = sorted({str(Path(path).relative_to(here)) for _, path in changes})
                logger.info("%s changed: the worker starts anew", ", ".join(names))
                for part in parts:
                    part.change()

        watching = threading.Thread(target=watch, name="wheelq reload", daemon=True)
        watching.start()
        try:
            return Supervisor([parts]).run(lambda: logger.info("watching %s", here))
        finally:
            stop.set()
            watching.join(1.0)
