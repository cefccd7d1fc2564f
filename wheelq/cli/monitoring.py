"""--metrics-port: health and metrics of a process, on a separate port.

    GET /healthz    200 while the process's event loop runs, even without Redis; 503 if it is stuck for two seconds
    GET /metrics    the metrics of the fleet, the same from every process and from the HTTP server

Threads answer, with the standard library's server, and ask the event loop, so that a stuck loop is detected. Unfinished
requests cannot block others: beyond `CONNECTIONS`, the oldest connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from wheelq import __version__
from wheelq.base.clock import SystemClock
from wheelq.errors import ConfigurationError
from wheelq.protocol.keys import Keys
from wheelq.settings import Settings, resolve_url
from wheelq.transport import AsyncTransport, server_address

if TYPE_CHECKING:
    from wheelq.admin.metrics import FleetMetrics

logger = logging.getLogger("wheelq")

T = TypeVar("T")

MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=1, max=65_535, help="Answer /metrics and /healthz at this port. Default: none."),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help="Where to listen for --metrics-port.")]
LOOPBACK = "127.0.0.1"
TURNS_WITHIN_S = 2.0
METRICS_WITHIN_S = 8.0
REQUEST_WITHIN_S = 10.0
CONNECTIONS = 50
"""The most connections at a time; each takes a thread."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def monitored(port: int | None, host: str, url: str | None, settings: Settings) -> AsyncIterator[None]:
    """Answer at the port while the block runs; without a port, do nothing. Raises: ConfigurationError."""
    if port is None:
        yield
        return
    from wheelq.admin.metrics import FleetMetrics  # most processes have no port

    transport = AsyncTransport(server_address(resolve_url(url, settings), settings))
    fleet = FleetMetrics(transport, Keys(settings.prefix), SystemClock(), __version__)
    handler = type("Answering", (_Answering,), {"loop": asyncio.get_running_loop(), "fleet": fleet})
    try:
        server = _Server((host, port), handler)
    except OSError as error:
        raise ConfigurationError(f"--metrics-port: cannot listen on {host}:{port}: {error.strerror}") from error
    thread = Thread(target=server.serve_forever, name="wheelq monitoring", daemon=True)
    thread.start()
    logger.info("metrics at http://%s:%d/metrics", host, port)
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await transport.close()


class _Server(ThreadingHTTPServer):
    """Bounds the connections, and logs no broken ones."""

    request_queue_size = 2 * CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: dict[Any, None] = {}
        self._lock = Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close the oldest connection if there are too many."""
        with self._lock:
            if len(self._open) >= CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at level DEBUG: a caller that has gone is not an error."""
        logger.debug("a request to the metrics port was interrupted", exc_info=True)


class _Answering(BaseHTTPRequestHandler):
    """Answers one request, in a separate thread."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    fleet: ClassVar[FleetMetrics]
    timeout = REQUEST_WITHIN_S
    server_version = "wheelq"
    sys_version = ""

    def do_GET(self) -> None:  # the standard library requires this name
        """Answer GET."""
        match self.path.partition("?")[0]:
            case "/healthz":
                turns = self._ask(asyncio.sleep(0, True), TURNS_WITHIN_S)
                self._answer(200, "ok\n") if turns else self._answer(503, "the event loop does not turn\n")
            case "/metrics":
                text = self._ask(self.fleet.text(), METRICS_WITHIN_S)
                self._answer(200, text) if text is not None else self._answer(503, "the event loop does not turn\n")
            case _:
                self._answer(404, "there are /metrics and /healthz\n")

    do_HEAD = do_GET  # noqa: N815  # as do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests only at level DEBUG."""
        logger.debug(format, *args)

    def _ask(self, question: Coroutine[Any, Any, T], within_s: float) -> T | None:
        """Returns the event loop's answer; None if there is none in time."""
        asked = asyncio.run_coroutine_threadsafe(question, self.loop)
        try:
            return asked.result(within_s)
        except (TimeoutError, CancelledError):
            asked.cancel()
            return None

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", TEXT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
