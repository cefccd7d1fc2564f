"""Several real servers on free ports of this machine, started and ended together: see `cluster` and `sentinel`."""

from __future__ import annotations

import os
import random
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from wheelq.embedded import HOST, EmbeddedServer

BUS = 10_000
"""The cluster bus listens on a node's port plus this."""
PATIENCE_S = 60.0
ANSWER_S = 6.0
"""Seconds to wait for an answer, at most: a command that moves a key to another node may take five seconds."""

_FIRST, _LAST = 12_000, 21_000
_lately: deque[int] = deque(maxlen=500)


def free_port() -> int:
    """Returns a free port whose bus port is free too, below the ports that the system assigns by itself.

    A port is in use only once its server listens. So no port is returned twice within a short time, and processes that
    run tests side by side choose from separate ranges.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = random.randrange(_FIRST + number, _LAST, processes)
        if port in _lately:
            continue
        _lately.append(port)
        try:
            with socket.create_server((HOST, port)), socket.create_server((HOST, port + BUS)):
                return port
        except OSError:
            continue


KEPT_BY_THE_SYSTEM = {"appendfsync": "no"}
"""The operating system has each write before it is answered. With `everysec`, a server holds writes back for up to two
seconds while the disk is busy, and loses them if it is killed."""


def until(what: str, holds: Callable[[], bool], patience: float = PATIENCE_S) -> None:
    """Wait until `holds()` is true; an error of a server that is not ready counts as false."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except (redis.RedisError, OSError):
            pass
        time.sleep(0.02)
    raise TimeoutError(f"not within {patience} s: {what}")


class Node:
    """One server, or a sentinel."""

    def __init__(self, server: EmbeddedServer | None, port: int) -> None:
        self._server = server
        self.port = port
        self._connection = redis.Connection(
            HOST, port, protocol=2, decode_responses=True, retry=Retry(NoBackoff(), 0), socket_timeout=ANSWER_S
        )

    @property
    def server(self) -> EmbeddedServer:
        """Its process, to be killed and started again."""
        assert self._server is not None, "a sentinel"
        return self._server

    def ask(self, *words: Any) -> Any:
        """Send a command to this server; returns the raw answer. Repeated once if the connection has ended."""
        try:
            return self._ask(*words)
        except redis.ConnectionError:
            return self._ask(*words)

    def is_master(self) -> bool:
        """Whether the node itself says that it is a master."""
        return bool(self.ask("ROLE")[0] == "master")

    def is_in_step(self) -> bool:
        """Whether it is a replica that follows its master, or a master with a replica that follows."""
        role = self.ask("ROLE")
        return bool(role[2]) if role[0] == "master" else bool(role[3] == "connected")

    def close(self) -> None:
        self._connection.disconnect()

    def _ask(self, *words: Any) -> Any:
        self._connection.send_command(*words)
        return self._connection.read_response()


class Servers(ABC):
    """Several servers that end together."""

    def __init__(self, binary: Path, *, appendonly: bool = False) -> None:
        """With `appendonly`, a killed server restarts with all writes that it had answered."""
        self._binary = binary
        self._appendonly = appendonly
        self._running = ExitStack()
        self.nodes: list[Node] = []

    def start(self, options: Mapping[str, str]) -> Node:
        """Start one more."""
        port = free_port()
        server = EmbeddedServer(
            port=port, binary=self._binary, appendonly=self._appendonly, options={**KEPT_BY_THE_SYSTEM, **options}
        )
        node = Node(self._running.enter_context(server), port)
        self._running.callback(node.close)
        self.nodes.append(node)
        return node

    @property
    def living(self) -> list[Node]:
        """The nodes whose process runs."""
        return [node for node in self.nodes if node.server.is_running]

    @abstractmethod
    def is_served(self) -> bool:
        """Whether every key has a server that takes writes, as far as the living servers know."""

    def is_whole(self) -> bool:
        """Whether all servers run, every key is served, and every replica follows."""
        return len(self.living) == len(self.nodes) and self.is_served() and all(map(Node.is_in_step, self.nodes))

    @abstractmethod
    def masters(self) -> list[Node]:
        """The living servers that take writes."""

    @abstractmethod
    def switch_over(self, master: Node) -> None:
        """Make a replica take the place of a living master. Raises: redis.ResponseError, if that is impossible now."""

    @abstractmethod
    def assemble(self) -> None:
        """Start the servers and connect them."""

    def __enter__(self) -> Self:
        try:
            self.assemble()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
