"""Which server serves which key. Pure.

    one server     every key                                    known from the URL
    Sentinel       every key: the primary of the moment         asked of the sentinels
    cluster        16,384 slots, each served by one master      asked of any node (CLUSTER SLOTS)

A key's slot is the CRC16 of the text between its braces (or of the whole key, without braces), modulo 16,384. All keys
of one shard share `{topic:shard}` and so one slot: a script touches one node, and a topic's shards spread over all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from wheelq.errors import ServerBusy
from wheelq.protocol.call import Call, command

UNKNOWN_HOSTS = (None, b"", b"?")
"""A node reports this host while it does not know the address: use the address at which it was reached."""


class Node(NamedTuple):
    """Where one server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SlotMap:
    """The master of every slot, as last reported."""

    def __init__(self, owners: list[Node | None], nodes: Iterable[Node]) -> None:
        """`owners` are by slot; a single one owns all keys. `nodes` are all masters."""
        self._owners = owners
        self.nodes = tuple(dict.fromkeys(nodes))
        """Every master."""

    @classmethod
    def whole(cls, node: Node) -> Self:
        """A map in which one server serves everything."""
        return cls([node], [node])

    @classmethod
    def empty(cls) -> Self:
        """A map that knows nothing."""
        return cls([None], [])

    @classmethod
    def of_reply(cls, reply: list[Any], asked: Node) -> Self:
        """The map in a node's answer to CLUSTER SLOTS: rows of first slot, last slot, master, replicas."""
        owners: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        masters = []
        for first, last, (host, port, *_), *_replicas in reply:
            master = Node(asked.host if host in UNKNOWN_HOSTS else host.decode(), port)
            owners[first : last + 1] = [master] * (last + 1 - first)
            masters.append(master)
        return cls(owners, masters)

    def slot(self, key: str) -> int:
        """The number of the key's slot. One call may name keys of the same slot."""
        return key_slot(key.encode(), len(self._owners))

    def owner(self, key: str | None) -> Node | None:
        """Returns the node that serves the key, or without a key the first slot; None if none is known."""
        return self._owners[0 if key is None else self.slot(key)]

    def another(self, than: Node) -> Node | None:
        """Any other master, for what every node can answer."""
        others = [node for node in self.nodes if node != than]
        return random.choice(others) if others else than

    def moved(self, key: str, to: Node) -> None:
        """Record that `to` now serves the key's slot, as its former owner reports."""
        self._owners[self.slot(key)] = to


def read_slots(asked: Node) -> Call[SlotMap]:
    """Ask the node `asked` for the map."""
    return command("CLUSTER SLOTS", read=lambda reply: SlotMap.of_reply(reply, asked))


def find_primary(service: str) -> Call[SlotMap]:
    """Ask a sentinel where the primary is."""

    def read(reply: list[bytes] | None) -> SlotMap:
        if reply is None:
            raise ServerBusy(f"the sentinels do not know a service {service!r}")
        return SlotMap.whole(Node(reply[0].decode(), int(reply[1])))

    return command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service, read=read)
