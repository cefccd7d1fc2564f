"""A managed fail-over: the server behind the URL becomes a replica, and its name leads to another one from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.faces import Face, both_faces
from tests.waiting import until
from wheelq.embedded import EmbeddedServer
from wheelq.errors import NotPrimary, ServerError
from wheelq.protocol.call import command
from wheelq.transport import Address, AsyncTransport


class Name:
    """A port whose new connections lead to one server, while the older ones stay where they are."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.leads_to(server)

    def leads_to(self, server: EmbeddedServer) -> None:
        self._port = int(server.url.rpartition(":")[2])

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._copy(reader, to_there), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture
def pair(private_server: Callable[..., EmbeddedServer]) -> tuple[EmbeddedServer, EmbeddedServer]:
    return private_server(port=0), private_server(port=0)


@both_faces
async def test_a_client_leaves_a_server_that_became_a_replica(
    face: Face, pair: tuple[EmbeddedServer, EmbeddedServer]
) -> None:
    """Its connections are still open, so nothing else would tell it that the name leads elsewhere."""
    former, present = pair
    name = Name(former)
    async with await asyncio.start_server(name.carry, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with face.connect(f"redis://127.0.0.1:{port}") as client:
            await client.schedule("orders", delay=60, key="before")
            name.leads_to(present)
            transport = AsyncTransport(Address(former.url))
            host, _, to = present.url.removeprefix("redis://").rpartition(":")
            await transport.send(command("REPLICAOF", host, to, read=lambda reply: reply))
            await transport.close()
            told: list[ServerError] = []

            async def is_scheduled() -> bool:
                try:
                    await client.schedule("orders", delay=60, key="after")
                except ServerError as error:
                    told.append(error)
                    return False
                return True

            await until(is_scheduled)
            assert isinstance(told[0], NotPrimary)
            assert (await client.get("orders", "after")) is not None
        listening.close()
