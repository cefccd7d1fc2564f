"""The servers of a torture run, the way to them, and their faults.

| `--on`     | servers                                             | a producer's schedule call returns when   |
|------------|-----------------------------------------------------|-------------------------------------------|
| `single`   | one                                                 | the server has the jobs                   |
| `sentinel` | a primary and a replica, watched by three sentinels | the replica has confirmed them            |
| `cluster`  | three masters, each with a replica                  | the replica of their master has confirmed |

All have an append-only file (everysec), and the parts reach them through a proxy. An `Arena` starts its
servers, gives every part an address of its own, and names the servers that faults can hit. The faults use nothing else
(see `faults`); those that are impossible in an arena are `spared`.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Self

import redis

from loadtest.servers.cluster import Cluster
from loadtest.servers.hosts import SmallDisk, SteppedClock, small_disk
from loadtest.servers.nodes import KEPT_BY_THE_SYSTEM, Servers, until
from loadtest.servers.proxy import Proxy
from loadtest.servers.sentinel import SERVICE, Watched
from wheelq.embedded import EmbeddedServer, find_server
from wheelq.errors import ServerError
from wheelq.protocol.call import Call
from wheelq.settings import ConnectionSettings, Durability
from wheelq.transport import Address, Transport

CONTROL = ConnectionSettings(reply_timeout_ms=2_500)
"""Faults are carried out one step at a time: a server that does not answer must not delay the others for long."""


CONTROL_USER = "control"
"""The user that can sign in even while all others are locked out."""
NEEDS_ONE_SERVER = frozenset({"step-clock", "fill-disk", "lock-out"})
"""These faults need a single server: servers that replicate sign in to each other, and compare their clocks."""


class Arena(ABC):
    """A set-up of servers for torture. A context manager."""

    proxy: Proxy
    """The proxy between the parts and the servers."""
    control: Transport
    """A way to the servers that no fault affects."""
    durability: Durability = "replicated"
    """The durability that producers ask for."""
    spared: frozenset[str] = frozenset()
    """Faults that are impossible here."""
    clock: SteppedClock | None = None
    """The clock of its server; None if it cannot be set."""
    disk: SmallDisk | None = None
    """The disk of its server; None if it cannot be filled."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._frozen: set[int] = set()

    @abstractmethod
    def __enter__(self) -> Self:
        """Start the servers, and call `_open`."""

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _open(self, url: str, *upstreams: str) -> None:
        self.proxy = self._held.enter_context(Proxy(*upstreams))
        self.control = Transport(Address(url, CONTROL))
        self._held.callback(self.control.close)

    @abstractmethod
    def url(self, part: str) -> str:
        """The address for the part of this name."""

    @abstractmethod
    def masters(self) -> Sequence[EmbeddedServer]:
        """The servers that take writes."""

    @abstractmethod
    def replicas(self) -> Sequence[EmbeddedServer]:
        """The servers that replicate from a master."""

    @abstractmethod
    def is_served(self) -> bool:
        """Whether every key has a server that takes writes."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Whether every server runs in its role, and all agree about each other."""

    @abstractmethod
    def on_servers(self, call: Call[Any]) -> bool:
        """Send a call to every server; returns whether all have carried it out."""

    def freeze(self, server: EmbeddedServer) -> None:
        """Stop a server by SIGSTOP."""
        self._frozen.add(server.pid)
        os.kill(server.pid, signal.SIGSTOP)

    def wake(self, server: EmbeddedServer) -> None:
        """Resume a frozen server."""
        self._frozen.discard(server.pid)
        os.kill(server.pid, signal.SIGCONT)

    @contextmanager
    def occupied(self, server: EmbeddedServer, silent_ms: int) -> Iterator[None]:
        """Runs an endless script on a server, which answers BUSY after `silent_ms`, during the block."""
        with redis.Redis.from_url(self._control_url(server)) as admin, suppress(redis.RedisError):
            admin.config_set("lua-time-limit", silent_ms)
            endless = admin.connection_pool.get_connection()
            endless.send_command("EVAL", "while true do end", 0)
            try:
                yield
            finally:
                _until_killed(admin)
                endless.disconnect()
                admin.config_set("lua-time-limit", 5_000)

    @contextmanager
    def unable_to_save(self, server: EmbeddedServer) -> Iterator[None]:
        """Makes snapshots of a server fail during the block, so that it refuses writes."""
        with redis.Redis.from_url(self._control_url(server), decode_responses=True) as admin:
            snapshot = Path(admin.config_get("dir")["dir"], "dump.rdb")
            snapshot.unlink(missing_ok=True)
            snapshot.mkdir()  # the new snapshot cannot take its place
            admin.config_set("save", "3600 1")
            until("the snapshot fails", lambda: _fails_to_save(admin))
            try:
                yield
            finally:
                admin.config_set("save", "")  # without a plan to save a failure stops no writes
                snapshot.rmdir()

    def _control_url(self, server: EmbeddedServer) -> str:
        return server.url

    def switch_over(self, random: Random) -> bool:
        """Tell a replica to take its master's place; False if that is impossible now."""
        return False  # without replicas no server can take a master's place

    def move_slot(self, key: str, random: Random) -> Iterator[float]:
        """Move a key's slot to another master, in steps with pauses (seconds) between."""
        return iter(())  # only a cluster has another master to move to


class Single(Arena):
    """One server."""

    durability: Durability = "server"
    spared = frozenset({"fail-over", "switch-over", "restart-replica", "freeze-replica", "move-slots"})

    def __init__(self, binary: Path | None = None) -> None:
        super().__init__()
        self._binary = binary or find_server()

    def __enter__(self) -> Self:
        directory = Path(self._held.enter_context(TemporaryDirectory(prefix="wheelq-arena-")))
        self.clock = SteppedClock.under(self._binary, directory)
        self.disk = self._held.enter_context(small_disk(directory / "disk"))
        cannot = {"step-clock": self.clock, "fill-disk": self.disk}
        self.spared |= {fault for fault, has in cannot.items() if has is None}
        self._server = EmbeddedServer(
            directory / "disk" / "data",
            binary=self.clock.binary if self.clock else self._binary,
            options={"user": f"{CONTROL_USER} on nopass ~* &* +@all", **KEPT_BY_THE_SYSTEM},
        )
        self._held.enter_context(self._server)
        self._open(self._control_url(self._server), self._server.url)
        return self

    def _control_url(self, server: EmbeddedServer) -> str:
        return server.url.replace("://", f"://{CONTROL_USER}:any@")

    def url(self, part: str) -> str:
        return self.proxy.url(part)

    def masters(self) -> Sequence[EmbeddedServer]:
        return [self._server]

    def replicas(self) -> Sequence[EmbeddedServer]:
        return []

    def is_served(self) -> bool:
        return self._server.is_running

    def is_whole(self) -> bool:
        return self.is_served()

    def on_servers(self, call: Call[Any]) -> bool:
        with suppress(ServerError):
            if not self._frozen:
                self.control.send(call)
                return True
        return False


class _Several(Arena):
    """Servers that replicate to each other."""

    def __init__(self, servers: Servers) -> None:
        super().__init__()
        self._servers = servers

    def masters(self) -> Sequence[EmbeddedServer]:
        return [node.server for node in self._servers.masters()]

    def replicas(self) -> Sequence[EmbeddedServer]:
        masters = self.masters()
        return [node.server for node in self._servers.living if node.server not in masters]

    def is_served(self) -> bool:
        with suppress(redis.RedisError, OSError):
            return self._servers.is_served()
        return False

    def is_whole(self) -> bool:
        with suppress(redis.RedisError, OSError):
            return self._servers.is_whole()
        return False

    def on_servers(self, call: Call[Any]) -> bool:
        done = 0
        for node in self._servers.living:
            with suppress(redis.RedisError, OSError):
                if node.server.pid not in self._frozen:
                    node.ask(*call.words())
                    done += 1
        return done == len(self._servers.nodes)

    def switch_over(self, random: Random) -> bool:
        with suppress(redis.RedisError, OSError):
            self._servers.switch_over(random.choice(self._servers.masters()))
            return True
        return False


class BehindSentinels(_Several):
    """A primary and a replica."""

    spared = NEEDS_ONE_SERVER | {"move-slots"}

    def __init__(self, binary: Path | None = None) -> None:
        self._watched = Watched(binary or find_server(), appendonly=True)
        super().__init__(self._watched)

    def __enter__(self) -> Self:
        watched = self._held.enter_context(self._watched)
        nodes = [*watched.sentinels, *watched.nodes]
        self._open(watched.url, *(f"redis://127.0.0.1:{node.port}" for node in nodes))
        return self

    def url(self, part: str) -> str:
        doors = self.proxy.addresses(part)
        return f"redis+sentinel://{','.join(doors[: len(self._watched.sentinels)])}/{SERVICE}"


class InCluster(_Several):
    """Three masters, each with a replica."""

    spared = NEEDS_ONE_SERVER

    def __init__(self, binary: Path | None = None) -> None:
        self._cluster = Cluster(binary or find_server(), replicas=1, appendonly=True)
        super().__init__(self._cluster)

    def __enter__(self) -> Self:
        cluster = self._held.enter_context(self._cluster)
        self._open(cluster.urls, *(node.server.url for node in cluster.nodes))
        return self

    def url(self, part: str) -> str:
        return f"redis+cluster://{','.join(self.proxy.addresses(part))}"

    def move_slot(self, key: str, random: Random) -> Iterator[float]:
        cluster = self._cluster
        to = random.choice([node for node in cluster.masters() if node is not cluster.master_of(key)])
        source, is_left = cluster.begin_to_move(key, to), True
        while is_left:
            try:
                is_left = cluster.carry_some(key, source, to)
                yield 0.0
            except redis.ResponseError:  # the other is full just now
                yield 0.2
        yield random.uniform(0.0, 0.3)
        cluster.end_move(key, source, to)


def _until_killed(admin: redis.Redis) -> None:
    """End the script that runs; it has written nothing, and can be ended."""
    for _ in range(500):
        try:
            admin.script_kill()
        except redis.ResponseError as error:
            if "NOTBUSY" in str(error):
                return
        time.sleep(0.02)


def _fails_to_save(admin: redis.Redis) -> bool:
    with suppress(redis.ResponseError):  # another is being written
        admin.bgsave()
    return bool(admin.info("persistence")["rdb_last_bgsave_status"] == "err")


ARENAS: Mapping[str, Callable[[], Arena]] = {"single": Single, "sentinel": BehindSentinels, "cluster": InCluster}
