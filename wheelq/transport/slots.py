"""Which server serves which key. Pure.

    one server     every key                                    known from the URL
    Sentinel       every key: the primary of the moment         asked of the sentinels
    cluster        16,384 slots, each served by one master      asked of any node (CLUSTER SLOTS)

A key's slot is the CRC16 of what stands between its braces (of all of it without any), modulo 16,384. All keys of one
shard have `{topic:shard}` in common and so one slot: a script touches one node, and a topic's shards spread over all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from wheelq.errors import ServerBusy
from wheelq.protocol.call import Call, command

UNKNOWN_HOSTS = (None, b"", b"?")
"""What a node says of itself or others while it does not know the address: take that at which it was reached."""


class Node(NamedTuple):
    """Where one server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SlotMap:
    """The master of every slot, as last heard."""

    def __init__(self, owners: list[Node | None], nodes: Iterable[Node]) -> None:
        """`owners` by slot; a single one is that of all keys. `nodes` are all masters."""
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
        """The number of the key's slot. Keys with the same may be named in one call."""
        return key_slot(key.encode(), len(self._owners))

    def owner(self, key: str | None) -> Node | None:
        """Who serves the key; without a key whoever serves the first slot. None: nobody, as far as is known."""
        return self._owners[0 if key is None else self.slot(key)]

    def another(self, than: Node) -> Node | None:
        """Any other master, for what every node can answer."""
        others = [node for node in self.nodes if node != than]
        return random.choice(others) if others else than

    def moved(self, key: str, to: Node) -> None:
        """The key's slot is served by `to` now: its former owner says so."""
        self._owners[self.slot(key)] = to


def read_slots(asked: Node) -> Call[SlotMap]:
    """Ask the node `asked` for the map."""
    return command("CLUSTER SLOTS", read=lambda reply: SlotMap.of_reply(reply, asked))


def find_primary(service: str) -> Call[SlotMap]:
    """Ask a sentinel where the primary is."""

    def read(reply: list[bytes] | None) -> SlotMap:
        if reply is None:
            raise ServerBusy(f"the sentinels know of no service {service!r}")
        return SlotMap.whole(Node(reply[0].decode(), int(reply[1])))

    return command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service, read=read)
