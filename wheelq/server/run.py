"""Listens, and stops gracefully: takes no new requests, finishes running ones, answers waiting leases at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterator
from dataclasses import replace
from socket import socket

import uvicorn

from wheelq import reminders
from wheelq.base.clock import raise_unexpected_end
from wheelq.errors import ServerError, is_wrong_setup
from wheelq.server.app import make_app
from wheelq.server.connection import Connection, Connections, Handshake, Limits
from wheelq.server.service import Service, is_loopback
from wheelq.settings import Settings
from wheelq.transport.startup import check_server

logger = logging.getLogger("wheelq.server")

CHECK_S = 2.0
"""How long the start waits for Redis to confirm the setup. If Redis is away, requests are accepted anyway."""

PARTS = 4
"""Idle connections are closed within this share of the time for a stop, so that it suffices for all."""


class HttpServer(uvicorn.Server):
    """One server process, which listens until `stop`."""

    def __init__(self, service: Service, limits: Limits | None = None) -> None:
        """`limits` are for tests."""
        settings = service.settings.server
        self._service = service
        self._ended: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                make_app(service),
                host=settings.host,
                port=settings.port,
                loop="none",  # the caller has an event loop
                http=Connection,
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
        self.server_state: Connections = Connections(limits or Limits(), settings.base_path)

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
        """Listen until stopped, also while Redis is away or there is no API key yet: requests are refused then.

        Raises: at the start AuthenticationFailed, TlsFailed, WrongDatabase and ServerTooOld, which waiting does not
        cure; the error that ended a necessary background task.
        """
        with reminders.kept(self._service.clock):
            await self._check_server()
            async with self._service.running(self._end):
                await self.serve()
        if self._ended is not None:
            raise_unexpected_end(self._ended)

    async def _check_server(self) -> None:
        """Raises the error of a wrong setup if Redis reports it soon; otherwise each request gets it."""
        try:
            async with asyncio.timeout(CHECK_S):
                await check_server(self._service.transport)
        except TimeoutError:
            pass
        except ServerError as error:
            if is_wrong_setup(error):
                raise

    def _end(self, task: asyncio.Task[None]) -> None:
        """End the process after a background task has ended, because it would do only part of its work."""
        self._ended = task
        self.stop()

    def stop(self) -> None:
        """Stop `listen` gracefully."""
        self.should_exit = True

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Log the address once it listens."""
        if self.config.ssl is not None:  # made from the files; replaced, because uvicorn's handshake has no limits
            self.server_state.tls, self.config.ssl = self.config.ssl, None
            self.config.http_protocol_class = Handshake
        await super().startup(sockets)
        base = f"{self.shown}{self._service.settings.server.base_path}"
        logger.info("server listens on %s; its manual is at %s/docs, its dashboard at %s/", self.shown, base, base)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """First end requests that only wait."""
        self._service.drain()
        share_s = self._service.settings.server.drain_ms / 1000 / PARTS
        limits = self.server_state.limits
        bounded = {name: min(getattr(limits, name), share_s) for name in ("parting_s", "linger_s", "body_s")}
        self.server_state.limits = replace(limits, **bounded)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program that runs the server."""
        yield

    def _port(self) -> int:
        for server in getattr(self, "servers", ()):
            for listening in server.sockets:
                return int(listening.getsockname()[1])
        return self._service.settings.server.port
