"""A primary and a replica behind three sentinels: everything works, and goes on when the primary fails."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from loadtest.judge import FaultKind
from loadtest.servers.nodes import Node, until
from loadtest.servers.sentinel import SERVICE, Watched
from tests.scenes import Scene
from tests.waiting import PATIENCE
from wheelq import AsyncClient, Client, JobSpec
from wheelq.errors import Unavailable
from wheelq.protocol.call import command
from wheelq.transport import Address, AsyncTransport, Transport

TAKEN_OVER_MS = 30_000
"""A quiet machine needs a tenth of it. Missing the failover would cost a lease and a scheduler's rest."""
NEVER_MS = 60_000
"""No server is taken for dead that a busy machine has only held up."""
PORT = command("CONFIG GET", "port", read=lambda reply: int(reply[1]))


async def test_the_sentinels_lead_to_the_primary(server_binary: Path, topic: str) -> None:
    with Watched(server_binary, down_after_ms=NEVER_MS) as watched:
        with Client.connect(watched.url) as client:
            assert len(client.schedule_many(topic, [JobSpec(n, delay=60) for n in range(1_000)])) == 1_000
            assert client.schedule(topic, delay=60, durability="replicated").created
        async with AsyncClient.connect(watched.url) as aclient:
            assert [info.waiting for info in await aclient.topics()] == [1_001]
        unknown = watched.url.replace(f"/{SERVICE}", "/nothing")
        with Client.connect(unknown) as client, pytest.raises(Unavailable, match="do not know a service 'nothing'"):
            client.topics()


async def test_a_primary_that_was_replaced_is_left_although_it_still_answers(server_binary: Path) -> None:
    """It does not know for about ten seconds, until a sentinel tells it; what it takes meanwhile will be lost."""
    with Watched(server_binary, down_after_ms=NEVER_MS) as watched:
        before = watched.primary()
        blocking, transport = Transport(Address(watched.url)), AsyncTransport(Address(watched.url))
        subscription = transport.subscription()
        await subscription.open(["channel"])

        async def listen() -> None:
            async for _ in subscription.messages():
                pass

        async def is_asked(node: Node) -> bool:
            ports = (await transport.send(PORT), await asyncio.to_thread(blocking.send, PORT))
            return ports == (node.port, node.port)

        listening = asyncio.create_task(listen())
        assert await is_asked(before)
        watched.switch_over(before)
        await asyncio.to_thread(until, "another is the primary", lambda: watched.primary() is not before)
        async with asyncio.timeout(PATIENCE):
            while not await is_asked(watched.primary()):
                pass
            with pytest.raises(Unavailable):
                await listening
        assert before.is_master(), "it was not it that ended the connections"
        await subscription.close()
        await transport.close()
        blocking.close()


@pytest.mark.slow
def test_the_primary_is_killed(server_binary: Path, topic: str, tmp_path: Path) -> None:
    """It is missed after 3 s. What the replica had not been sent is lost (on a quiet machine at most a few jobs)."""
    with (
        Watched(server_binary, down_after_ms=3_000) as watched,
        Scene(watched.url, tmp_path, topic, shards=2) as scene,
    ):
        scene.begin(schedulers=2)
        scene.schedule(3_000, first=0.5, spread=6.0)
        time.sleep(1.5)
        before = watched.primary()
        before.server.kill()
        failed = scene.schedule_for(4.0, delay=0.5, pause=0.01)
        until("another is the primary", lambda: watched.primary() is not before)
        verdict = scene.verdict()
        assert failed <= 2, "calls wait for the new primary; a lost reply is repeated"
        assert verdict.count(FaultKind.EARLY, FaultKind.UNKNOWN) == 0, f"{verdict}\n{scene.fleet.output()}"
        few = verdict.count(FaultKind.LOST, FaultKind.DOUBLED) <= 150  # of 0.3 s
        assert few, f"{verdict}\n{scene.fleet.output()}"
        assert verdict.lateness_ms[-1] < TAKEN_OVER_MS


@pytest.mark.long
def test_the_primary_is_replaced_by_order(server_binary: Path, topic: str, tmp_path: Path) -> None:
    """It takes jobs for a while that nobody will know of: whoever asks for a replica to have them is told so.

    What was confirmed runs, each job promoted once by the primary that counts.
    """
    with Watched(server_binary, down_after_ms=NEVER_MS) as watched:
        before = watched.primary()
        with Scene(watched.url, tmp_path, topic, shards=2, durability="replicated") as scene:
            scene.begin(schedulers=2)
            scene.schedule(3_000, first=0.5, spread=6.0)
            time.sleep(1.5)
            watched.switch_over(before)
            scene.schedule_for(4.0, delay=0.5, pause=0.01)
            until("another is the primary", lambda: watched.primary() is not before)
            verdict = scene.verdict()
            assert verdict.is_clean, f"{verdict}\n{scene.fleet.output()}"
            assert verdict.lateness_ms[-1] < TAKEN_OVER_MS
