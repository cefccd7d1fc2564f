"""The network goes silent: connections stay open and carry nothing. Whoever waits must notice in the time it is set.

Found by `loadtest.torture`: after a cable was pulled for a moment, schedulers heard no hints any more, and jobs were up
to half a second late from then on; a part that connected while replies got lost waited for ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest
import redis

from loadtest.servers.proxy import Proxy
from tests.waiting import PATIENCE, until
from wheelq import AsyncClient, JobSpec, Settings, Worker
from wheelq.embedded import EmbeddedServer
from wheelq.errors import ServerError, Unavailable
from wheelq.protocol.call import command
from wheelq.protocol.calls.server import server_time_us
from wheelq.settings import ConnectionSettings, TopicSettings
from wheelq.transport import Address, AsyncTransport

LONG_MS = 30_000


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


async def test_a_subscription_that_has_fallen_silent_is_noticed(proxy: Proxy) -> None:
    """No messages for a while is usual; no answer to a question is not."""
    settings = ConnectionSettings(connect_timeout_ms=LONG_MS, reply_timeout_ms=400)
    subscription = AsyncTransport(Address(proxy.url("node"), settings)).subscription()
    await subscription.open(["news"])
    proxy.silence("node")

    async def listen() -> None:
        async for _ in subscription.messages():
            pass

    with pytest.raises(Unavailable):
        await asyncio.wait_for(listen(), PATIENCE)


async def test_a_subscription_without_messages_goes_on(proxy: Proxy, raw: redis.Redis) -> None:
    """Longer than any time-out: it has asked twice whether the server is there."""
    settings = ConnectionSettings(connect_timeout_ms=LONG_MS, reply_timeout_ms=3_000)
    subscription = AsyncTransport(Address(proxy.url("node"), settings)).subscription()
    await subscription.open(["news"])

    def pings() -> int:
        return int(raw.info("commandstats").get("cmdstat_ping", {}).get("calls", 0))

    async def listen() -> tuple[str, bytes | None]:
        async for channel, data in subscription.messages():
            if data is not None:
                return channel, data
        raise AssertionError("messages end with an error only")

    before = pings()
    listening = asyncio.create_task(listen())
    await until(lambda: pings() >= before + 2)
    speaker = AsyncTransport(Address(proxy.url("speaker")))
    await speaker.send(command("PUBLISH", "news", "hello", read=int))
    assert await asyncio.wait_for(listening, PATIENCE) == ("news", b"hello")
    await subscription.close()
    await speaker.close()


async def test_a_subscription_to_a_server_that_is_slow_to_answer_is_opened(proxy: Proxy) -> None:
    """A scheduler that starts on a busy server would end: only the connection itself has to be made at once."""
    settings = ConnectionSettings(connect_timeout_ms=200, reply_timeout_ms=LONG_MS)
    subscription = AsyncTransport(Address(proxy.url("node"), settings)).subscription()
    proxy.delay(0.2, "node")
    await subscription.open(["news"])
    await subscription.close()


async def test_a_connection_that_is_made_and_not_greeted_is_given_up(proxy: Proxy) -> None:
    """The port answers, the server does not: unavailable, after the time-outs and not never."""
    settings = ConnectionSettings(connect_timeout_ms=200, reply_timeout_ms=400)
    transport = AsyncTransport(Address(proxy.url("part"), settings))
    proxy.swallow(True, "part")
    with pytest.raises(ServerError):
        await asyncio.wait_for(transport.send(server_time_us()), PATIENCE)
    await transport.close()


async def test_a_worker_with_many_shards_ends_though_nobody_answers(
    private_server: Callable[..., EmbeddedServer],
) -> None:
    """It gives up after the time that one reply may take, and does not wait as long for each shard."""
    server = private_server()
    settings = Settings(connection=ConnectionSettings(reply_timeout_ms=5_000), topic=TopicSettings(shards=40))
    async with AsyncClient.connect(server.url, settings) as client:
        await client.schedule_many("orders", [JobSpec(delay=0) for _ in range(200)])
    worker, ran = Worker.connect(server.url, settings=settings), list[str]()
    worker.handler("orders")(lambda job: ran.append(job.id))
    running = asyncio.create_task(worker.run())
    await until(lambda: len(ran) == 200)
    os.kill(server.pid, signal.SIGSTOP)
    worker.stop()
    async with asyncio.timeout(13):  # less than three replies
        await running
    os.kill(server.pid, signal.SIGCONT)
