"""`Sentinel`: answers where the primary is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadtest.simulation.server import Server, Session
from loadtest.simulation.world import World

if TYPE_CHECKING:
    from loadtest.simulation.fleet import Fleet


class Sentinel(Server):
    """A server that adds one command."""

    def __init__(self, world: World, address: str, fleet: Fleet) -> None:
        super().__init__(world, address)
        self._fleet = fleet

    def _do(self, words: list[bytes], session: Session) -> Any:
        if words[0].upper() == b"SENTINEL":
            host, _, port = self._fleet.primary.address.partition(":")
            return [host.encode(), port.encode()]
        return super()._do(words, session)
