"""health: ask a process of this machine whether it runs, for the probes of containers and process managers.

A worker or scheduler answers on its --metrics-port, the HTTP server on its own port.
"""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated

import typer

from wheelq.cli.output import FAILED, say, say_aside

Port = Annotated[int, typer.Option("--port", min=1, max=65_535, help="The port of `--metrics-port`, or the server's.")]
Host = Annotated[str, typer.Option("--host", help="The address of `--metrics-host`, or the server's.")]
Ready = Annotated[bool, typer.Option("--ready", help="Ask the HTTP server whether it can take requests: /readyz.")]
Https = Annotated[bool, typer.Option("--https", help="The server speaks HTTPS. Its certificate is not checked.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer.")]


def health(
    port: Port = 7380, host: Host = "127.0.0.1", ready: Ready = False, https: Https = False, timeout: Timeout = 3.0
) -> None:
    """Ask a wheelq process whether it is healthy. Exit code 1: it is not, or it does not answer."""
    path = "/readyz" if ready else "/healthz"
    try:
        status, text = _ask(host, port, path, https, timeout)
    except (OSError, HTTPException, UnicodeError) as error:  # the last: no name of a host
        say_aside(f"{host}:{port} does not answer: {str(error) or type(error).__name__}")
        raise typer.Exit(FAILED) from None
    if status != 200:
        say_aside(f"{host}:{port}{path} answered {status}: {text}")
        raise typer.Exit(FAILED)
    say(f"{host}:{port} is {'ready' if ready else 'healthy'}")


def _ask(host: str, port: int, path: str, https: bool, timeout: float) -> tuple[int, str]:
    connection: HTTPConnection
    if https:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname = False
        unchecked.verify_mode = ssl.CERT_NONE
        connection = HTTPSConnection(host, port, timeout=timeout, context=unchecked)
    else:
        connection = HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(2_000).decode(errors="replace").strip()
    finally:
        connection.close()
