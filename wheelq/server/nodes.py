"""The scheduler nodes that live, by their heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wheelq.inspector import BELIEVED_MS
from wheelq.protocol.calls import registry
from wheelq.protocol.keys import Keys
from wheelq.transport import AsyncTransport


async def alive(transport: AsyncTransport, keys: Keys) -> dict[str, Mapping[str, Any]]:
    """What each of them last said of itself. Raises: ServerError."""
    nodes = await transport.send(registry.alive(keys.nodes))
    server_ms = await transport.send(registry.server_time_us()) // 1000
    return {name: said for name, said in nodes.items() if server_ms - said.get("seen_ms", 0) <= BELIEVED_MS}
