"""Backup and restore, as the production page describes them."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from redis import Redis

from tests.cli.commands import Running
from tests.deploy.kit import DEPLOY
from tests.waiting import eventually
from wheelq import Client
from wheelq.embedded import EmbeddedServer

KEYS = [f"order-{number}" for number in range(20)]


def test_every_job_of_a_restored_snapshot_runs(
    private_server: Callable[..., EmbeddedServer], tmp_path: Path, start: Callable[..., Running]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    old, new = tmp_path / "old", tmp_path / "new"
    server = private_server(old)
    with Client.connect(server.url) as client:
        for key in KEYS:
            client.schedule("orders", {"key": key}, delay=3600, key=key)
    save(server)
    shutil.copy(old / "dump.rdb", copy)
    server.stop()

    new.mkdir(mode=0o700)
    shutil.copy(copy / "dump.rdb", new)
    with EmbeddedServer(new, appendonly=False) as restored:  # a server with appendonly yes does not load a snapshot
        turn_on_appendonly(restored)
    with EmbeddedServer(new) as restored, Client.connect(restored.url) as client:
        shutil.copy(DEPLOY / "shop.py", tmp_path)
        scheduler = start(tmp_path, "scheduler", url=restored.url)
        worker = start(tmp_path, "worker", "shop:worker", url=restored.url)
        for key in KEYS:
            client.run_now("orders", key)
        assert eventually(lambda: all(f"order {key} is" in worker.said for key in KEYS)), worker.said
        scheduler.wait_for("runs on ")  # before that it takes no signals; jobs that run now need none
        for process in (worker, scheduler):
            process.signal(signal.SIGTERM)
            assert process.end() == 0


def save(server: EmbeddedServer) -> None:
    """Write a snapshot and wait for its end."""
    with Redis.from_url(server.url) as redis:
        redis.bgsave()
        assert eventually(lambda: redis.info("persistence")["rdb_bgsave_in_progress"] == 0)
        assert redis.info("persistence")["rdb_last_bgsave_status"] == "ok"


def turn_on_appendonly(server: EmbeddedServer) -> None:
    """Write the append-only file from what is in memory, and wait for its end."""
    with Redis.from_url(server.url) as redis:
        redis.config_set("appendonly", "yes")
        assert eventually(lambda: not redis.info("persistence")["aof_rewrite_in_progress"])
        assert eventually(lambda: not redis.info("persistence").get("aof_rewrite_scheduled"))
