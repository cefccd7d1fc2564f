"""`PerLoop`: one object for each event loop, for users that span several loops.

`asyncio.run` called twice, `async_to_sync`, notebooks and test runners use a client in one loop after another, and
threads use it in several at a time. But connections, locks and tasks belong to the loop in which they were made.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Makes a `T` when it is first asked for in an event loop, and forgets it after that loop was closed."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[asyncio.AbstractEventLoop, T] = {}
        self._latest: tuple[asyncio.AbstractEventLoop, T] | None = None
        self._making = threading.Lock()

    def here(self) -> T:
        """Returns the object of the running event loop; takes 0.1 µs if the loop is the same as last time."""
        loop, latest = asyncio.get_running_loop(), self._latest
        if latest is not None and latest[0] is loop:
            return latest[1]
        with self._making:
            if loop not in self._made:
                self._made = {known: made for known, made in self._made.items() if not known.is_closed()}
                self._made[loop] = self._make()
            found = self._made[loop]
            self._latest = loop, found
            return found
