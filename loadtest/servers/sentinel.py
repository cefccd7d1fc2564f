"""A primary and a replica behind three sentinels, on free ports of this machine.

with Watched(binary) as watched:
    watched.url                                    redis+sentinel://…
    watched.primary().server.kill()                the replica is promoted
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtest.servers.nodes import Node, Servers, free_port, until
from loadtest.servers.processes import beside
from wheelq.embedded import HOST

SERVICE = "jobs"
DOWN_AFTER_MS = 800


class Watched(Servers):
    """A primary and a replica, watched by three sentinels."""

    def __init__(self, binary: Path, *, appendonly: bool = False, down_after_ms: int = DOWN_AFTER_MS) -> None:
        super().__init__(binary, appendonly=appendonly)
        self.sentinels: list[Node] = []
        self._down_after_ms = down_after_ms

    @property
    def url(self) -> str:
        """The sentinels and the service they watch."""
        return "redis+sentinel://" + ",".join(f"{HOST}:{node.port}" for node in self.sentinels) + f"/{SERVICE}"

    def assemble(self) -> None:
        options = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0"}
        primary, replica = self.start(options), self.start(options)
        replica.ask("REPLICAOF", HOST, primary.port)
        until("the replica follows", replica.is_in_step)
        for _ in range(3):
            self.sentinels.append(self._sentinel(primary))
        until("the sentinels know each other", self._agree)

    def _sentinel(self, primary: Node) -> Node:
        """A sentinel is the server's own binary, with a configuration file that it rewrites."""
        directory = Path(self._running.enter_context(TemporaryDirectory(prefix="wheelq-sentinel-")))
        configuration = directory / "sentinel.conf"
        port = free_port()
        lines = [
            f"port {port}",
            f"bind {HOST}",
            f'dir "{directory}"',
            f"sentinel monitor {SERVICE} {HOST} {primary.port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 4000",
        ]
        configuration.write_text("\n".join(lines) + "\n")
        command = [str(self._binary), str(configuration), "--sentinel"]
        self._running.enter_context(beside(command, output=subprocess.DEVNULL))
        sentinel = Node(None, port)
        self._running.callback(sentinel.close)
        until("the sentinel answers", lambda: sentinel.ask("PING") == "PONG")
        return sentinel

    def primary(self) -> Node:
        """The server that takes writes, as the sentinels say."""
        return self._primary_of(self.sentinels[0])

    def is_served(self) -> bool:
        """Whether all sentinels name the same server, which lives and takes writes."""
        primary = self.primary()
        return {self._primary_of(node) for node in self.sentinels} == {primary} and primary.is_master()

    def is_whole(self) -> bool:
        """Whether everything works: the sentinels also know each other, and a replica that they could promote."""
        return super().is_whole() and self._agree()

    def masters(self) -> list[Node]:
        """The primary."""
        return [node for node in self.living if node is self.primary()]

    def switch_over(self, master: Node) -> None:
        """Ask a sentinel to switch over to the replica."""
        self.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)

    def _primary_of(self, sentinel: Node) -> Node:
        port = int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
        return next(node for node in self.nodes if node.port == port)

    def _agree(self) -> bool:
        return all(_others(node) == (1, 2) for node in self.sentinels)


def _others(sentinel: Node) -> tuple[int, int]:
    """Replicas that are up, and other sentinels, as one sentinel knows them."""
    reply = sentinel.ask("SENTINEL", "MASTER", SERVICE)
    state = dict(zip(reply[::2], reply[1::2], strict=True))
    replicas = [dict(zip(one[::2], one[1::2], strict=True)) for one in sentinel.ask("SENTINEL", "REPLICAS", SERVICE)]
    return sum(one["flags"] == "slave" for one in replicas), int(state["num-other-sentinels"])
