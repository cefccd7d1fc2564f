"""Removes the keys that a trial run has left on a shared server."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields

from wheelq.base.clock import wall_ms
from wheelq.errors import ServerError
from wheelq.protocol.call import command
from wheelq.protocol.calls.counts import HOUR_MS
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport

HOURS = 24
"""Hours whose history a run may have written; the server's clock may be wrong by some of them."""


async def remove_keys(transport: AsyncTransport, keys: Keys, topics: Iterable[str]) -> None:
    """Remove all keys of these one-shard topics that are younger than a day, and all keys that belong to no topic.

    Some of the names are those of channels, for which nothing is deleted. Errors of a server that is gone are ignored.
    """
    names = [getattr(keys, name) for name, member in vars(Keys).items() if isinstance(member, property)]
    for shard in (keys.shard(topic, 0) for topic in topics):
        names += [getattr(shard, item.name) for item in fields(shard) if not item.init]
        names += [shard.history(wall_ms() // HOUR_MS - ago) for ago in range(-1, HOURS)]
    with suppress(ServerError):
        for name in names:  # one by one, because in a cluster they are on different nodes
            await transport.send(command("UNLINK", name, read=bool))
