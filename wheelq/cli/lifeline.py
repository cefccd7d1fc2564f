"""Ends a process whose parent is gone, however the parent ended.

    parent ── holds the only writing end ──▶ pipe ──▶ reading end, in every child

Nobody ever writes. When the parent dies, kill -9 included, its end closes and every child reads end of file. (The
embedded server has a guard of the same kind; see `embedded` for why a pipe and not PR_SET_PDEATHSIG.) A thread waits
here, because a handler may keep the event loop busy.
"""

from __future__ import annotations

import os
import signal
import threading
import time

GRACE_S = 60.0
"""How long a process may take to stop in good order before it is killed; above any sensible `grace_ms`."""


def hold(fd: int | None) -> None:
    """Stop this process in good order when the writing end of the pipe `fd` is closed."""
    if fd is not None:
        os.set_inheritable(fd, False)  # what a handler starts has a life of its own
        threading.Thread(target=_wait, args=(fd,), name="wheelq lifeline", daemon=True).start()


def _wait(fd: int) -> None:
    os.read(fd, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
