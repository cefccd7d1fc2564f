"""Where torture takes place: the servers, the way to them, and what they can suffer.

| `--on`     | servers                                     | the parts go through a proxy |
|------------|---------------------------------------------|------------------------------|
| `single`   | one server with an append-only file         | yes                          |

An `Arena` is the seam for other set-ups: it starts its servers, gives every part an address of its own, and does to the
servers what it is told. Faults ask for nothing else (see `faults`); one that an arena cannot suffer is left out.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from loadtest.proxy import Proxy
from wheelq.embedded import EmbeddedServer
from wheelq.protocol.call import Call
from wheelq.transport import Address, Transport


class Arena(Protocol):
    """What torture needs of a set-up of servers. A context manager."""

    proxy: Proxy | None
    """Stands between the parts and the servers, where one can."""
    control: Transport
    """A way to the servers that nothing is done to."""
    spared: frozenset[str]
    """Faults it cannot suffer."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def url(self, part: str) -> str:
        """The address for the part of this name."""
        ...

    def on_servers(self, call: Call[Any]) -> None:
        """Send a call to every server that takes writes."""
        ...

    def crash(self, away_s: float) -> None:
        """SIGKILL a server; it is back after so many seconds."""
        ...

    def restart(self) -> None:
        """End a server in good order and start it again."""
        ...

    def freeze(self, seconds: float) -> None:
        """Let a server do nothing for so long."""
        ...


class Single:
    """One server with an append-only file (everysec), behind a proxy."""

    proxy: Proxy | None
    spared: frozenset[str] = frozenset()

    def __init__(self, binary: Path | None = None) -> None:
        self._server = EmbeddedServer(binary=binary)
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.enter_context(self._server)
        self.proxy = self._held.enter_context(Proxy(self._server.url))
        self.control = Transport(Address(self._server.url))
        self._held.callback(self.control.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def url(self, part: str) -> str:
        """Through a door of its own."""
        assert self.proxy is not None
        return self.proxy.url(part)

    def on_servers(self, call: Call[Any]) -> None:
        """To the one server."""
        self.control.send(call)

    def crash(self, away_s: float) -> None:
        """What it had answered is in its append-only file."""
        self._server.kill()
        time.sleep(away_s)
        self._server.start()
        self.control.close()

    def restart(self) -> None:
        """Connections end, nothing else is lost."""
        self._server.restart()
        self.control.close()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, SIGCONT."""
        os.kill(self._server.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self._server.pid, signal.SIGCONT)


ARENAS = {"single": Single}
