"""`Consumer`: this worker as one consumer of its group, with what it holds and what it knows of the others."""

from __future__ import annotations

from wheelq.base.clock import Clock, ServerClock
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.held import Held
from wheelq.worker.peers import Peers


class Consumer:
    """One consumer: its server, its names, its settings, its clocks and its deliveries."""

    def __init__(
        self, transport: AsyncTransport, keys: Keys, group: str, name: str, settings: WorkerSettings, clock: Clock
    ) -> None:
        """`name` is the worker's name in the group."""
        self.transport = transport
        self.keys = keys
        self.group = group
        self.name = name
        self.settings = settings
        self.clock = clock
        self.server = ServerClock(clock)
        self.held = Held()
        self.peers = Peers(name, group, settings)
