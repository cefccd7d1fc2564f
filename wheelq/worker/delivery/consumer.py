"""`Consumer`: this worker as one consumer of its group, with what it holds and what it knows of the others."""

from __future__ import annotations

from dataclasses import dataclass

from wheelq.base.clock import Clock, ServerClock
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.delivery.held import Held
from wheelq.worker.delivery.peers import Peers


@dataclass(eq=False)
class Consumer:
    """One consumer: its server, its names, its settings, its clocks and its deliveries."""

    transport: AsyncTransport
    keys: Keys
    group: str
    name: str
    """The worker's name in the group."""
    settings: WorkerSettings
    clock: Clock

    def __post_init__(self) -> None:
        self.server = ServerClock(self.clock)
        self.held = Held()
        self.peers = Peers(self.name, self.group, self.settings)
