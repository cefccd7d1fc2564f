"""A Redis Cluster of real servers on free ports of this machine.

with Cluster(binary, replicas=1) as cluster:       three masters that agree which of them serves which slots
    cluster.url                                    the URL of one living node
    cluster.move_slot(key, to)                     as `redis-cli --cluster reshard` does it, key by key
    cluster.master_of(key).server.kill()           its replica is promoted
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from redis.crc import key_slot

from loadtest.servers.nodes import PATIENCE_S, Node, Servers, until
from wheelq.embedded import HOST

SLOTS = 16_384
NODE_TIMEOUT_MS = 1_000


class Cluster(Servers):
    """Three masters, each with the same number of replicas."""

    OPTIONS: Mapping[str, str] = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        "cluster-replica-validity-factor": "0",
        "repl-diskless-sync": "yes",
        "repl-diskless-sync-delay": "0",
    }

    def __init__(self, binary: Path, *, masters: int = 3, replicas: int = 0, appendonly: bool = False) -> None:
        super().__init__(binary, appendonly=appendonly)
        self._masters, self._replicas = masters, replicas

    @property
    def url(self) -> str:
        """Of the first living node."""
        return self.living[0].server.url

    @property
    def urls(self) -> str:
        """Counted over all nodes."""
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
        until("the cluster is ok", self.is_served)
        until("replicas follow", lambda: all(map(Node.is_in_step, replicas)))

    def _introduce(self) -> None:
        """Make all nodes meet; on a busy machine a handshake may take longer than nodes wait for it."""
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

    def is_served(self) -> bool:
        """Whether every living node sees all slots served by living masters."""
        ports = {node.port for node in self.living}
        for node in self.living:
            rows = node.ask("CLUSTER", "SLOTS")
            covered = sum(last - first + 1 for first, last, master, *_ in rows if master[1] in ports)
            if covered < SLOTS or "cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
                return False
        return True

    def masters(self) -> list[Node]:
        """Returns the nodes that serve slots, as the first living node sees it."""
        ports = {master[1] for first, last, master, *_ in self.living[0].ask("CLUSTER", "SLOTS")}
        return [node for node in self.living if node.port in ports]

    def master_of(self, key: str) -> Node:
        """The node that serves the key."""
        slot = key_slot(key.encode())
        rows = self.living[0].ask("CLUSTER", "SLOTS")
        port = next(master[1] for first, last, master, *_ in rows if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def other_master(self, than: Node) -> Node:
        """A living master that is not this one."""
        return next(node for node in self.living if node is not than and node.is_master())

    def switch_over(self, master: Node) -> None:
        """A replica asks its master to wait until it has everything, and takes over."""
        mine = master.ask("CLUSTER", "MYID")
        for node in self.living:
            flags_and_master = node.ask("CLUSTER", "NODES").partition("myself,slave ")[2].split()
            if flags_and_master and flags_and_master[0] == mine:
                node.ask("CLUSTER", "FAILOVER")

    # --- slots that move -------------------------------------------------------------------------------------------

    @contextmanager
    def moving(self, key: str, to: Node) -> Iterator[None]:
        """Begin to move the slot of `key`. In the block its keys are at `to`, and the old owner still has the slot."""
        source = self.begin_to_move(key, to)
        while self.carry_some(key, source, to):
            pass
        yield
        self.end_move(key, source, to)

    def move_slot(self, key: str, to: Node) -> None:
        """Move the slot of `key` to another master while it is in use."""
        with self.moving(key, to):
            pass

    def begin_to_move(self, key: str, to: Node) -> Node:
        """From now on the keys of the slot are in two places; returns the one they come from."""
        slot, source = key_slot(key.encode()), self.master_of(key)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.ask("CLUSTER", "MYID"))
        return source

    def carry_some(self, key: str, source: Node, to: Node) -> bool:
        """Carry some keys of the slot over; False when there are none left."""
        names = source.ask("CLUSTER", "GETKEYSINSLOT", key_slot(key.encode()), 10)
        for name in names:
            source.ask("MIGRATE", HOST, to.port, name, 0, 5_000)
        return bool(names)

    def end_move(self, key: str, source: Node, to: Node) -> None:
        """Tell all masters that the slot belongs to `to`, every other second until they agree.

        Telling them once is not enough: an older message of the source may reach a third master after that was told,
        and gives the slot back to the source.
        """
        slot, owner = key_slot(key.encode()), to.ask("CLUSTER", "MYID")
        for _ in range(30):
            for node in (to, source, *(node for node in self.living if node.is_master())):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", owner)
            with suppress(TimeoutError):
                until("the masters agree on the slots", self._is_settled, 2.0)
                return
        raise TimeoutError(f"the masters do not agree on slot {slot}, although each was told 30 times")

    def _is_settled(self) -> bool:
        """Whether all masters see the same owners: a message from before a move could undo a later one."""
        views = []
        for node in filter(Node.is_master, self.living):
            rows = [line.split() for line in node.ask("CLUSTER", "NODES").splitlines() if "master" in line]
            views.append({(row[0], row[6], *(word for word in row[8:] if word[0] != "[")) for row in rows})
        return all(view == views[0] for view in views)
