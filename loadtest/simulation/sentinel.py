"""`Sentinel`: answers where the primary is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadtest.simulation.server import Server, Session
from loadtest.simulation.world import World


class Sentinel(Server):
    """A server that adds one command."""

    def __init__(self, world: World, address: str, primary: Callable[[], Server]) -> None:
        super().__init__(world, address)
        self._primary = primary

    def _do(self, words: list[bytes], session: Session) -> Any:
        if words[0].upper() == b"SENTINEL":
            host, _, port = self._primary().address.partition(":")
            return [host.encode(), port.encode()]
        return super()._do(words, session)
