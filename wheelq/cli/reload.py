"""`wheelq worker MODULE:NAME --reload`: restarts workers when their code changes. For development.

    this process   watches the Python files below the current directory, and restarts workers that crash
    children       the workers; on a change they are stopped and started again

A stopped worker gives its handlers half a second and hands unfinished jobs back, so that the new worker runs them at
once. A plain handler cannot be cancelled: its process is killed after its jobs are handed back. If a module cannot be
imported, its worker waits for the next change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wheelq.cli.supervisor import UNUSABLE, CommandPart
from wheelq.errors import ConfigurationError

logger = logging.getLogger("wheelq.reload")

GRACE = 0.5
"""Seconds that running handlers have to finish after a change."""
LOOK_MS = 500
"""Milliseconds after which a look for changes ends if it has found none."""
HANDED_BACK_S = 5.0
"""Seconds within which a stopped worker has handed its jobs back."""


class Reloaded(CommandPart):
    """A worker process that restarts after `change()`."""

    def __init__(self, name: str, arguments: Sequence[str], lifeline: int) -> None:
        super().__init__(name, [*arguments, "--grace", str(GRACE)], lifeline)
        self._changed = threading.Event()

    def change(self) -> None:
        """Restart the worker because its code has changed. For any thread."""
        self._changed.set()

    def poll(self) -> int | None:
        if self._changed.is_set():
            self._changed.clear()
            if super().poll() is None:
                self.ask_to_stop()
                self.finish(HANDED_BACK_S)
            self.start()
        code = super().poll()
        return None if code == UNUSABLE else code  # it has logged what is wrong with the module: wait for a change


@contextmanager
def restarting_on_change(parts: Sequence[Reloaded]) -> Iterator[None]:
    """Restart the workers within this context when code changes. Raises: ConfigurationError without watchfiles."""
    if not parts:
        yield
        return
    try:
        import watchfiles
    except ImportError as error:
        raise ConfigurationError("--reload needs watchfiles: pip install 'wheelq[reload]'") from error
    here = Path.cwd()
    stop = threading.Event()

    def watch() -> None:
        looks = watchfiles.watch(
            here,
            watch_filter=watchfiles.PythonFilter(),
            stop_event=stop,
            rust_timeout=LOOK_MS,
            yield_on_timeout=True,
        )
        for number, changes in enumerate(looks):
            if number == 0:  # from now on no change is missed
                logger.info("watching %s", here)
            if not changes:
                continue
            names = sorted({str(Path(path).relative_to(here)) for _, path in changes})
            logger.info("%s changed: the worker restarts", ", ".join(names))
            for part in parts:
                part.change()

    watching = threading.Thread(target=watch, name="wheelq reload", daemon=True)
    watching.start()
    try:
        yield
    finally:
        stop.set()
        watching.join(1.0)
