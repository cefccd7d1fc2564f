"""Removes what a trial run has left on a server that is not its own."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields

from wheelq.errors import ServerError
from wheelq.protocol.call import command
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport


async def remove_keys(transport: AsyncTransport, keys: Keys, topics: Iterable[str]) -> None:
    """Remove every key that can have been written for these topics of one shard, and all that are not of a topic.

    That some names are those of channels does no harm; nor does a server that is gone.
    """
    names = [getattr(keys, name) for name, member in vars(Keys).items() if isinstance(member, property)]
    for shard in (keys.shard(topic, 0) for topic in topics):
        names += [getattr(shard, item.name) for item in fields(shard) if not item.init]
    with suppress(ServerError):
        for name in names:  # one by one: in a cluster they are on different nodes
            await transport.send(command("UNLINK", name, read=bool))
