"""The network goes silent: connections stay open and carry nothing. Whoever waits must notice in the time it is set.

Found by `loadtest.torture`: after a cable was pulled for a moment, schedulers heard no hints any more, and jobs were up
to half a second late from then on; a part that connected while replies got lost waited for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from loadtest.proxy import Proxy
from wheelq.errors import ServerError, Unavailable
from wheelq.protocol.call import command
from wheelq.protocol.calls import registry
from wheelq.settings import ConnectionSettings
from wheelq.transport import Address, AsyncTransport

SETTINGS = ConnectionSettings(connect_timeout_ms=200, reply_timeout_ms=400)
PATIENCE_S = 5.0
"""Far more than both together."""


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


async def test_a_subscription_that_has_fallen_silent_is_noticed(proxy: Proxy) -> None:
    """No messages for a while is usual; no answer to a question is not."""
    subscription = AsyncTransport(Address(proxy.url("node"), SETTINGS)).subscription()
    await subscription.open(["news"])
    proxy.silence("node")

    async def listen() -> None:
        async for _ in subscription.messages():
            pass

    with pytest.raises(Unavailable):
        await asyncio.wait_for(listen(), PATIENCE_S)


async def test_a_subscription_without_messages_goes_on(proxy: Proxy) -> None:
    """Longer than any time-out."""
    subscription = AsyncTransport(Address(proxy.url("node"), SETTINGS)).subscription()
    await subscription.open(["news"])

    async def listen() -> tuple[str, bytes | None]:
        async for channel, data in subscription.messages():
            if data is not None:
                return channel, data
        raise AssertionError("messages end with an error only")

    listening = asyncio.create_task(listen())
    await asyncio.sleep(2.0)
    speaker = AsyncTransport(Address(proxy.url("speaker"), SETTINGS))
    await speaker.send(command("PUBLISH", "news", "hello", read=int))
    assert await asyncio.wait_for(listening, PATIENCE_S) == ("news", b"hello")
    await subscription.close()
    await speaker.close()


async def test_a_connection_that_is_made_and_not_greeted_is_given_up(proxy: Proxy) -> None:
    """The port answers, the server does not: unavailable, after the time-outs and not never."""
    transport = AsyncTransport(Address(proxy.url("part"), SETTINGS))
    proxy.swallow(True, "part")
    with pytest.raises(ServerError):
        await asyncio.wait_for(transport.send(registry.server_time_us()), PATIENCE_S)
    await transport.close()
