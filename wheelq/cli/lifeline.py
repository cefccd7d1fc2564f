"""Ends a process when its parent has ended, however that happened.

    parent ── holds the only writing end ──▶ pipe ──▶ reading end, in every child

Nothing is ever written. When the parent dies, even by kill -9, its end closes and every child reads end of file. (The
embedded server has a similar guard; `embedded` explains why it is a pipe and not PR_SET_PDEATHSIG.) A thread waits for
it, because a handler may block the event loop.
"""

from __future__ import annotations

import os
import signal
import threading
import time

GRACE_S = 60.0
"""Seconds that a process may take to stop cleanly before it is killed; above any sensible `grace_ms`."""


def hold(fd: int | None) -> None:
    """Stop this process cleanly when the writing end of the pipe `fd` is closed."""
    if fd is not None:
        os.set_inheritable(fd, False)  # processes that a handler starts live independently
        threading.Thread(target=_wait, args=(fd,), name="wheelq lifeline", daemon=True).start()


def _wait(fd: int) -> None:
    os.read(fd, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
