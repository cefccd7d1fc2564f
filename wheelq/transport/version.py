"""Checks the server's version, once at the start of every long-running process."""

from __future__ import annotations

from collections.abc import Mapping

from wheelq.errors import NotPermitted, ServerTooOld
from wheelq.protocol.calls.server import info
from wheelq.transport.aio import AsyncTransport

OLDEST_REDIS = (6, 2, 2)


async def check_server(transport: AsyncTransport) -> None:
    """Check the server's version; passes if the user may not read it. Raises: ServerTooOld for a Redis before 6.2.2."""
    try:
        said = await transport.send(info("server"))
    except (NotPermitted, ServerTooOld):  # a user may lack the right to INFO, which nothing else needs
        return
    if is_too_old(said):
        raise ServerTooOld(f"the server is Redis {said['redis_version']}; wheelq needs Redis 6.2.2 or newer, or Valkey")


def is_too_old(info: Mapping[str, str]) -> bool:
    """Whether a server with this `INFO` is too old for wheelq; one that names no version is not."""
    version = info.get("redis_version")
    return version is not None and "valkey_version" not in info and _version_number(version) < OLDEST_REDIS


def _version_number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())
