"""Listens, and stops in good order: no new requests, those under way finish, waiting leases are answered at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterator
from socket import socket

import uvicorn

from wheelq.patience import until_usable
from wheelq.server.app import make_app
from wheelq.server.service import Service, is_loopback
from wheelq.settings import Settings

logger = logging.getLogger("wheelq.server")


class HttpServer(uvicorn.Server):
    """One server process. It listens until `stop`."""

    def __init__(self, service: Service) -> None:
        settings = service.settings.server
        self._service = service
        self._stopping = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                make_app(service),
                host=settings.host,
                port=settings.port,
                loop="none",  # the caller has one
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=max(1, settings.drain_ms // 1000),
                ssl_certfile=settings.tls_cert or None,
                ssl_keyfile=settings.tls_key or None,
                ssl_ca_certs=settings.tls_client_ca or None,
                ssl_cert_reqs=ssl.CERT_REQUIRED if settings.tls_client_ca else ssl.CERT_NONE,
            )
        )

    @classmethod
    def connect(cls, url: str | None, settings: Settings) -> HttpServer:
        """A server of the service at `url`. Raises: ConfigurationError."""
        return cls(Service.connect(url, settings))

    @property
    def shown(self) -> str:
        """Where it listens, as a URL."""
        settings = self._service.settings.server
        scheme = "https" if settings.tls_cert else "http"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"{scheme}://{host}:{self._port()}"

    @property
    def is_open_to_all(self) -> bool:
        """Whether other machines can use it without a key."""
        return not self._service.needs_key and not is_loopback(self._service.settings.server.host)

    async def listen(self) -> None:
        """Listen until stopped. While Redis is away and no API keys could be read yet, wait for it before that.

        Raises: ConfigurationError; Refused, where waiting would not help.
        """
        async with contextlib.AsyncExitStack() as stack:

            async def begin() -> None:
                await stack.enter_async_context(self._service.running())

            if await until_usable(begin, self._stopping, self._service.clock, logger, patiently=True):
                await self.serve()

    def stop(self) -> None:
        """Let `listen` end in good order."""
        self._stopping.set()
        self.should_exit = True

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Say where, once it listens."""
        await super().startup(sockets)
        logger.info("server listens on %s; its manual is at %s/docs", self.shown, self.shown)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """First let go of what only waits."""
        self._service.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Whoever runs it hears the signals."""
        yield

    def _port(self) -> int:
        for server in getattr(self, "servers", ()):
            for listening in server.sockets:
                return int(listening.getsockname()[1])
        return self._service.settings.server.port
