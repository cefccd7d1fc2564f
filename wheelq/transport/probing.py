"""Finds out whether a port speaks TLS, after a connection to it has failed; no login is sent.

A plain server takes the start of a TLS handshake for a long request, and waits for its rest. A TLS port closes a plain
connection. An outage can look the same as either, so one short look decides which error to raise.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from wheelq.transport.address import Address
from wheelq.transport.advice import Doubt, doubt_of

LOOK_S = 0.5
"""Seconds for one look, at most."""


def speaks_tls(error: BaseException, address: Address) -> bool | None:
    """Whether the port speaks TLS; None if `error` cannot come from TLS, or if the port does not show it."""
    doubt = doubt_of(error, address)
    if doubt is None:
        return None
    timeout = min(LOOK_S, address.settings.connect_timeout_ms / 1000)
    try:
        with socket.create_connection(address.nodes[0], timeout) as connection:
            connection.settimeout(timeout)
            return _answers_tls(connection) if doubt is Doubt.PLAIN_URL else _answers_plainly(connection)
    except OSError:
        return None


async def aspeaks_tls(error: BaseException, address: Address) -> bool | None:
    """`speaks_tls`, in a thread."""
    if doubt_of(error, address) is None:
        return None
    return await asyncio.to_thread(speaks_tls, error, address)


def _answers_tls(connection: socket.socket) -> bool | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only asks whether there is TLS
    try:
        context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        return True if "ALERT" in (error.reason or "") else None
    return True


def _answers_plainly(connection: socket.socket) -> bool | None:
    connection.sendall(b"PING\r\n")
    return False if connection.recv(1) in (b"+", b"-") else None
