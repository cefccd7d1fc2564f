"""`WorkerParts`: the objects that all parts of a worker share."""

from __future__ import annotations

from wheelq.base.clock import Clock, ServerClock
from wheelq.protocol.keys import Keys
from wheelq.settings import WorkerSettings
from wheelq.transport import AsyncTransport
from wheelq.worker.ending import Ending
from wheelq.worker.held import Held
from wheelq.worker.peers import Peers
from wheelq.worker.recovery import Recovery
from wheelq.worker.settling import Settler


class WorkerParts:
    """The shared parts of one worker: its server, its names, its deliveries, and their settling and recovery."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: Keys,
        group: str,
        consumer: str,
        settings: WorkerSettings,
        clock: Clock,
    ) -> None:
        """`consumer` is the worker's name in the group."""
        self.transport = transport
        self.keys = keys
        self.group = group
        self.consumer = consumer
        self.settings = settings
        self.clock = clock
        self.server = server = ServerClock(clock)
        self.ending = Ending()
        self.held = held = Held()
        self.peers = peers = Peers(consumer, group, settings)
        self.settler = settler = Settler(transport, group, consumer, settings, held, clock)
        self.recovery = Recovery(transport, group, consumer, settings, held, settler, peers, clock, server)
