"""`Backlog`: which of many shards may hold unread entries, and how far the others have been read. Pure.

unread ──read──▶ nothing left: listen after the last entry that the group received ───an entry came────▶ unread
   ▲   └──────▶ perhaps more: to the end of the queue                                                      │
   └───────────────────────────────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable

from wheelq.protocol.keys import ShardKeys
from wheelq.worker.delivery.held import ServedShard


class Backlog:
    """The unread and the fully read shards of one reader."""

    def __init__(self) -> None:
        self._unread: dict[ServedShard, None] = {}  # in the order in which they are read
        self._read_to: dict[ServedShard, str] = {}

    def follow(self, shards: Iterable[ServedShard]) -> None:
        """Replace the shards; new ones may hold unread entries."""
        now = dict.fromkeys(shards)
        self._read_to = {shard: last_id for shard, last_id in self._read_to.items() if shard in now}
        self._unread = {shard: None for shard in (*self._unread, *now) if shard in now and shard not in self._read_to}

    def doubt(self) -> None:
        """Mark all as unread: a reply was lost, or the server is another one."""
        self._unread = {**self._unread, **dict.fromkeys(self._read_to)}
        self._read_to = {}

    def unread(self, most: int) -> list[ServedShard]:
        """Returns the first shards that may hold unread entries."""
        return [shard for shard, _ in zip(self._unread, range(most), strict=False)]

    def was_read(self, shard: ServedShard, last_id: str) -> None:
        """Record that a shard was read up to the entry `last_id`; "": there may be more to read."""
        if self._unread.pop(shard, 0) is None:
            if last_id:
                self._read_to[shard] = last_id
            else:
                self._unread[shard] = None

    def listening(self) -> tuple[list[ServedShard], list[tuple[ShardKeys, str]]]:
        """Returns the fully read shards, and their keys with the last entry of each, after which to listen."""
        return list(self._read_to), [(shard.keys, last_id) for shard, last_id in self._read_to.items()]

    def came(self, shards: Iterable[ServedShard]) -> None:
        """Record that new entries came to these shards."""
        for shard in shards:
            if self._read_to.pop(shard, None) is not None:
                self._unread[shard] = None
