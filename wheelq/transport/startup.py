"""Waits at the start until the server can be used. Every process that runs until it is stopped starts in this way.

    attempt ─▶ succeeded                       go on
            ─▶ the setup is wrong              raise it: sign-in, TLS, database number or server version
            ─▶ no answer, and not patient      raise it: a program may prefer to hear at once that there is no server
            ─▶ any other error                 warn, pause, attempt again
    told to stop                               end, also in the middle of an attempt

Waiting includes refusals (a missing right, a full disk, too few replicas, a long script): once an operator has removed
the cause, the process goes on without a restart. Once the server answers, its version is checked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from wheelq.base.clock import Clock
from wheelq.errors import AWAY, NotPermitted, ServerBusy, ServerError, ServerTooOld, WritesRefused, is_wrong_setup
from wheelq.protocol.calls.server import info
from wheelq.reminders import Backoff, Reminders
from wheelq.transport.aio import AsyncTransport


class StartupPolicy(Enum):
    """The errors that a process waits out at its start."""

    REFUSALS = "refusals"
    """Refusals, unless the setup is wrong. Not a server that does not answer, or is not a primary."""
    OUTAGES = "outages"
    """Also a server that does not answer or is not a primary."""
    EVERYTHING = "everything"
    """Also a wrong setup, for parts that start in a process that is already running."""

    def waits_out(self, error: ServerError) -> bool:
        """Whether to wait until `error` is over."""
        match self:
            case StartupPolicy.EVERYTHING:
                return True
            case StartupPolicy.OUTAGES:
                return not is_wrong_setup(error)
        return not is_wrong_setup(error) and (
            isinstance(error, (ServerBusy, WritesRefused)) or not isinstance(error, AWAY)
        )


async def until_usable(
    attempt: Callable[[], Awaitable[object]],
    stopping: asyncio.Event,
    clock: Clock,
    logger: logging.Logger,
    policy: StartupPolicy,
) -> bool:
    """Repeat `attempt` until it succeeds; False if `stopping` is set first. Raises: errors that are not waited out."""
    backoff, began, has_waited = Backoff(0.05), clock.monotonic(), False
    reminders = Reminders(clock)
    while not stopping.is_set():
        try:
            went_well = await _before(stopping, attempt())
        except ServerError as error:
            if not policy.waits_out(error):
                raise
            reminders.warn(logger, "waiting until the server can be used", error)
            has_waited = True
            await _before(stopping, clock.sleep(backoff.pause()))
        else:
            if went_well and has_waited:
                logger.info("the server can be used, after %.1f s", clock.monotonic() - began)
            return went_well
    return False


async def _before(stopping: asyncio.Event, doing: Awaitable[object]) -> bool:
    """Whether `doing` ended before `stopping` was set; if not, it is cancelled. Raises: the errors of `doing`."""
    stop, work = asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(doing)
    try:
        await asyncio.wait((stop, work), return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        return work.done()
    finally:
        for task in (stop, work):
            task.cancel()
        await asyncio.gather(stop, work, return_exceptions=True)


OLDEST_REDIS = (6, 2, 2)


async def check_server(transport: AsyncTransport) -> None:
    """Check the server's version; passes if the user may not read it. Raises: ServerTooOld for a Redis before 6.2.2."""
    try:
        found = await transport.send(info("server"))
    except (NotPermitted, ServerTooOld):  # a user may lack the right to INFO, which nothing else needs
        return
    if is_too_old(found):
        raise ServerTooOld(
            f"the server is Redis {found['redis_version']}; wheelq needs Redis 6.2.2 or newer, or Valkey"
        )


def is_too_old(info: Mapping[str, str]) -> bool:
    """Whether a server with this `INFO` is too old for wheelq; one that names no version is not."""
    if "redis_version" not in info or "valkey_version" in info:
        return False
    return tuple(int(part) for part in info["redis_version"].split(".")[:3] if part.isdecimal()) < OLDEST_REDIS
