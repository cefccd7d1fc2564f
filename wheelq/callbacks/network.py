"""Connects to allowed addresses only: resolves the name, checks the answer, and uses that very address.

So a name service cannot change its answer between the check and the connection, and it does not matter how a host was
written. If any address of an answer is refused, the host is refused: an answer that mixes public and private addresses
is not an accident.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import httpcore
import httpx

from wheelq.callbacks.addresses import Network, refusal

logger = logging.getLogger("wheelq.callbacks")

Resolve = Callable[[str, int], Awaitable[list[str]]]
CONNECTIONS = 1_000
IDLE_S = 30.0


class AddressRefused(httpx.TransportError):
    """The host leads to an address that must not be connected to."""


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, allowed: Sequence[Network], resolve: Resolve) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._allowed = allowed
        self._resolve = resolve

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"the name {host} was not resolved in time") from error
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name {host} cannot be resolved: {error}") from error
        for address in addresses:
            if reason := refusal(address, self._allowed):
                logger.warning("refused to connect to %s:%d: %s", host, port, reason)
                raise AddressRefused(f"{host}: {reason}")
        failure: Exception = httpcore.ConnectError(f"the name {host} has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("callbacks go over TCP")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class GuardedTransport(httpx.AsyncHTTPTransport):
    """An httpx transport that connects to public addresses, and to addresses in the `allowed` networks.

    A request raises AddressRefused, which is an httpx.TransportError, besides the errors of httpx.
    """

    def __init__(self, allowed: Sequence[Network] = (), *, resolve: Resolve, tls: ssl.SSLContext | None = None) -> None:
        context = tls or httpx.create_ssl_context()
        super().__init__(verify=context)
        self._pool = httpcore.AsyncConnectionPool(  # httpx's own takes no network backend
            ssl_context=context,
            max_connections=CONNECTIONS,
            max_keepalive_connections=CONNECTIONS // 10,
            keepalive_expiry=IDLE_S,
            network_backend=_Backend(allowed, resolve),
        )
