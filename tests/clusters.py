"""Clusters and watched services of real servers, on free ports of this machine, each for one test.

with Cluster(binary, replicas=1) as cluster:       three masters; when this returns, all agree who serves what
    cluster.url                                    the URL of one node that lives
    cluster.move_slot(key, to)                     as `redis-cli --cluster reshard` does it, key by key
    cluster.master_of(key).server.kill()           its replica is promoted

with Watched(binary) as watched:                   a primary, a replica, three sentinels
    watched.url                                    redis+sentinel://…
    watched.primary().server.kill()                the replica is promoted
"""

from __future__ import annotations

import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from wheelq.embedded import HOST, EmbeddedServer

BUS = 10_000
"""The cluster bus listens on a node's port plus this."""
SLOTS = 16_384
NODE_TIMEOUT_MS = 1_000
DOWN_AFTER_MS = 800
PATIENCE_S = 20.0
SERVICE = "jobs"


def free_port() -> int:
    """A port that is free together with its bus port, below those that the system gives out by itself."""
    while True:
        port = random.randint(12_000, 21_000)
        try:
            with socket.create_server((HOST, port)), socket.create_server((HOST, port + BUS)):
                return port
        except OSError:
            continue


def until(what: str, holds: Callable[[], bool], patience: float = PATIENCE_S) -> None:
    """Wait until it holds; the error of a server that is not ready counts as not yet."""
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
        self._connection = redis.Connection(HOST, port, protocol=2, decode_responses=True, retry=Retry(NoBackoff(), 0))

    @property
    def server(self) -> EmbeddedServer:
        """Its process, to be killed and started again."""
        assert self._server is not None, "a sentinel"
        return self._server

    def ask(self, *words: Any) -> Any:
        """A command to just this server, and its raw answer."""
        self._connection.send_command(*words)
        return self._connection.read_response()

    def is_master(self) -> bool:
        """Whether it takes itself for one."""
        return bool(self.ask("ROLE")[0] == "master")

    def close(self) -> None:
        self._connection.disconnect()


class Servers:
    """Several servers that end together."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self._running = ExitStack()
        self.nodes: list[Node] = []

    def start(self, options: Mapping[str, str]) -> Node:
        """Start one more."""
        port = free_port()
        server = EmbeddedServer(port=port, binary=self._binary, appendonly=False, options=options)
        node = Node(self._running.enter_context(server), port)
        self._running.callback(node.close)
        self.nodes.append(node)
        return node

    def assemble(self) -> None:
        """Start the servers and make them one."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.assemble()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()


class Cluster(Servers):
    """Three masters, each with the same number of replicas."""

    OPTIONS: Mapping[str, str] = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        "cluster-replica-validity-factor": "0",
        "repl-diskless-sync": "yes",
        "repl-diskless-sync-delay": "0",
    }

    def __init__(self, binary: Path, *, masters: int = 3, replicas: int = 0) -> None:
        super().__init__(binary)
        self._masters, self._replicas = masters, replicas

    @property
    def living(self) -> list[Node]:
        """The nodes whose process runs."""
        return [node for node in self.nodes if node.server.is_running]

    @property
    def url(self) -> str:
        """Of the first living node."""
        return self.living[0].server.url

    @property
    def urls(self) -> str:
        """Of all nodes together."""
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def assemble(self) -> None:
        for _ in range(self._masters * (1 + self._replicas)):
            self.start(self.OPTIONS)
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        bounds = [SLOTS * n // len(masters) for n in range(len(masters) + 1)]
        for n, node in enumerate(masters):
            node.ask("CLUSTER", "ADDSLOTS", *range(bounds[n], bounds[n + 1]))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        self._introduce()
        for n, node in enumerate(replicas):
            node.ask("CLUSTER", "REPLICATE", masters[n % len(masters)].ask("CLUSTER", "MYID"))
        until("the cluster is ok", self.is_ok)
        until("replicas follow", lambda: all(node.ask("ROLE")[3] == "connected" for node in replicas))

    def _introduce(self) -> None:
        """Let all nodes meet; on a busy machine a handshake may take longer than nodes wait for it."""
        for attempt in range(10):
            for node in self.nodes[1:]:
                node.ask("CLUSTER", "MEET", HOST, self.nodes[0].port)
            try:
                until("all nodes know each other", lambda: all(map(self._knows_all, self.nodes)), PATIENCE_S / 4)
            except TimeoutError:
                if attempt == 9:
                    raise
            else:
                return

    def _knows_all(self, node: Node) -> bool:
        lines = node.ask("CLUSTER", "NODES").splitlines()
        return len(lines) == len(self.nodes) and not any("handshake" in line for line in lines)

    def is_ok(self) -> bool:
        """Whether every living node sees all slots served by living masters."""
        ports = {node.port for node in self.living}
        for node in self.living:
            rows = node.ask("CLUSTER", "SLOTS")
            covered = sum(last - first + 1 for first, last, master, *_ in rows if master[1] in ports)
            if covered < SLOTS or "cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
                return False
        return True

    def master_of(self, key: str) -> Node:
        """The node that serves the key."""
        slot = key_slot(key.encode())
        rows = self.living[0].ask("CLUSTER", "SLOTS")
        port = next(master[1] for first, last, master, *_ in rows if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def other_master(self, than: Node) -> Node:
        """A living master that is not this one."""
        return next(node for node in self.living if node is not than and node.is_master())

    @contextmanager
    def moving(self, key: str, to: Node) -> Iterator[None]:
        """Move the slot of `key`, with a pause: inside, its keys have gone to `to` and it is still its old owner's."""
        slot, source = key_slot(key.encode()), self.master_of(key)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.ask("CLUSTER", "MYID"))
        while names := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10):
            for name in names:
                source.ask("MIGRATE", HOST, to.port, name, 0, 5_000)
        yield
        for node in (to, source, *(node for node in self.living if node.is_master())):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.ask("CLUSTER", "MYID"))

    def move_slot(self, key: str, to: Node) -> None:
        """Move the slot of `key` to another master while it is in use."""
        with self.moving(key, to):
            pass


class Watched(Servers):
    """A primary and a replica, watched by three sentinels."""

    def __init__(self, binary: Path) -> None:
        super().__init__(binary)
        self.sentinels: list[Node] = []

    @property
    def url(self) -> str:
        """The sentinels and the service they watch."""
        return "redis+sentinel://" + ",".join(f"{HOST}:{node.port}" for node in self.sentinels) + f"/{SERVICE}"

    def assemble(self) -> None:
        options = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0"}
        primary, replica = self.start(options), self.start(options)
        replica.ask("REPLICAOF", HOST, primary.port)
        until("the replica follows", lambda: replica.ask("ROLE")[3] == "connected")
        for _ in range(3):
            self.sentinels.append(self._sentinel(primary))
        until("the sentinels know each other", lambda: all(_others(node) == (1, 2) for node in self.sentinels))

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
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 4000",
        ]
        configuration.write_text("\n".join(lines) + "\n")
        self._running.enter_context(_running([str(self._binary), str(configuration), "--sentinel"]))
        sentinel = Node(None, port)
        self._running.callback(sentinel.close)
        until("the sentinel answers", lambda: sentinel.ask("PING") == "PONG")
        return sentinel

    def primary(self) -> Node:
        """The server that takes writes, as the sentinels say."""
        port = int(self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])
        return next(node for node in self.nodes if node.port == port)


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _others(sentinel: Node) -> tuple[int, int]:
    """Replicas and other sentinels that a sentinel knows."""
    reply = sentinel.ask("SENTINEL", "MASTER", SERVICE)
    said = dict(zip(reply[::2], reply[1::2], strict=True))
    return int(said["num-slaves"]), int(said["num-other-sentinels"])
