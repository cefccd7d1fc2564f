"""A primary and a replica behind three sentinels: everything works, and goes on when the primary fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.clusters import SERVICE, Watched, until
from tests.scenes import Scene
from wheelq import AsyncClient, Client, JobSpec
from wheelq.errors import Unavailable


async def test_the_sentinels_lead_to_the_primary(server_binary: Path, topic: str) -> None:
    with Watched(server_binary) as watched:
        with Client.connect(watched.url) as client:
            assert len(client.schedule_many(topic, [JobSpec(n, delay=60) for n in range(1_000)])) == 1_000
            assert client.schedule(topic, delay=60, durability="replicated").created
        async with AsyncClient.connect(watched.url) as aclient:
            assert [info.delayed for info in await aclient.topics()] == [1_001]
        unknown = watched.url.replace(f"/{SERVICE}", "/nothing")
        with Client.connect(unknown) as client, pytest.raises(Unavailable, match="know of no service 'nothing'"):
            client.topics()


@pytest.mark.parametrize("how", ["killed", "stepped down"])
def test_the_primary_fails_over(server_binary: Path, topic: str, tmp_path: Path, how: str) -> None:
    """Killed, it is missed after 0.8 s; or the sentinels are told to choose another. Nothing is promoted twice.

    What the replica had not been sent is lost (here, on one machine, at most a few jobs).
    """
    with Watched(server_binary) as watched, Scene(watched.url, tmp_path, topic, shards=2) as scene:
        scene.begin(schedulers=2)
        scene.schedule(3_000, first=0.5, spread=6.0)
        time.sleep(1.5)
        before = watched.primary()
        if how == "killed":
            before.server.kill()
        else:
            watched.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)
        failed = scene.schedule_for(4.0, delay=0.5, pause=0.01)
        until("another is the primary", lambda: watched.primary() is not before)
        verdict = scene.verdict()
        assert failed <= 2, "calls wait for the new primary; a lost reply is repeated"
        assert verdict.early + verdict.unknown == [], f"{verdict}\n{scene.fleet.output()}"
        assert len(verdict.lost) + len(verdict.doubled) <= 5, f"{verdict}\n{scene.fleet.output()}"
        assert verdict.lateness_ms[-1] < 8_000
