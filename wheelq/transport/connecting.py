"""`server_address`: the address that an argument, the settings and the environment name together.

A module may call `connect()` before a server is named, because tests and programs import it first and set WHEELQ_URL
later. Its address is then looked up at first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wheelq.errors import ConfigurationError
from wheelq.settings import Settings, find_url, resolve_url, settings_in_force
from wheelq.transport.address import Address, Login


def server_address(url: str | None, settings: Settings | None) -> Address:
    """Returns the address of `url`, else of the URL in the settings, else of WHEELQ_URL.

    If none of them is set yet, the URL is looked up at first use. Without `settings`, those in force are used.
    Raises: ConfigurationError, also at first use.
    """
    if url is not None and not url.strip():
        raise ConfigurationError("the URL is empty: write redis://host:port/0, or give none to use WHEELQ_URL")
    known = settings or settings_in_force()
    found = find_url(url, known)
    return Address(found, known.connection, login_of(known)) if found else LateAddress(settings)


def login_of(settings: Settings) -> Login:
    """Returns user name and password of the settings. Raises: ConfigurationError, which names the file."""
    password = settings.password
    if settings.password_file:
        try:
            password = Path(settings.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigurationError(f"cannot read the password file {settings.password_file}: {why}") from error
    return Login(settings.username, password)


class LateAddress(Address):
    """An address whose URL is not known yet. It becomes an ordinary address at its first use."""

    def __init__(self, settings: Settings | None) -> None:
        self._given = settings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        settings = self._given or settings_in_force()
        found = Address(resolve_url(None, settings), settings.connection, login_of(settings))
        self.__dict__.update(vars(found))
        return getattr(found, name)
