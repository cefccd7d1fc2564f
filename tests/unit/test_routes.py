"""`AsyncRoutes`: connections to nodes that are gone are closed, whoever finds out first."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from wheelq.base.clock import SystemClock
from wheelq.transport import Address
from wheelq.transport.routes import AsyncRoutes
from wheelq.transport.slots import Node


class IdlePipe:
    """Closing it takes a turn of the event loop."""

    is_idle = True
    interruptions = 0

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


async def test_two_calls_that_read_a_new_map_close_the_connections_of_gone_nodes_once() -> None:
    """The second call met a node that the first had just left, and its worker ended."""
    topology: Any = SimpleNamespace(refresh=AsyncMock(), slots=SimpleNamespace(nodes=()))
    routes = AsyncRoutes(Address("redis://127.0.0.1:1"), topology, SystemClock())
    pipes = [IdlePipe() for _ in range(3)]
    routes.pipes.update({Node("127.0.0.1", port): pipe for port, pipe in enumerate(pipes)})  # type: ignore[misc]
    await asyncio.gather(routes._read_map(), routes._read_map())
    assert [pipe.closed for pipe in pipes] == [1, 1, 1]
    assert not routes.pipes
